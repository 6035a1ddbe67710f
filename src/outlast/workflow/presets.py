"""The training of a preset, on a task of one's own."""

from __future__ import annotations

from dataclasses import replace

from outlast.methods.phases import Phased, has_state
from outlast.registry import methods, tasks
from outlast.runs.spec import RunSpec
from outlast.specs import parse_layout


def on_task(training: RunSpec, task: str) -> RunSpec:
    """The training on another task.

    A head with fewer outputs than the task has answers is widened. A task without a state has
    nothing that attention could wait for, so it is trained jointly.
    """
    layout, other = parse_layout(training.model), tasks.build(task)
    if layout.head is not None and layout.head < other.classes:
        training = replace(training, model=str(replace(layout, head=other.classes)))
    if not has_state(other.parts):
        kept = tuple(line for line in training.methods if not _is_phased(line))
        training = replace(training, methods=kept)
    return replace(training, task=task)


def _is_phased(line: str) -> bool:
    return isinstance(methods.build(line), Phased)
