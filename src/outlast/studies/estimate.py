"""How long the arms of a study would train, by a few steps of each kind of arm.

Arms of one model, task and batch are one kind. A kind is timed for two steps. Where that would take
too long, one seed is timed with two small batches, and a line through both gives the rest. When the
time for timing is spent, the other kinds are estimated by their size. Methods are left out: a step
of a method that skips attention is shorter.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from outlast.errors import short_of_memory
from outlast.machine import precision, usable_threads
from outlast.registry import tasks
from outlast.runs.spec import RunSpec, Settings
from outlast.studies.base import Arm, Study
from outlast.train.trainer import Trainer
from outlast.workflow.create import canonical, describe

#: seconds after which no other kind of arm is timed
BUDGET = 5.0
#: steps that are timed, after as many to warm up
STEPS = 2
#: sequences in the two small batches
FEW, MORE = 4, 16


@dataclass(frozen=True)
class Estimate:
    """Seconds that training takes, if any kind of arm was timed; `timed` of `kinds` were."""

    seconds: float | None
    timed: int
    kinds: int
    device: str

    def __str__(self) -> str:
        if self.seconds is None:
            return "no estimate of the time: nothing could be timed"
        kinds = "the arm" if self.kinds == 1 else f"each of {self.kinds} kinds of arm"
        if self.timed < self.kinds:
            kinds = f"{self.timed} of {self.kinds} kinds of arm (the others by their size)"
        return (
            f"about {rough(self.seconds)} of training on {self.device}, by {STEPS} timed steps of "
            f"{kinds}. Tests come on top; arms that skip a part are faster."
        )


def rough(seconds: float) -> str:
    """A time with no more digits than an estimate has: ``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{max(1.0, seconds):.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.2g} h" if hours < 48 else f"{hours / 24:.0f} days"


def estimate(arms: Sequence[Arm], device: torch.device, workers: int) -> Estimate:
    """The time that the arms train, so many side by side; on a GPU they share the card."""
    at_once = max(1, min(workers, len(arms))) if device.type == "cpu" else 1
    kinds = {kind(arm.run): arm.run for arm in arms}
    threads, before = max(1, usable_threads() // at_once), torch.get_num_threads()
    end, by_kind = time.monotonic() + BUDGET, {}
    torch.set_num_threads(threads)
    try:
        for key, run in kinds.items():
            left = end - time.monotonic()
            seconds = seconds_of_step(run, device, left) if left > 0 else None
            if seconds is not None:
                by_kind[key] = seconds
    finally:
        torch.set_num_threads(before)
    total = None
    if by_kind:
        rate = sum(by_kind.values()) / sum(size(kinds[key]) for key in by_kind)
        steps = {key: by_kind.get(key, rate * size(run)) for key, run in kinds.items()}
        times = [arm.run.settings.steps * steps[kind(arm.run)] for arm in arms]
        total = makespan(times, at_once)
    return Estimate(total, len(by_kind), len(kinds), str(device))


def describe_tests(arms: Sequence[Arm], study: Study) -> str:
    """The longest rows that are tested, which may take longer than training does."""
    tests = []
    for arm in arms:
        task = tasks.build(arm.run.task)
        items = task.lengths[1] * max(arm.ladder or study.ladder)
        count = arm.sequences or study.sequences
        tests.append((task.tokens(int(items)), count, arm.name))
    tokens, count, name = max(tests)
    return f"The longest tests: {count:,} rows of {tokens:,} tokens for each seed of {name}."


def makespan(times: Sequence[float], at_once: int) -> float:
    """When the last of some jobs ends that are begun in order, so many side by side."""
    ends = [0.0] * at_once
    for seconds in times:
        ends[ends.index(min(ends))] += seconds
    return max(ends)


def kind(run: RunSpec) -> tuple[object, ...]:
    """What decides how long a step takes."""
    full = canonical(run)
    settings = full.settings
    return full.task, full.model, settings.batch_size, settings.precision, len(full.seeds)


def size(run: RunSpec) -> float:
    """What a step's time grows with, roughly: weights times tokens, over all seeds."""
    task = tasks.build(run.task)
    tokens = task.tokens(task.lengths[1]) * run.settings.batch_size * len(run.seeds)
    return float(describe(canonical(replace(run, methods=()))).parameters * tokens)


def seconds_of_step(run: RunSpec, device: torch.device, limit: float) -> float | None:
    """Seconds of one step of all seeds; None if memory does not suffice here and now."""
    rows = run.settings.batch_size * len(run.seeds)
    try:
        few, more = (_timed(run, device, run.seeds[:1], batch) for batch in (FEW, MORE))
        seconds = few + max(0.0, more - few) / (MORE - FEW) * max(0, rows - FEW)
        if 2 * STEPS * seconds < limit:
            seconds = _timed(run, device, run.seeds, run.settings.batch_size)
    except (MemoryError, RuntimeError) as error:
        if not short_of_memory(error):
            raise
        return None
    return seconds


def _timed(run: RunSpec, device: torch.device, seeds: Sequence[int], batch: int) -> float:
    """Seconds of a step, from the second of two short blocks: the first one warms up."""
    settings = Settings(
        steps=10 * STEPS,
        batch_size=batch,
        precision=run.settings.precision,
        steps_per_block=STEPS,
        probe_every=0,
        checkpoint_every=100 * STEPS,
    )
    trial = canonical(RunSpec(run.task, run.model, (), tuple(seeds), settings))
    with TemporaryDirectory() as folder, precision(settings.precision, device):
        trainer = Trainer([(trial, Path(folder))], device)
        try:
            trainer.train(blocks=1)
            begun = time.monotonic()
            trainer.train(blocks=1)
            return (time.monotonic() - begun) / STEPS
        finally:
            trainer.close()
