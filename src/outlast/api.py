"""The short way from a line of notation to the thing itself."""

from __future__ import annotations

from outlast.models import Model, build_model
from outlast.registry import tasks
from outlast.tasks import Task


def task(spec: str) -> Task:
    """The task that a spec describes."""
    made: Task = tasks.build(spec)
    return made


def model(layout: str, task: Task | str, seed: int | None = None) -> Model:
    """The model that a layout line describes, with input and output for a task."""
    made: Task = tasks.build(task) if isinstance(task, str) else task
    return build_model(layout, made.vocabulary, made.classes, seed)
