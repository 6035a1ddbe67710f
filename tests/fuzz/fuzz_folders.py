"""Run and study folders with something wrong in them: named in one error, or no matter."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import values
from oracle import Case, check, command
from sample_folders import samples

from outlast.reporting.load import read
from outlast.workflow.load import load

RECORDS = ("run.json", "results.json", "metrics.jsonl")
#: values that a field of a record is replaced by
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 10**12, 10**30, -(2**63), 0.5, -0.0, 1e300, math.inf, math.nan,
    "", "x", "1", "0.5", "é🙂", "\ud800", "\0", "a" * 5000, [], [None], [1, [2]], {}, {"": 0},
)  # fmt: skip
VERBS = (
    ("resume", "{}"), ("eval", "{}", "--lengths", "1", "--sequences", "2"),
    ("resume", "{}", "--seeds", "1", "--out", "new"), ("read", "{}"), ("load", "{}"),
)  # fmt: skip


def folder_case(random: Random) -> Case:
    """A sound folder of which one file is spoilt, and what is then asked of it."""
    name = random.choice(("run", "run", "run", "grid", "study"))
    files = sorted(
        p for p in (samples() / name).rglob("*") if p.is_file() and p.suffix[:5] == ".json"
    )
    path = random.choice(files).relative_to(samples())
    verb = VERBS[-2] if name == "study" else random.choice(VERBS)
    if random.random() < 0.01:
        verb = ("report", "{}", "--out", "page")
    words = [word.format(name) for word in verb]
    how, spoil = random.choice(
        ((_spoil_json, "json"), (_spoil_bytes, "bytes"), (_spoil_file, "file"))
    )[::-1]
    seed = random.random()

    def prepare(home: Path) -> None:
        for sample in ("run", "other", name):
            if not (home / sample).exists():
                shutil.copytree(samples() / sample, home / sample)
        spoil(Random(seed), home / path)

    line = f"{' '.join(words)}, after {how} of {path} was spoilt with {seed}"
    return Case(line, lambda home: use(home, words), prepare)


def use(home: Path, words: list[str]) -> None:
    """Do what is asked of the folder; what is read must be sane."""
    folder = home / words[1]
    match words[0]:
        case "read":
            for study in read([folder]):
                for arm in study.arms:
                    for row in arm.run.rows if arm.run else ():
                        shares = (row["exact"] or {}).values()
                        check(all(0 <= share <= 1 for share in shares), f"shares of {row}")
        case "load":
            load(folder)
        case _:
            command(*words)


# ---- how a file is spoilt ------------------------------------------------------------------------


def _spoil_json(random: Random, path: Path) -> None:
    """Change one value somewhere in the tree, or a few."""
    text = path.read_text()
    lines = text.splitlines() if path.suffix == ".jsonl" else [text]
    place = random.randrange(len(lines))
    tree = json.loads(lines[place])
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        tree = _changed(random, tree)
    lines[place] = json.dumps(tree)
    if random.random() < 0.1:  # deeper than a parser can go, or a number that none takes
        deep = random.choice(("[" * 100_000, "[" * 500 + "]" * 500, '{"a":' * 5000, "9" * 5000))
        lines[place] = lines[place].replace("null", deep, 1).replace("0", deep, 1)
    path.write_text("\n".join(lines) + "\n")


def _changed(random: Random, tree: Any) -> Any:
    if not isinstance(tree, dict | list) or not tree or random.random() < 0.1:
        return random.choice(ODD_VALUES)
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    key, choice = random.choice(keys), random.randrange(8)
    if choice == 0:
        del tree[key]
    elif choice == 1 and isinstance(tree, dict):
        tree[values.word(random)] = tree.pop(key)
    elif choice == 2 and isinstance(tree, list):
        tree.append(tree[key])
    elif choice == 3 and isinstance(tree[key], str):
        tree[key] = values.mutated(random, tree[key])
    elif choice == 4 and isinstance(tree[key], int | float):
        tree[key] = tree[key] * random.choice((-1, 2, 10**6, 1.5, 10**15)) + random.choice((0, 1))
    elif choice == 5:
        other = random.choice(keys)
        tree[key], tree[other] = tree[other], tree[key]
    else:
        tree[key] = _changed(random, tree[key])
    return tree


def _spoil_bytes(random: Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    place = random.randrange(len(data))
    match random.randrange(7):
        case 0:
            del data[place:]
        case 1:
            data[place] ^= 1 << random.randrange(8)
        case 2:
            data[place:place] = random.choice(
                (b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\x80", b"\n", b"]")
            )
        case 3:
            data[:] = random.choice((b"", b" ", b"\n" * 100, b"null", b"[]", b"{}", b"\0" * 100))
        case 4:
            data[:] = random.randbytes(200)
        case 5:
            data *= 2
        case 6:
            data[place : place + 20] = random.randbytes(20)
    path.write_bytes(data)


def _spoil_file(random: Random, path: Path) -> None:
    """Another thing in the place of the file, or of another file of the folder."""
    names = (
        "run.json",
        "results.json",
        "metrics.jsonl",
        "checkpoint.safetensors",
        ".lock",
        path.name,
    )
    path = path.with_name(random.choice(names))
    path.unlink(missing_ok=True)
    foreign = path.parents[1] / "other" / path.name
    things: list[Callable[[], object]] = [
        lambda: None,
        lambda: os.mkfifo(path),
        lambda: path.mkdir(),
        lambda: path.symlink_to(path),
        lambda: path.symlink_to("nowhere"),
        lambda: path.symlink_to("/dev/zero"),
        lambda: foreign.exists() and shutil.copy(foreign, path),
    ]
    random.choice(things)()
