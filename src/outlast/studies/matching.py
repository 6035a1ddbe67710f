"""Arms of one size: the width at which a layout has as many parameters as another."""

from __future__ import annotations

from dataclasses import replace

import torch

from outlast.api import model
from outlast.api import task as make_task
from outlast.specs import parse_layout
from outlast.tasks import Task


def size_of(line: str, task: Task) -> int:
    """How many parameters a model line has on a task, without making them."""
    with torch.device("meta"):
        return model(line, task).size


def matched(line: str, like: str, task: str, step: int = 8) -> str:
    """`line` at the width (a multiple of `step`) that comes closest to the size of `like`."""
    made, layout = make_task(task), parse_layout(line)
    target = size_of(like, made)
    best, width = layout, step
    gap = float("inf")
    while True:
        layout = replace(layout, width=width)
        away = abs(size_of(str(layout), made) - target)
        if away > gap:  # sizes only grow with the width
            return str(best)
        best, gap, width = layout, away, width + step
