"""Where a model errs that copies: whether what stands before a sign says where it is.

At each wrong sign the last k signs are looked for elsewhere in the row, with another sign after
them. A model that searches by the last k signs must err there about half of the time.
"""

from __future__ import annotations

from pathlib import Path

import torch

import outlast
from outlast.runs.records import read_run
from outlast.tasks.copy import Copy

#: how many signs before a sign are looked at
BEFORE = (1, 2, 3, 4, 5)


def describe(folder: Path, seed: int, times: float, rows: int) -> list[str]:
    """One line about all signs, and one for each number of signs before."""
    task, model = _load(folder, seed)
    length = round(times * task.lengths[1])
    batch = task.test_batch(length, rows, torch.Generator().manual_seed(9))
    with torch.no_grad():
        said = model(batch.inputs)[0].argmax(-1)[:, length : 2 * length]
    signs = batch.inputs[:, :length]
    wrong = (said != signs).tolist()
    lines = [f"{rows * length:,} signs, {sum(map(sum, wrong)):,} wrong"]
    for before in BEFORE:
        places = [
            (row, place)
            for row, line in enumerate(signs.tolist())
            for place in _ambiguous(line, before)
        ]
        errors = sum(wrong[row][place] for row, place in places)
        lines.append(
            f"last {before} also elsewhere, with another sign after it: {len(places):,} signs, "
            f"{errors:,} of them wrong"
        )
    return lines


def _load(folder: Path, seed: int) -> tuple[Copy, torch.nn.Module]:
    line = read_run(folder).spec.task
    task = outlast.task(line)
    if not isinstance(task, Copy):
        raise SystemExit(f"{folder}: expected a run of copy, not of {line}")
    return task, outlast.load(folder, seed=seed)


def _ambiguous(line: list[int], before: int) -> list[int]:
    """The places of signs that follow the same signs as another one does that differs."""
    after: dict[tuple[int, ...], set[int]] = {}
    for place in range(before, len(line)):
        after.setdefault(tuple(line[place - before : place]), set()).add(line[place])
    return [
        place
        for place in range(before, len(line))
        if len(after[tuple(line[place - before : place])]) > 1
    ]
