"""The training loop, for all seeds of one run or of several runs at once. As pseudocode::

    rows = a row for each seed of each run; from the runs' records, or from their checkpoints
    for each block of 50 steps:
        who   = the rows to step: those at rest are left out, where it saves
        plan  = what the methods want of each seed      (gates, rates, loss weights, lengths)
        data  = fresh sequences for each seed           (a pure function of seed and block)
        for each step: forward, losses by part, backward, AdamW       (never waits for the host)
                       (on a CPU by several processes: `train/workers.py`)
        losses of the block -> metrics.jsonl, methods' triggers, progress; parked is who is broken
        now and then: probe accuracy at 1 x and 3 x (who succeeds may rest), save a checkpoint

The host looks at the device once a block. Runs trained together share the task, the model, the
batch and the block; learning rate, decay, clipping, methods, seeds and the number of steps are
each run's own, and so is its folder. What a run gives is the same as alone, to float32 rounding;
going on with the same runs together is bit for bit as if they had not been stopped. Where their
checkpoints are of different steps, a run that is ahead waits for the others, so that they meet at
the steps where they met. The lengths and gates it had at those steps are gone; where they shaped
the work of all (the longest row, a gate that not all had open), a GPU may sum in another order,
and until it has caught up the others are the same to float32 rounding only.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from traceback import clear_frames

import torch
from torch import Tensor

from outlast.errors import RunFolderError, TrainingError, short_of_memory
from outlast.evaluation.ladder import evaluate_stack
from outlast.streams import stream
from outlast.tasks import Batch
from outlast.train.data import join, rows_of
from outlast.train.plan import Plan
from outlast.train.rows import SeedState, rows_to_step
from outlast.train.run_state import Progress, RunState, tester
from outlast.train.settings import RunSpec
from outlast.train.step import Stepper
from outlast.train.stopping import MULTIPLES, SEQUENCES
from outlast.train.waves import DRY, Fit, at_once, bytes_of_data, even, fit
from outlast.train.workers import WorkerPool, process_count, usable_threads

log = logging.getLogger(__name__)
Watch = Callable[[RunState, Progress], None]


class Trainer:
    """Runs that are trained together, each in its folder."""

    def __init__(self, runs: Sequence[tuple[RunSpec, Path]], device: torch.device) -> None:
        self.device = device
        self.rows = SeedState.make([run for run, _ in runs], device)
        self.trainers: list[RunState] = []
        self.slices: list[slice] = []
        for run, folder in runs:
            begin = self.slices[-1].stop if self.slices else 0
            self.slices.append(slice(begin, begin + len(run.seeds)))
            own = self.rows.part(self.slices[-1])
            self.trainers.append(RunState(run, folder, device, own))
        first = self.trainers[0]
        self.task, self.bf16 = first.task, first.settings.precision == "bf16"
        self.chosen = tuple(range(len(self.rows)))
        self.waves: list[slice] = []
        self.steppers: list[Stepper] = []
        self.crew: WorkerPool | None = None
        #: whether every row is what whole blocks have made of it
        self.whole = True
        self.set_waves([slice(0, len(self.rows))])

    def close(self) -> None:
        """End the processes that were started, if any: nothing is stepped until `fit` is asked."""
        if self.crew is not None:
            self.crew.close()

    def set_waves(self, waves: Sequence[slice]) -> None:
        """Step these of the chosen rows one after the other, or each in a process."""
        self.most = at_once(waves, self.beside)
        self._build(waves)

    def _build(self, waves: Sequence[slice]) -> None:
        self.waves = list(waves)
        if self.crew is not None:  # its workers have steppers of their own
            self.steppers = []
            return
        # graphs that never run at the same time, and leave nothing behind, may share their memory
        pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        if not self.compact:
            parts = [self.rows.part(wave) if len(waves) > 1 else self.rows for wave in waves]
        else:
            parts = [self.rows.part(list(self.chosen[wave])) for wave in waves]
        short = all(t.settings.by_length for t in self.trainers)
        self.steppers = [Stepper(part, self.task.parts, self.bf16, pool, short) for part in parts]

    def _even(self, most: int) -> list[slice]:
        """Waves of the chosen rows with so many at once at most."""
        return even(len(self.chosen), most, self.beside)

    @property
    def beside(self) -> int:
        """How many waves are stepped at the same time."""
        return 1 if self.crew is None else len(self.crew.workers)

    @property
    def compact(self) -> bool:
        """Whether some rows are left out."""
        return len(self.chosen) < len(self.rows)

    def choose(self, clock: int) -> None:
        """Leave out rows that rest at a step, where enough do."""
        rests = [t.rests(row) for t in self.trainers for row in range(len(t.run.seeds))]
        chosen = rows_to_step(rests, clock)
        if chosen != self.chosen:
            self.steppers, self.chosen = [], chosen  # what the old ones held is free for the new
            self._build(self._even(self.most))

    def fit(self, share: float = 1.0) -> str:
        """Choose the waves so that a step fits in memory, and processes to step them side by side.

        Returns how many at once and why.
        """
        self.close()
        self.crew = None
        runs, threads = [t.run for t in self.trainers], usable_threads()
        found = self._fit(share, process_count(runs, self.device, threads))
        why = found.why
        if found.processes > 1:
            try:
                self.crew = WorkerPool(runs, found.processes, threads)
            except Exception as error:  # a task of the caller's script, say, that no other has
                found = self._fit(share, 1)
                why = f"{found.why}; not in processes, as they do not start: {error}"
        self.chosen = tuple(range(len(self.rows)))
        self.set_waves(found.waves)
        return why

    def _fit(self, share: float, processes: int) -> Fit:
        settings = self.trainers[0].settings
        shape = (min(len(self.rows), DRY), settings.batch)

        def draw() -> Batch:
            some = stream(self.device, "dry step")
            data = self.task.sample(self.task.lengths[1], shape[0] * shape[1], some)
            return data.map(lambda page: page.unflatten(0, shape))

        told = [t.settings.together for t in self.trainers if t.settings.together]
        return fit(
            self.rows,
            draw,
            bytes_of_data(self.task, len(self.rows), settings),
            len(self.task.parts),
            self.bf16,
            min(told, default=0),
            share,
            any(t.control(row).span for t in self.trainers for row in range(len(t.run.seeds))),
            processes,
        )

    def resume(self) -> None:
        """Go to each run's last checkpoint, or stay at its very beginning."""
        for trainer in self.trainers:
            trainer.resume()

    def train(self, watch: Watch | None = None, stop: Callable[[], bool] = lambda: False) -> bool:
        """Train every run to its end, or until `stop` asks to leave; True when all have ended.

        A run ends early when no seed is left to train: all have succeeded or are parked. Where all
        are parked, its `failure` says so. Whatever goes wrong in a block, those before are saved.
        """
        for trainer in self.trainers:
            trainer.cut_back()
        begun = [t.step for t in self.trainers]
        try:
            return self._train(watch, stop)
        except Exception as error:
            short = short_of_memory(error)
            if short:
                clear_frames(error.__traceback__)  # they hold on to what the step had made
            if not isinstance(error, RunFolderError):  # it would not be written this time either
                self._save_since(begun)
            if not short:
                raise
            others = ", or processes=1" if self.beside > 1 else ""
            raise TrainingError(
                f"the memory of {self.device} does not suffice, even for one seed at a time: take "
                f"a smaller batch (it is {self.trainers[0].settings.batch}), block, model or "
                f"length, or fewer seeds in one run{others} ({error})"
            ) from error

    def _train(self, watch: Watch | None, stop: Callable[[], bool]) -> bool:
        started = time.monotonic()
        begun = first = min((t.step for t in self.trainers if t.going), default=0)
        while going := [t for t in self.trainers if t.going]:
            if stop():
                for trainer in going:
                    trainer.save()
                return False
            at = [t.step for t in going]
            self.block()
            for trainer, before in zip(going, at, strict=True):
                if trainer.step == before:
                    continue
                spent, done = time.monotonic() - started, trainer.step - first
                left = trainer.settings.steps - trainer.step if trainer.going else 0
                if watch is not None:
                    watch(trainer, trainer.progress(spent / done * left))
                if trainer.step % trainer.settings.checkpoint == 0 or not left:
                    trainer.save()
            if first == begun:  # the first block compiles: what is left is told by those after it
                started = time.monotonic()
                first = min((t.step for t in going if t.going), default=begun)
        return True

    def _save_since(self, begun: Sequence[int]) -> None:
        """After an error, save the runs that have come further, if they are sound."""
        for trainer, step in zip(self.trainers, begun, strict=True):
            if self.whole and trainer.step > step:
                try:
                    trainer.save()
                    log.info("%s is saved at step %d", trainer.folder, trainer.step)
                except Exception as another:  # the first is the one to tell
                    log.warning("%s could not be saved: %s", trainer.folder, another)

    def block(self) -> None:
        """One block of steps of the runs that are still going; those ahead wait for the others.

        After an error all is as it was before, or `whole` is false.
        """
        if not self.beside:
            raise TrainingError("the processes that stepped seeds are ended: fit() starts others")
        if not any(t.going for t in self.trainers):
            raise TrainingError("all runs are at their end: there is no block left to train")
        clock = min(t.step for t in self.trainers if t.going)
        due = [t.going and t.step == clock for t in self.trainers]
        self.choose(clock)
        asked = [t.next_block(wait=not now) for t, now in zip(self.trainers, due, strict=True)]
        plan, data = Plan.join([p for p, _ in asked]), join([d for _, d in asked])
        before, states = self.rows.copy(), [json.dumps(t.state()) for t in self.trainers]
        self.whole = False
        try:
            metrics = self._steps(data, plan, before)
            lines = {}
            for index, trainer in enumerate(self.trainers):
                if due[index]:
                    rows, (own, _) = self.slices[index], asked[index]
                    given = metrics[: len(own.alive), rows]
                    lines[index] = trainer.take(given, own, [table[rows] for table in before])
            self._probe(lines)
            for index, found in lines.items():
                self.trainers[index].write(found)
        except Exception:
            with suppress(Exception):  # after some errors of a GPU nothing can be had from it
                self.rows.put_back(before)
                for trainer, state in zip(self.trainers, states, strict=True):
                    trainer.set_state(json.loads(state))
                self.whole = True
            raise
        self.whole = True

    def _steps(self, data: Batch, plan: Plan, before: Sequence[Tensor]) -> Tensor:
        """The steps of a block, wave by wave; in smaller waves if memory turns out to be short."""
        while True:
            try:
                given = self._run_all(data, plan)
                if not self.compact:
                    return torch.cat(given, 1)
                metrics = given[0].new_zeros(len(given[0]), len(self.rows), *given[0].shape[2:])
                metrics[:, list(self.chosen)] = torch.cat(given, 1)
                return metrics
            except (MemoryError, RuntimeError) as error:
                if at_once(self.waves, 1) == 1 or not short_of_memory(error):
                    raise
            # only now: the error holds on to what the step had made, the old waves to their graphs
            self.steppers = []
            self.rows.put_back(before)
            self.set_waves(self._even(at_once(self.waves, self.beside) // 2))
            log.info("memory is short: seeds in %d waves from here on", len(self.waves))

    def _run_all(self, data: Batch, plan: Plan) -> list[Tensor]:
        """The metrics of each wave."""
        if self.crew is not None:
            return self.crew.run(self.rows, [self.chosen[at] for at in self.waves], data, plan)
        each = zip(self.steppers, self.waves, strict=True)
        return [self._run(stepper, at, data, plan) for stepper, at in each]

    def _run(self, stepper: Stepper, wave: slice, data: Batch, plan: Plan) -> Tensor:
        if len(self.waves) == 1 and not self.compact:
            return stepper.run(data, plan).cpu()
        rows = list(self.chosen[wave])
        if self.compact:
            stepper.rows.fetch(self.rows, rows)
        metrics = stepper.run(rows_of(data, rows), plan.rows(rows)).cpu()
        if self.compact:
            stepper.rows.give_back(self.rows, rows)
        return metrics

    @torch.no_grad()
    def _probe(self, lines: dict[int, list[dict[str, object]]]) -> None:
        """A quick look at joint accuracy at and beyond the training length, of those due.

        Tested are the rows that were stepped: those left out rest, and nothing is said of them.
        """
        due = [i for i in lines if _is_due(self.trainers[i])]
        for step in sorted({self.trainers[i].step for i in due}):
            found = evaluate_stack(
                tester(self.rows.stack, self.trainers, self.chosen),
                len(self.chosen),
                self.task,
                MULTIPLES,
                SEQUENCES,
                self.device,
                self.rows.stack.model.ceiling,
                variants=False,
                stream_name=f"probe {step}",
            )
            tested = dict(zip(self.chosen, found, strict=True))
            for index in due:
                trainer, rows = self.trainers[index], self.slices[index]
                if trainer.step == step:
                    own = [tested.get(row, []) for row in range(rows.start, rows.stop)]
                    lines[index] += trainer.note_probe(own)


def _is_due(trainer: RunState) -> bool:
    every = trainer.settings.probe
    return bool(every) and trainer.step % every == 0 and trainer.failure is None
