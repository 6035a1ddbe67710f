"""A small part of `make kill`, with fixed moments: commands that are killed and given again.

The program is run once, as others run it; each test looks at one thing that it found.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from kill_cases import CASES
from kill_compare import differences, differing_bits

from outlast.registry import methods
from outlast.specs import parse

KILLED = (
    "dat(switch=12, rewarm=6)", "processes", "a grid", "seeds of a run", "tests", "a study",
)  # fmt: skip


@pytest.fixture(scope="module")
def tallies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of each case."""
    file = tmp_path_factory.mktemp("kill") / "tallies.json"
    program = [sys.executable, str(Path(__file__).parent), "--kills", "12", "--json", str(file)]
    result = subprocess.run(
        [*program, "--cases", *KILLED], capture_output=True, text=True, timeout=300
    )
    assert file.exists(), result.stdout + result.stderr
    return dict(json.loads(file.read_text()), code=result.returncode)


@pytest.mark.parametrize("name", KILLED)
def test_command_killed_and_given_again_leaves_the_same_files(
    tallies: dict[str, Any], name: str
) -> None:
    tally = tallies[name]
    assert tally["faults"] == []
    assert tally["bits"] == 0
    assert tally["kills"] > 0, "it was not killed, so nothing was tested"
    assert tallies["code"] == 0


def test_every_method_is_killed() -> None:
    """Also one that another package has registered."""
    words = [word for case in CASES for command in case.commands for word in command]
    killed = {parse(word).name for flag, word in pairwise(words) if flag == "--method"}
    assert killed == set(methods.names())


def test_comparison_counts_bits_and_finds_files_left_over(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, text in ((one, b"ab"), (other, b"cb")):
        folder.mkdir()
        (folder / "file").write_bytes(text)
    (one / ".file.tmp").touch()
    (other / "missing").touch()
    (one / ".lock").touch()
    bits, faults = differences(one, other)
    assert bits == 1
    assert faults == ["left over: .file.tmp", "missing: missing", "file differs in 1 bits"]
    assert differing_bits({"": b"ab"}, {"": b"abc"}) == 8
    assert differing_bits({"x": b"a"}, {"y": b"a"}) == 16
