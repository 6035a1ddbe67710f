"""Loading trained runs: the weights of some seeds, without an optimiser and without the others."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from outlast.arguments import as_path, as_whole
from outlast.errors import OutlastError, RunFolderError, bad_value
from outlast.methods.base import Control
from outlast.models import Model
from outlast.registry import methods, tasks
from outlast.runs.checkpoint import (
    AVERAGE,
    WEIGHTS,
    TrainingState,
    load_checkpoint,
    require_checkpoint,
    restore,
)
from outlast.runs.folder import CHECKPOINT, RUN, kept_files
from outlast.runs.kept import load_kept, seeds_at
from outlast.runs.records import RunRecord, read_run
from outlast.runs.spec import RunSpec
from outlast.tasks import Task
from outlast.train.plan import MethodStates, setup
from outlast.train.predictor import Predictor
from outlast.train.seeds import StackedModel, decay_among

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainedRun:
    """Some seeds of a run as a checkpoint left them, with the weights to test with."""

    run: RunSpec
    state: TrainingState
    model: StackedModel
    #: what the methods want of each seed now, or wanted when it came to rest
    controls: list[Control]

    @property
    def unfinished(self) -> str:
        """How far an unfinished run is, ``step 600 of 3,000``; nothing for one at its end."""
        steps = self.run.settings.steps
        return "" if self.state.is_at_end(steps) else f"step {self.state.step:,} of {steps:,}"

    def predictor(self) -> Predictor:
        """Tokens (batch, tokens) to logits (S, batch, tokens, outputs)."""
        return self.model.predictor(self.controls, self.model.named(self.model.table))


def open_run(
    folder: Path,
    device: torch.device,
    seeds: Sequence[int] | None = None,
    step: int | None = None,
    averaged: bool = True,
) -> TrainedRun:
    """Some seeds of a run, by default all, for testing; nothing in the folder is changed.

    Only the weights of those seeds are read, or the average of the weights where one is kept and
    `averaged` asks for it. They are those of the last checkpoint, or of a `step` at which weights
    were kept; a file of a switch has only the seeds that switched then.
    """
    record, path = read_run(folder), folder / CHECKPOINT
    run = record.spec
    if step is None:
        require_checkpoint(folder)
    task = tasks.build(run.task)
    check_corpus(folder, record, task)
    if record.parts not in ((), task.parts):
        accepted = f"those of its task, {', '.join(task.parts)}"
        raise RunFolderError(f"{folder / RUN}: {bad_value('parts', record.parts, accepted)}")
    if step is not None and seeds is None:
        seeds = seeds_at(folder, step, run)
    model = StackedModel(run.model, task, seeds or run.seeds, device, initialise=False)
    built = [methods.build(method) for method in run.methods]
    decay = decay_among(built) if averaged else None

    def is_wanted(name: str) -> bool:
        return name.startswith(WEIGHTS) or (name == AVERAGE and decay is not None)

    if step is not None:
        tensors, state = load_kept(folder, step, run, seeds, is_wanted)
        path = kept_files(folder).get(step, path)
    else:
        rows = None if seeds is None else [run.seeds.index(seed) for seed in seeds]
        tensors, state = load_checkpoint(folder, is_wanted, rows, run)
        if rows is not None and seeds is not None:
            state = state.of_seeds(rows, seeds)
    run = run if seeds is None else replace(run, seeds=tuple(seeds))
    for name, target in model.named(model.table).items():
        restore(target, tensors, f"{WEIGHTS}{name}", path)
    if decay is not None:
        average = torch.zeros_like(model.table)
        restore(average, tensors, AVERAGE, path)
        model.table.copy_(model.corrected_average(average, state.averaged, decay))
    states = MethodStates(built, setup(run.settings, task, model.model), run)
    states.check(state.methods, state.step, path)
    states.states = state.methods
    controls = [states.control(_resting_step(state, row), row) for row in range(len(run.seeds))]
    return TrainedRun(run, state, model, controls)


def check_corpus(folder: Path, record: RunRecord, task: Task) -> None:
    """Refuse a run whose text is not what it was when the run was created."""
    if record.corpus is not None and record.corpus.checksum != task.checksum:
        raise RunFolderError(
            f"{folder}: the text of {record.short.task} has changed since the run was created (its "
            f"checksum was {record.corpus.checksum} and is {task.checksum}). Put the text back, or "
            f"train anew with --overwrite"
        )


def _resting_step(state: TrainingState, row: int) -> int:
    """The step whose weights a seed has: where it came to rest, or where the run is."""
    for step in (state.parked[row], state.succeeded[row]):
        if step is not None:
            return step
    return state.step


def load(folder: str | Path, seed: int | None = None, step: int | None = None) -> Model:
    """The trained model of one seed of a run, ready to use (the first seed if none is named).

    Args:
        folder: The run folder.
        seed: One of the run's seeds. Only its weights are read.
        step: A step at which weights were kept (``keep_checkpoints``); by default the last one.
    """
    folder = as_path("folder", folder)
    seed = None if seed is None else as_whole("seed", seed, 0)
    step = None if step is None else as_whole("step", step, 0)
    seeds = read_run(folder).seeds
    if seed is not None and seed not in seeds:
        raise OutlastError(f"seed={seed}: {folder} has the seeds {', '.join(map(str, seeds))}")
    trained = open_run(folder, torch.device("cpu"), [seeds[0] if seed is None else seed], step)
    if step is None and trained.unfinished:
        log.warning("%s is unfinished: these are the weights of %s", folder, trained.unfinished)
    model, (control,) = trained.model.model, trained.controls
    weights = trained.model.named(trained.model.table)
    model.load_state_dict({name: weight[0] for name, weight in weights.items()})
    for sublayer in model.sublayers():
        sublayer.set_gate(control.gate[sublayer.pathway])
        sublayer.set_upstream_grad(1.0)
        sublayer.lends_bias = False  # from here on it may be hooked on to
    model.span = control.span
    return model.eval()
