"""The short way from a line of notation to the thing itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outlast.machine import pick_device
from outlast.models import Model, build_model
from outlast.registry import tasks
from outlast.runs.folder import RESULTS
from outlast.runs.records import ResultRow, read_results
from outlast.runs.spec import RunSpec, Settings
from outlast.tasks import Task
from outlast.workflow.create import create_runs
from outlast.workflow.train import train_and_evaluate


def task(spec: str) -> Task:
    """The task that a spec describes."""
    built: Task = tasks.build(spec)
    return built


def model(layout: str, task: Task | str, seed: int | None = None) -> Model:
    """The model that a layout line describes, with input and output for a task."""
    built: Task = tasks.build(task) if isinstance(task, str) else task
    return build_model(layout, built.vocabulary, built.classes, seed)


def fit(
    task: str,
    model: str,
    out: str | Path,
    methods: str | Sequence[str] = (),
    seeds: Sequence[int] = range(10),
    device: str = "auto",
    overwrite: bool = False,
    **settings: Any,
) -> list[ResultRow]:
    """Train all seeds of a model together and test them; a row for each seed and length.

    The folder `out` is a run like any other, for `outlast.load`, `outlast.report` and the command
    line.

    Args:
        task: What to learn, such as "composite(modulus=10)".
        model: The model line, such as "4 x (lstm > attention > mlp) @ 128".
        out: The run folder to make.
        methods: What changes while training, such as "dat"; one or several.
        seeds: Trained together.
        device: auto, cpu, cuda, cuda:1 ...
        overwrite: Replace a run that is already in the folder.
        settings: The numbers of training, as `outlast train` has them: ``steps=2000, lr=3e-3``.
    """
    folder, picked = Path(out), pick_device(device)
    names = (methods,) if isinstance(methods, str) else tuple(methods)
    run = RunSpec(task, model, names, tuple(seeds), Settings.read(settings), folder.name)
    create_runs([(run, folder)], picked, overwrite)
    outcome = train_and_evaluate([folder], picked)
    if not outcome.ended:
        raise KeyboardInterrupt(f"{folder} is saved; 'outlast resume {folder}' goes on")
    if outcome.failures[0] is not None:
        raise outcome.failures[0]
    return list(read_results(folder / RESULTS).rows)
