"""Arms of one size: the width at which a layout has as many parameters as another."""

from __future__ import annotations

from dataclasses import replace

import torch

from outlast.models import build_model
from outlast.registry import tasks
from outlast.specs import parse_layout
from outlast.tasks import Task


def size_of(line: str, task: Task) -> int:
    """How many parameters a model line has on a task, without making them."""
    with torch.device("meta"):
        return build_model(line, task.vocabulary, task.classes).size


def matched(line: str, like: str, task: str, step: int = 8) -> str:
    """`line` at the width (a multiple of `step`) that comes closest to the size of `like`."""
    built, layout = tasks.build(task), parse_layout(line)
    target = size_of(like, built)
    best, width = layout, step
    gap = float("inf")
    while True:
        layout = replace(layout, width=width)
        away = abs(size_of(str(layout), built) - target)
        if away > gap:  # sizes only grow with the width
            return str(best)
        best, gap, width = layout, away, width + step
