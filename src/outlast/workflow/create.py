"""Creating runs: from a spec to a run folder with its record in it."""

from __future__ import annotations

import logging
import platform
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from outlast.errors import about, bad_value, conflict, incompatible
from outlast.evaluation.ladder import out_of_reach, rungs
from outlast.machine import device_name
from outlast.methods.base import Control
from outlast.models import Model, build_model
from outlast.models.build import canonical_layout
from outlast.registry import methods, tasks
from outlast.runs.folder import RUN, copying, locked, remove_outcomes, require_free_folder
from outlast.runs.records import CorpusRecord, RunRecord, Shown, write_run
from outlast.runs.spec import NEVER, RunSpec
from outlast.tasks import Task
from outlast.train.memory import check_data, check_weights
from outlast.train.plan import setup
from outlast.version import __version__
from outlast.workflow.start import check_start, write_start

log = logging.getLogger(__name__)


def canonical(run: RunSpec) -> RunSpec:
    """The same run with every spec written out in full; bad specs are errors here."""
    by_name: dict[str, str] = {}
    for method in run.methods:
        name = methods.canonical(method).name
        if name in by_name:
            raise conflict(f"method {name}", by_name[name], method)
        by_name[name] = method
    return replace(
        run,
        task=str(tasks.canonical(run.task, full=True)),
        model=str(canonical_layout(run.model, full=True)),
        methods=tuple(str(methods.canonical(m, full=True)) for m in run.methods),
        settings=replace(
            run.settings,
            warmup=run.settings.warmup_steps,
            stop=str(run.settings.stop_rule or NEVER),
            keep_checkpoints=f"every={every}" if (every := run.settings.keep_every) else NEVER,
        ),
    )


def describe(run: RunSpec, device: str = "", pack: Sequence[str] = ()) -> RunRecord:
    """The record of a run whose specs are canonical; what does not fit together is an error."""
    task: Task = tasks.build(run.task)
    chance = task.chance_levels()  # first: lengths and keys that are too many for memory
    model = build_model(run.model, task.vocabulary, task.classes, seed=0)
    _check_methods(run, task, model)
    _check_stop(run, task, model)
    versions = {name: version(name) for name in ("torch", "numpy", "safetensors")}
    return RunRecord(
        outlast=__version__,
        task=run.task,
        model=run.model,
        methods=run.methods,
        seeds=run.seeds,
        settings=run.settings,
        label=run.label,
        shown=Shown(
            str(tasks.canonical(run.task)),
            str(canonical_layout(run.model)),
            tuple(map(_short, run.methods)),
        ),
        parts=task.parts,
        auxiliary=task.auxiliary,
        length=task.lengths[1],
        parameters=model.size,
        chance=chance,
        corpus=CorpusRecord(task.checksum, task.baselines()) if task.checksum else None,
        versions={"python": platform.python_version()} | versions,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        device=device,
        pack=tuple(pack),
        start_from=run.start_from,
    )


def _short(method: str) -> str:
    return str(methods.canonical(method))


def _check_methods(run: RunSpec, task: Task, model: Model) -> None:
    """A method that does not go with the task or the model is an error or a warning now."""
    known = setup(run.settings, task, model)
    for spec in run.methods:
        method, control = methods.build(spec), Control.plain(known)
        with about(methods.kind, method.spec.name):
            method.check(known)
            method.control(0, method.begin(known), control)
        if method.restarts and run.start_from is not None:
            reason = "a retry draws fresh weights: take otherwise=wait or otherwise=switch"
            raise incompatible(_short(spec), f"start_from={run.start_from.run}", reason)
        if control.span and not model.uses_positions:
            log.warning("%s: nothing in this model asks where a token stands", method.spec.name)


def _check_stop(run: RunSpec, task: Task, model: Model) -> None:
    """A length that cannot be probed is none to succeed at."""
    rule = run.settings.stop_rule
    if rule is not None and task.measure == "bits":
        why = "a test of text gives bits per byte, and no answers that are right"
        raise incompatible(f"stop={run.settings.stop}", f"task={task.name}", why)
    if rule is not None:
        ((_, length),) = rungs(task, (rule.at,))
        reason = out_of_reach(task, length, model.ceiling)
        if reason is not None:
            raise bad_value("stop: at", rule.at, f"a multiple that can be tested: {reason}")


def create_runs(
    runs: Sequence[tuple[RunSpec, Path]],
    device: torch.device,
    overwrite: bool = False,
    grid: Path | None = None,
    pack: Sequence[str] = (),
) -> None:
    """Make the folders of new runs, or of none: what is wrong with one is an error before that.

    `grid` is the folder that holds them all, if there is one. `pack` are the names of all runs that
    are trained together, in order; their records say so, for `resume`.
    """
    name = device_name(device)
    records = [(folder, describe(canonical(run), name, pack)) for run, folder in runs]
    for folder, record in records:
        require_free_folder(folder, overwrite, resume=grid)
        if record.start_from is not None:
            check_start(record.spec, record.start_from, folder)
    for (run, _), (_, record) in zip(runs, records, strict=True):
        check_weights(record.parameters, len(run.seeds), device)
        check_data(tasks.build(run.task), len(run.seeds), run.settings, device)
    with ExitStack() as locks:
        for folder, _ in records:
            locks.enter_context(locked(folder))
            require_free_folder(folder, overwrite, resume=grid)  # another process may be faster
        for folder, _ in records:
            remove_outcomes(folder)
        started = any(record.start_from is not None for _, record in records)
        if len(records) > 1 or started:  # so that a kill leaves no old record among new ones
            for folder, _ in records:
                (folder / RUN).unlink(missing_ok=True)
        for folder, record in records:
            if record.start_from is not None:
                locks.enter_context(copying(folder))
                write_start(record.spec, record.start_from, folder)
        for folder, record in records:
            write_run(folder, record)  # last: without it a folder is not taken for a run
