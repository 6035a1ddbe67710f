"""The short way from a line of notation to the thing itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.models import Model, build_model
from outlast.registry import tasks
from outlast.tasks import Task

if TYPE_CHECKING:
    from outlast.evaluation.ladder import Row


def task(spec: str) -> Task:
    """The task that a spec describes."""
    made: Task = tasks.build(spec)
    return made


def model(layout: str, task: Task | str, seed: int | None = None) -> Model:
    """The model that a layout line describes, with input and output for a task."""
    made: Task = tasks.build(task) if isinstance(task, str) else task
    return build_model(layout, made.vocabulary, made.classes, seed)


def fit(
    task: str,
    model: str,
    out: str | Path,
    methods: str | Sequence[str] = (),
    seeds: Sequence[int] = range(10),
    device: str = "auto",
    overwrite: bool = False,
    **settings: Any,
) -> list[Row]:
    """Train all seeds of a model together and test them; a row for each seed and length.

    As `outlast train` does, whose options `settings` are: ``steps=2000, lr=3e-3``. The folder `out`
    is a run like any other, for `outlast.load`, `outlast.report` and the command line.
    """
    from outlast.evaluation.run import evaluate_run
    from outlast.train.session import begin, go_on, pick_device
    from outlast.train.settings import RunSpec, Settings

    folder, where = Path(out), pick_device(device)
    own = Settings.read(asdict(Settings()) | settings)
    used = (methods,) if isinstance(methods, str) else tuple(methods)
    run = RunSpec(task, model, used, tuple(seeds), own, folder.name)
    begin(run, folder, where, overwrite)
    if not go_on(folder, where):
        raise KeyboardInterrupt(f"{folder} is saved; 'outlast resume {folder}' goes on")
    return evaluate_run(folder, device=where)
