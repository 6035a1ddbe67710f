"""Drawn calls of the Python API: a sound result, or an error that names an argument.

A call whose arguments are all accepted must not fail. A call with a wrong argument must be refused
with an `OutlastError` that names it. A refusal leaves no file behind, and takes no random number
from torch's global state. No call may take more than 20 seconds.

The seed is fixed, and the calls are few. `FUZZ_SEED` sets another seed; `FUZZ_SECONDS` goes on for
that long.
"""

from __future__ import annotations

import random
import re
import shutil
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from api_calls import CALLS, Call
from api_limits import LIMIT, SECONDS, SEED, TooSlow, time_limit
from api_method_calls import METHOD_CALLS

import outlast
from outlast.errors import OutlastError

ALL = CALLS | METHOD_CALLS
#: calls of each function with a fixed seed, and how often an argument is odd
EACH, ODDNESS = 21, (0.0, 0.3, 0.6)
#: lines and folders: their errors quote the value and may leave out the name of the argument
QUOTED = {"spec", "task", "layout", "model", "methods", "folder", "folders", "switch"}


def problem(call: Call, arguments: dict[str, Any], wrong: list[str]) -> str | None:
    """What is wrong with how a call ended, in words."""
    clash = not wrong and call.clash(arguments)
    random_state = torch.get_rng_state()
    try:
        with time_limit(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = call.function(**arguments)
    except OutlastError as error:
        text = str(error)
        if not wrong and not clash:
            return f"refused, but every argument is accepted: {text}"
        named = any(re.search(rf"\b{name}\b", text) for name in call.arguments)
        if not named and not QUOTED & set(wrong):
            return f"refused without the name of an argument; wrong are {wrong}: {text}"
        if list(Path.cwd().iterdir()):
            return "refused, but something was left in the folder"
        if not torch.equal(random_state, torch.get_rng_state()):
            return "refused, but random numbers were drawn"
        return None if len(text) < 600 else f"an error of {len(text)} characters"
    except TooSlow:
        return f"took more than {LIMIT} s"
    except Exception as error:  # any other type is what is looked for
        return f"raw {type(error).__name__}: {error}"
    for left in Path.cwd().iterdir():
        shutil.rmtree(left)
    if wrong:
        return f"accepted, but {wrong} is wrong"
    return None if call.check(result) or clash else f"a result that is not sound: {result!r}"


def drawn_arguments(call: Call, chance: random.Random) -> tuple[dict[str, Any], list[str]]:
    """Arguments, and the names of those that must be refused."""
    oddness = chance.choice(ODDNESS)
    odd = chance.choice([*call.arguments]) if call.costly or oddness else None
    while True:
        arguments = {
            name: argument.draw(chance, 1.0 if name == odd else oddness)
            for name, argument in call.arguments.items()
        }
        wrong = [name for name, a in call.arguments.items() if not a.accepts(arguments[name])]
        if wrong or not call.costly:
            return arguments, wrong


def written(arguments: dict[str, Any]) -> str:
    words = []
    for name, value in arguments.items():
        try:
            words.append(f"{name}={value!r}"[:80])
        except Exception:
            words.append(f"{name}=<{type(value).__name__}>")
    return ", ".join(words)


@pytest.mark.parametrize("name", ALL)
def test_every_call_is_sound_or_refused_in_words(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chance, call = random.Random(f"{SEED} {name}"), ALL[name]
    end = time.monotonic() + SECONDS / len(ALL)
    count, problems, outcomes = 0, [], Counter[str]()
    while count < EACH * max(1, len(call.arguments) // 2) or time.monotonic() < end:
        arguments, wrong = drawn_arguments(call, chance)
        text = problem(call, arguments, wrong)
        outcomes["refused" if wrong else "accepted"] += 1
        count += 1
        if text is not None:
            problems.append(f"{name}({written(arguments)}): {text}")
    assert not problems, f"{len(problems)} of {count} calls:\n" + "\n".join(problems[:10])
    assert outcomes["refused"]
    assert outcomes["accepted"] or call.costly, "no sound call was drawn"


def test_every_public_name_is_called() -> None:
    others = {"Listener", "OutlastError", "__version__", "threshold_relative_attention"}
    others |= {"track"}  # needs extras; tests/trackers and tests/extras/track call it
    assert set(outlast.__all__) - others == set(CALLS)
