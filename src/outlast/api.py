"""The short way from a line of notation to the thing itself.

What a user passes is checked here. An error names the argument, the value and what is accepted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import islice
from os import PathLike
from typing import Any, Literal, overload

import numpy as np
import torch

from outlast.arguments import as_path, as_whole, check_flag, shown
from outlast.errors import OutlastError, RunFolderError, SpecError, bad_value, incompatible
from outlast.machine import pick_device
from outlast.methods import Method
from outlast.models import Model, build_model
from outlast.models.presets import find_training
from outlast.registry import tasks
from outlast.runs.folder import RESULTS, has_file
from outlast.runs.grids import run_folders
from outlast.runs.records import ResultRow, read_results
from outlast.runs.spec import MOST_SEEDS, RENAMED, RunSpec, Settings, read_seeds
from outlast.specs import Layout, Spec, parse
from outlast.tasks import Task
from outlast.workflow.create import create_runs
from outlast.workflow.presets import on_task
from outlast.workflow.progress import with_progress
from outlast.workflow.start import read_origin, read_start
from outlast.workflow.train import Listener, Listeners, train_and_evaluate

log = logging.getLogger(__name__)

#: far more methods than can be combined
MOST_METHODS = 100
#: torch takes seeds of 64 bits
MOST_SEED = 2**64 - 1


class RunRow(ResultRow):
    """A row of results, with the name of the run folder that it is from."""

    run: str


def task(spec: str | Spec | Task) -> Task:
    """The task that a spec describes."""
    if isinstance(spec, Task):
        return spec
    if not isinstance(spec, str | Spec):
        raise bad_value("spec", shown(spec), "a task's line, such as parity(length=40)")
    built: Task = tasks.build(spec)
    return built


def model(layout: str | Layout, task: str | Spec | Task, seed: int | None = None) -> Model:
    """The model that a layout line describes, with input and output for a task.

    Args:
        layout: The model line, such as "4 x (lstm > attention > mlp) @ 128".
        task: The task or its line.
        seed: The weights are drawn from it alone. Without a seed they are drawn from torch's global
            random state.
    """
    built = tasks.build(_task_line(task)) if not isinstance(task, Task) else task
    whole = None if seed is None else as_whole("seed", seed, 0, MOST_SEED)
    return build_model(_model_line(layout, "layout"), built.vocabulary, built.classes, whole)


def fit(
    task: str | Spec | Task | None = None,
    model: str | Layout | None = None,
    out: str | PathLike[str] | None = None,
    methods: str | Spec | Method | Sequence[str | Spec | Method] | None = None,
    seeds: str | Iterable[int] | None = None,
    device: str | torch.device = "auto",
    overwrite: bool = False,
    progress: bool | None = None,
    callbacks: Sequence[Listener] = (),
    preset: str | Spec | None = None,
    start_from: str | PathLike[str] | None = None,
    **settings: Any,
) -> list[ResultRow]:
    """Train all seeds of a model together and test them; a row for each seed and length.

    The folder `out` is a run like any other, for `outlast.load`, `outlast.results`,
    `outlast.report` and the command line. Task, model and folder are needed; with a preset, the
    folder alone.

    Args:
        task: What to learn: a line such as "composite(modulus=10)", or a task of `outlast.task`.
        model: The model: a line such as "4 x (lstm > attention > mlp) @ 128", or a `Layout`. Each
            seed draws its own weights.
        out: The run folder to make.
        methods: What changes while training, such as "dat"; one or several, or ``()`` for none.
        seeds: Trained together: numbers, or a line such as "0-4". By default 0 to 9, or those of
            the run that is started from.
        device: auto, cpu, cuda, cuda:1 ...
        overwrite: Replace a run that is already in the folder.
        progress: Whether progress is shown on stderr; by default on a terminal or in a notebook.
        callbacks: Are told what happens: objects of subclasses of `outlast.Listener`, such as
            ``outlast.track("tensorboard")``.
        preset: A whole training in one word, such as "reach": task, model, methods and settings, as
            far as they are not given.
        start_from: The folder of a finished run. The same seeds begin with its last weights. Task,
            model, seeds and precision are its own, as far as they are not given; the optimiser is
            fresh.
        settings: The numbers of training, as `outlast train` has them: ``steps=2000, lr=3e-3``.
    """
    check_flag("overwrite", overwrite)
    if progress is not None:
        check_flag("progress", progress)
    listener = Listeners(_read_callbacks(callbacks))
    folder, picked = as_path("out", out), _read_device(device)
    whole = None if preset is None else _read_preset(preset)
    if whole is not None:
        whole = whole if task is None else on_task(whole, _task_line(task))
        task = whole.task
        model = whole.model if model is None else model
        methods = whole.methods if methods is None else methods
    default = whole.settings if whole else Settings()
    origin = None if start_from is None else as_path("start_from", start_from)
    if origin is not None:
        if whole is not None:
            reason = "both give task and model; give the settings of the preset one by one"
            raise incompatible(f"preset={preset}", f"start_from={origin}", reason)
        record = read_origin(origin)
        task = record.short.task if task is None else task
        model = record.short.model if model is None else model
        seeds = record.seeds if seeds is None else seeds
        default = Settings(precision=record.settings.precision)
    numbers = _read_seeds(range(10) if seeds is None else seeds)
    run = RunSpec(
        _task_line(task),
        str(_model_line(model, "model")),
        _method_lines(() if methods is None else methods),
        numbers,
        _read_settings(settings, default),
        folder.name,
        None if origin is None else read_start(origin, numbers),
    )
    create_runs([(run, folder)], picked, overwrite)
    with with_progress(listener, progress) as watching:
        outcome = train_and_evaluate([folder], picked, watching)
    if not outcome.ended:
        raise KeyboardInterrupt(f"{folder} is saved; 'outlast resume {folder}' goes on")
    if outcome.failures[0] is not None:
        raise outcome.failures[0]
    return list(read_results(folder / RESULTS).rows)


@overload
def results(folder: str | PathLike[str], as_frame: Literal[False] = False) -> list[RunRow]: ...


@overload
def results(folder: str | PathLike[str], as_frame: Literal[True]) -> Any: ...


def results(folder: str | PathLike[str], as_frame: bool = False) -> Any:
    """The results in a folder: a row for each run, seed and length.

    Args:
        folder: A run folder, or the folder of a grid or a study. Runs that are not tested yet are
            left out with a warning.
        as_frame: Return a table of pandas, one row for each of them. ``exact``, ``answers`` and
            ``bits`` are then columns such as ``exact_joint``.
    """
    path = as_path("folder", folder)
    check_flag("as_frame", as_frame)
    frame = _data_frame() if as_frame else None
    folders = run_folders(path, of_studies=True)
    untested = [run for run in folders if not has_file(run, RESULTS)]
    if len(untested) == len(folders):
        raise RunFolderError(f"{path} has no {RESULTS}: it is not tested yet")
    if untested:
        log.warning(
            "%s: not tested yet, so left out: %s", path, ", ".join(run.name for run in untested)
        )
    rows: list[RunRow] = []
    for run in folders:
        if run not in untested:
            name = run.resolve().name
            rows += [{"run": name, **row} for row in read_results(run / RESULTS).rows]
    return rows if frame is None else frame([_flat(row) for row in rows])


def _data_frame() -> Any:
    try:
        import pandas
    except ImportError:
        raise OutlastError(
            "as_frame=True: expected pandas to be installed (pip install pandas); "
            "without it, as_frame=False returns a list of rows"
        ) from None
    return pandas.DataFrame


def _flat(row: RunRow) -> dict[str, Any]:
    """A row with a column for each part."""
    values: dict[str, Any] = {}
    for name, value in row.items():
        if name in ("exact", "answers", "bits", "bytes", "positions"):
            shares = value if isinstance(value, dict) else {}
            values |= {f"{name}_{part}": share for part, share in shares.items()}
        else:
            values[name] = value
    return values


# ---- arguments -----------------------------------------------------------------------------------


def _task_line(task: object) -> str:
    if isinstance(task, str | Spec):
        return str(task)
    if not isinstance(task, Task):
        raise bad_value("task", shown(task), "a task or its line, such as parity(length=40)")
    if not isinstance(getattr(task, "spec", None), Spec):
        accepted = "a task that outlast.task(...) built: a run folder records its line"
        raise bad_value("task", shown(task), accepted)
    return str(task.spec)


def _model_line(layout: object, field: str) -> str | Layout:
    if isinstance(layout, str | Layout):
        return layout
    accepted = "a model line, such as 4 x (lstm > mlp) @ 64, or a Layout"
    if isinstance(layout, Model):
        raise bad_value(field, "a built model", f"{accepted}: every seed draws its own weights")
    raise bad_value(field, shown(layout), accepted)


def _method_lines(methods: object) -> tuple[str, ...]:
    error = bad_value("methods", shown(methods), "a method's line such as dat, or several")
    several = isinstance(methods, Iterable) and not isinstance(methods, str | bytes)
    try:  # there may be no end of them
        first = list(islice(methods, MOST_METHODS + 1)) if several else [methods]  # type: ignore[call-overload]
    except (TypeError, RuntimeError):  # an array without an axis
        raise error from None
    if len(first) > MOST_METHODS:
        raise bad_value("methods", shown(methods), f"at most {MOST_METHODS} of them")
    lines = []
    for method in first:
        line = method.spec if isinstance(method, Method) else method
        if not isinstance(line, str | Spec):
            raise error
        lines.append(str(line))
    return tuple(lines)


def _read_callbacks(callbacks: object) -> list[Listener]:
    accepted = "a list of objects of subclasses of outlast.Listener"
    if not isinstance(callbacks, list | tuple):
        raise bad_value("callbacks", shown(callbacks), accepted)
    for callback in callbacks:
        if not isinstance(callback, Listener):
            raise bad_value("callbacks", shown(callback), accepted)
    # what is said about all runs goes to the log if nobody listens
    return list(callbacks) or [Listener()]


def _read_seeds(seeds: object) -> tuple[int, ...]:
    if isinstance(seeds, str):
        seeds = read_seeds(seeds)
    accepted = "different whole numbers >= 0, such as range(10), or a line such as '0-4'"
    if isinstance(seeds, bytes) or not isinstance(seeds, Iterable):
        raise bad_value("seeds", shown(seeds), accepted)
    try:
        first = list(islice(seeds, MOST_SEEDS + 1))  # there may be no end of them
    except (TypeError, RuntimeError):  # an array without an axis, a nested tensor
        raise bad_value("seeds", shown(seeds), accepted) from None
    if len(first) > MOST_SEEDS:
        raise bad_value("seeds", shown(seeds), f"at most {MOST_SEEDS:,} of them")
    return tuple(as_whole("seeds", seed, 0, MOST_SEED) for seed in first)


def _read_preset(preset: object) -> RunSpec:
    if not isinstance(preset, str | Spec):
        raise bad_value("preset", shown(preset), "a preset that is a whole training, such as reach")
    return find_training(parse(preset))


def _read_settings(settings: dict[str, Any], default: Settings) -> Settings:
    plain = {n: v.item() if isinstance(v, np.generic) else v for n, v in settings.items()}
    for name in ("method", "seed"):
        if name in plain:
            raise SpecError(f"fit has no argument {name!r}; did you mean '{name}s'?")
    for name, value in plain.items():
        if not isinstance(value, str | int | float | None):
            raise bad_value(name, shown(value), "a number, a word or true | false")
    names = {RENAMED.get(name, name) for name in plain}
    others = {name: value for name, value in asdict(default).items() if name not in names}
    return Settings.read(others | plain)


def _read_device(device: object) -> torch.device:
    if not isinstance(device, str | torch.device):
        raise bad_value("device", shown(device), "auto | cpu | cuda | cuda:1 ...")
    return pick_device(str(device))
