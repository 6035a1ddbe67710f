"""Runs that begin where another one ended: with the last weights of its seeds.

Weights alone are taken, those of the last checkpoint and not their average. Optimiser, schedule and
methods begin anew. The weights are copied into a checkpoint at step 0 of the new run, so from there
it is resumed like any other, also if the other run is gone. Its record says what it began from.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import torch
from torch import Tensor

from outlast.errors import RunFolderError, bad_value, incompatible
from outlast.models.build import canonical_layout
from outlast.registry import tasks
from outlast.runs.checkpoint import (
    WEIGHTS,
    load_checkpoint,
    restore,
    row_checksums,
    save_checkpoint,
)
from outlast.runs.folder import CHECKPOINT, RUN, has_file
from outlast.runs.records import RunRecord, read_run
from outlast.runs.spec import RunSpec, Start, seed_words
from outlast.runs.status import finished, own_state
from outlast.tasks import Task
from outlast.train.run_state import RunState
from outlast.train.seeds import SeedState


def read_origin(folder: Path) -> RunRecord:
    """The record of a run that another one is to start from."""
    if not has_file(folder, RUN):
        raise bad_value("start_from", folder, f"the folder of a finished run; it has no {RUN}")
    return read_run(folder)


def read_start(folder: Path, seeds: tuple[int, ...]) -> Start:
    """What a new run of these seeds begins from: the end of the run in a folder."""
    record = read_origin(folder)
    if not has_file(folder, CHECKPOINT):
        raise RunFolderError(f"{folder} has no {CHECKPOINT}: there are no weights to start from")
    state = own_state(folder)
    if not finished(folder):
        raise RunFolderError(
            f"{folder} is at step {state.step:,} of {record.settings.steps:,}: finish it by "
            f"'outlast resume {folder}' before another run starts from it"
        )
    pairs = zip(record.seeds, state.parked, strict=True)
    sound = [seed for seed, parked in pairs if parked is None]
    if not set(seeds) <= set(sound):
        diverged = set(seeds) & set(record.seeds)
        what = "that have not diverged there" if diverged - set(sound) else "that it has"
        accepted = f"some of the seeds of {folder} {what}: {seed_words(sound) or 'none'}"
        raise bad_value("seeds", seed_words(seeds), accepted)
    return Start(str(folder), state.step, seeds, _checksums(_weights(folder, record, seeds)))


def check_start(run: RunSpec, start: Start, folder: Path) -> None:
    """Refuse a new run in a folder for which the weights that it starts from are not made."""
    origin = Path(start.run)
    record = read_run(origin)
    if folder.resolve() == origin.resolve():
        raise bad_value("out", folder, "another folder than that of the run it starts from")
    place = f"start_from={origin}"
    if not set(run.seeds) <= set(start.seeds):
        raise bad_value("seeds", seed_words(run.seeds), f"some of {seed_words(start.seeds)}")
    if canonical_layout(record.model, full=True) != canonical_layout(run.model, full=True):
        reason = f"its model is {record.short.model}"
        raise incompatible(f"model={canonical_layout(run.model)}", place, reason)
    if reason := _other_tokens(tasks.build(run.task), tasks.build(record.task)):
        reason = f"its task is {record.short.task}, and {reason}"
        raise incompatible(f"task={tasks.canonical(run.task)}", place, reason)


def _other_tokens(task: Task, origin: Task) -> str:
    """Why tokens or answers do not mean the same in two tasks; nothing if they do."""
    for what in ("vocabulary", "classes"):
        count, before = getattr(task, what), getattr(origin, what)
        if count != before:
            kind = "tokens" if what == "vocabulary" else "answers"
            return f"{count} {kind} here are {before} there"
    for token in range(task.vocabulary):
        if (word := task.word(token)) != (other := origin.word(token)):
            return f"token {token} is {word!r} here and {other!r} there"
    return ""


def write_start(run: RunSpec, start: Start, folder: Path) -> None:
    """Write the first checkpoint of a run: the weights it starts from, all else as for any run."""
    origin = Path(start.run)
    weights = _weights(origin, read_run(origin), run.seeds)
    expected = [start.checksums[start.seeds.index(seed)] for seed in run.seeds]
    if list(_checksums(weights)) != expected:
        raise RunFolderError(f"{origin} has changed while {folder} was created: try again")
    state = RunState(run, SeedState.create([run], torch.device("cpu")))
    tensors = state.tensors()
    for name in tensors:
        if name.startswith(WEIGHTS):
            restore(tensors[name], weights, name, origin / CHECKPOINT)
    save_checkpoint(folder, tensors, state.state())


def _weights(folder: Path, record: RunRecord, seeds: tuple[int, ...]) -> dict[str, Tensor]:
    """The last weights of some seeds, (seeds, ...) by name."""
    rows = [record.seeds.index(seed) for seed in seeds]
    return load_checkpoint(folder, lambda n: n.startswith(WEIGHTS), rows, record.spec)[0]


def _checksums(weights: dict[str, Tensor]) -> tuple[str, ...]:
    """One for all weights of each seed."""
    columns = [[f"{name}:{c}" for c in row_checksums(weights[name])] for name in sorted(weights)]
    rows = zip(*columns, strict=True)
    return tuple(f"{zlib.crc32(' '.join(row).encode()):08x}" for row in rows)
