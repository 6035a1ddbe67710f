"""The training loop, for all seeds of one run or of several runs at once. As pseudocode::

    rows = a row for each seed of each run; from the runs' records, or from their checkpoints
    for each block of 50 steps:
        plan  = what the methods want of each seed      (gates, rates, loss weights, lengths)
        data  = fresh sequences for each seed           (a pure function of seed and block)
        for each step: forward, losses by part, backward, AdamW       (never waits for the host)
        losses of the block -> metrics.jsonl, methods' triggers, progress; parked is who is broken
        now and then: probe accuracy at 1 x and 3 x, save a checkpoint

The host looks at the device once a block. Runs trained together share the task, the model, the
batch and the block; learning rate, decay, clipping, methods, seeds and the number of steps are
each run's own, and so is its folder. What a run gives is the same as alone, to float32 rounding;
going on with the same runs together is bit for bit as if they had not been stopped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from outlast.evaluate.ladder import evaluate_stack
from outlast.streams import stream
from outlast.tasks import IGNORE, Batch
from outlast.train.loop import Progress, Trainer, tester, widen
from outlast.train.memory import DRY, even, fit
from outlast.train.plan import Plan, pad_steps
from outlast.train.rows import Rows
from outlast.train.settings import RunSpec
from outlast.train.step import Stepper

log = logging.getLogger(__name__)
PROBE_SEQUENCES = 128
PROBE_MULTIPLES = (1, 3)
Watch = Callable[[Trainer, Progress], None]


class Fleet:
    """Runs that are trained together, each in its folder."""

    def __init__(self, runs: Sequence[tuple[RunSpec, Path]], device: torch.device) -> None:
        self.device = device
        self.rows = Rows.make([run for run, _ in runs], device)
        self.trainers: list[Trainer] = []
        self.slices: list[slice] = []
        for run, folder in runs:
            begin = self.slices[-1].stop if self.slices else 0
            self.slices.append(slice(begin, begin + len(run.seeds)))
            own = self.rows.part(self.slices[-1])
            self.trainers.append(Trainer(run, folder, device, own))
        first = self.trainers[0]
        self.task, self.bf16 = first.task, first.settings.precision == "bf16"
        self.waves: list[tuple[slice, Stepper]] = []
        self.set_waves([slice(0, len(self.rows))])

    def set_waves(self, waves: Sequence[slice]) -> None:
        """Step these rows one after the other, instead of all at once."""
        # graphs that never run at the same time, and leave nothing behind, may share their memory
        pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        parts = [self.rows.part(wave) if len(waves) > 1 else self.rows for wave in waves]
        steppers = [Stepper(part, self.task.parts, self.bf16, pool) for part in parts]
        self.waves = list(zip(waves, steppers, strict=True))

    def fit(self, share: float = 1.0) -> str:
        """Choose the waves so that a step fits in memory; returns how many at once and why."""
        settings = self.trainers[0].settings
        shape = (min(len(self.rows), DRY), settings.batch)
        some = stream(self.device, "dry step")
        data = self.task.sample(self.task.lengths[1], shape[0] * shape[1], some)
        told = [t.settings.together for t in self.trainers if t.settings.together]
        found = fit(
            self.rows,
            Batch(*(t.unflatten(0, shape) for t in (data.inputs, data.targets, data.part))),
            len(self.task.parts),
            self.bf16,
            settings.block,
            min(told, default=0),
            share,
            any(t.control(row).span for t in self.trainers for row in range(len(t.run.seeds))),
        )
        self.set_waves(found.waves)
        return found.why

    def resume(self) -> None:
        """Go to each run's last checkpoint, or stay at its very beginning."""
        for trainer in self.trainers:
            trainer.resume()

    def train(self, watch: Watch | None = None, stop: Callable[[], bool] = lambda: False) -> bool:
        """Train every run to its end, or until `stop` asks to leave; True when all have ended.

        A run that has no seed left ends too, with its `failure` set.
        """
        started, first = time.monotonic(), [t.step for t in self.trainers]
        for trainer in self.trainers:
            trainer.cut_back()
        while going := [t for t in self.trainers if t.going]:
            if stop():
                for trainer in going:
                    trainer.save()
                return False
            self.block()
            spent = time.monotonic() - started
            for trainer in going:
                if trainer.failure is not None:
                    continue
                done = trainer.step - first[self.trainers.index(trainer)]
                left = trainer.settings.steps - trainer.step
                if watch is not None:
                    watch(trainer, trainer.progress(spent / done * left))
                if trainer.step % trainer.settings.checkpoint == 0 or not left:
                    trainer.save()
        return True

    def block(self) -> None:
        """One block of steps of every run that is still going."""
        going = [t.going for t in self.trainers]
        asked = [t.next_block() for t in self.trainers]
        plan, data = Plan.join([p for p, _ in asked]), join([d for _, d in asked])
        before = self.rows.copy()
        metrics = self._steps(data, plan, before)
        lines = {}
        for index, trainer in enumerate(self.trainers):
            if going[index]:
                rows, (own, _) = self.slices[index], asked[index]
                given = metrics[: len(own.alive), rows]
                lines[index] = trainer.take(given, own, [table[rows] for table in before])
        self._probe(lines)
        for index, found in lines.items():
            self.trainers[index].write(found)

    def _steps(self, data: Batch, plan: Plan, before: Sequence[Tensor]) -> Tensor:
        """The steps of a block, wave by wave; in smaller waves if memory turns out to be short."""
        while True:
            try:
                return torch.cat([self._run(wave, at, data, plan) for at, wave in self.waves], 1)
            except torch.OutOfMemoryError:
                largest = max(at.stop - at.start for at, _ in self.waves)
                if largest == 1:
                    raise
                self.rows.put_back(before)
                self.set_waves(even(len(self.rows), largest // 2))
                log.info("memory is short: seeds in %d waves from here on", len(self.waves))

    def _run(self, stepper: Stepper, rows: slice, data: Batch, plan: Plan) -> Tensor:
        if len(self.waves) == 1:
            return stepper.run(data, plan).cpu()
        tables = (t[:, rows].contiguous() for t in (data.inputs, data.targets, data.part))
        return stepper.run(Batch(*tables), plan.rows(rows)).cpu()

    @torch.no_grad()
    def _probe(self, lines: dict[int, list[dict[str, object]]]) -> None:
        """A quick look at joint accuracy at and beyond the training length, of those due."""
        due = [i for i in lines if _is_due(self.trainers[i])]
        for step in sorted({self.trainers[i].step for i in due}):
            found = evaluate_stack(
                tester(self.rows.stack, self.trainers),
                len(self.rows),
                self.task,
                PROBE_MULTIPLES,
                PROBE_SEQUENCES,
                self.device,
                self.rows.stack.model.ceiling,
                variants=False,
                stream_name=f"probe {step}",
            )
            for index in due:
                trainer = self.trainers[index]
                if trainer.step == step:
                    lines[index] += trainer.note_probe(found[self.slices[index]])


def _is_due(trainer: Trainer) -> bool:
    every = trainer.settings.probe
    return bool(every) and trainer.step % every == 0 and trainer.failure is None


def join(batches: Sequence[Batch]) -> Batch:
    """The data of several runs side by side, each (steps, S, batch, tokens)."""
    if len(batches) == 1:
        return batches[0]
    steps = max(len(b.inputs) for b in batches)
    widest = max(b.inputs.shape[-1] for b in batches)
    wide = [widen(b, widest) for b in batches]

    def table(name: str, value: float) -> Tensor:
        return torch.cat([pad_steps(getattr(b, name), steps, value) for b in wide], 1)

    return Batch(table("inputs", 0), table("targets", IGNORE), table("part", -1))
