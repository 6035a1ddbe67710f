"""The training loop, for all seeds of one run or of several runs at once. As pseudocode::

    seeds = one row for each seed of each run: fresh, or from the checkpoints
    for each block of 50 steps:
        rows = the rows to step                    (those at rest are left out, where it saves)
        plan = what the methods want of each seed  (gates, rates, loss weights, lengths)
        data = fresh sequences for each seed       (a pure function of seed and block)
        for each step: forward, losses by part, backward, AdamW         (never waits for the host)
        losses of the block -> metrics.jsonl, the methods' triggers; a broken seed is parked
        losses of longer, held-out sequences -> methods that want them
        now and then: probe accuracy at 1 x and 3 x, keep the weights, save a checkpoint

Blocks are atomic. After an error the state is rolled back to the start of the block and saved, and
the error is raised. The host looks at the device once a block.

Runs that are trained together share the task, the model, the batch size and the steps of a block.
Learning rate, decay, clipping, methods, seeds and the number of steps may differ; each run has its
own folder. A run among others gives the same as alone, up to float32 rounding. Runs that are
resumed together are bit for bit as if they had not been stopped. If their checkpoints are of
different steps, a run that is ahead waits for the others. Until it has caught up, a GPU may sum in
another order, and the others are the same up to float32 rounding.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from traceback import clear_frames

import torch
from torch import Tensor

from outlast.errors import RunFolderError, TrainingError, short_of_memory
from outlast.evaluation.ladder import evaluate_stack
from outlast.runs.checkpoint import load_checkpoint, restore, save_checkpoint
from outlast.runs.folder import CHECKPOINT, cut_kept
from outlast.runs.kept import save_kept
from outlast.runs.records import EventLine, Line, append_metrics, cut_metrics
from outlast.runs.spec import PROBE_SEQUENCES, PROBED, RunSpec
from outlast.tasks import Batch
from outlast.train.data import join
from outlast.train.held_out import held_out_losses
from outlast.train.memory import other_processes
from outlast.train.plan import Plan
from outlast.train.run_state import Progress, RunState
from outlast.train.seeds import SeedState
from outlast.train.waves import WaveStepper

log = logging.getLogger(__name__)
Watch = Callable[[Path, Progress], None]


@dataclass(frozen=True)
class Block:
    """What is to be stepped: the runs that are due, each run's plan, and all of it joined."""

    due: list[int]
    plans: list[Plan]
    plan: Plan
    data: Batch


class Trainer:
    """Runs that are trained together, each in its folder."""

    def __init__(self, runs: Sequence[tuple[RunSpec, Path]], device: torch.device) -> None:
        self.device = device
        self.seeds = SeedState.create([run for run, _ in runs], device)
        self.runs: list[RunState] = []
        self.folders = [folder for _, folder in runs]
        #: the rows of each run among all seeds
        self.slices: list[slice] = []
        for run, _ in runs:
            begin = self.slices[-1].stop if self.slices else 0
            self.slices.append(slice(begin, begin + len(run.seeds)))
            self.runs.append(RunState(run, self.seeds.part(self.slices[-1])))
        self.task = self.runs[0].task
        self.stepper = WaveStepper(self.seeds, [run for run, _ in runs])
        #: whether every row is what whole blocks have made of it
        self.intact = True

    def choose_waves(self, share: float = 1.0) -> str:
        """Choose waves so that a step fits in memory, and processes to step them side by side.

        Returns how many seeds at once and why. `share` is the share of the device to use.
        """
        controls = [run.control(row) for run in self.runs for row in range(len(run.run.seeds))]
        own_positions = any(control.span for control in controls)
        windowed = any(control.windows for control in controls)
        return self.stepper.choose_waves(share, own_positions, windowed)

    def close(self) -> None:
        """End the processes that were started, if any; `choose_waves` starts others."""
        self.stepper.close()

    def resume(self) -> None:
        """Go to each run's last checkpoint; a run without one stays at its beginning.

        What the metrics say of later steps, and weights kept of them, are taken back.
        """
        for run, folder in zip(self.runs, self.folders, strict=True):
            path = folder / CHECKPOINT
            if path.exists():
                tensors, state = load_checkpoint(folder, run=run.run)
                run.methods.check(state.methods, state.step, path)
                for name, target in run.tensors().items():
                    restore(target, tensors, name, path)
                run.set_state(state)
        for run, folder in zip(self.runs, self.folders, strict=True):
            cut_metrics(folder, run.step)
            cut_kept(folder, run.step)

    # ---- the loop ------------------------------------------------------------------------

    def train(
        self,
        watch: Watch | None = None,
        stop: Callable[[], bool] = lambda: False,
        blocks: int | None = None,
    ) -> bool:
        """Train every run to its end; True when all have ended.

        A run ends early when no seed is left to train: all have succeeded or are parked. Whatever
        goes wrong in a block, the blocks before it are saved.

        Args:
            watch: Is told the progress of each run after each block.
            stop: Is asked before each block. If it says so, the runs are saved and left.
            blocks: The most blocks to train; by default there is no limit.
        """
        self._start_clock()
        with self._saved_on_error():
            self._keep({index: [] for index, run in enumerate(self.runs) if not run.step})
            for _ in count() if blocks is None else range(blocks):
                if not (unfinished := self._unfinished()):
                    break
                if stop():
                    self.save(unfinished)
                    break
                block = self.next_block()
                with self._rolled_back_on_error() as before:
                    metrics = self.stepper.run(block.data, block.plan, before)
                    lines = self._take_metrics(block, metrics, before)
                    self._show_held_out(lines)
                    self._probe(lines)
                    self._write(lines)
                    self._keep(lines)
                self._report(block, lines, watch)
                self.save(run for run in block.due if self._checkpoint_due(run))
                del block, before, metrics  # the next block has their memory
        return not self._unfinished()

    def _unfinished(self) -> list[int]:
        return [index for index, run in enumerate(self.runs) if run.unfinished]

    def next_block(self) -> Block:
        """The next block of the runs that are unfinished; runs that are ahead wait."""
        unfinished = self._unfinished()
        if not unfinished:
            raise TrainingError("all runs are at their end: there is no block left to train")
        clock = min(self.runs[index].step for index in unfinished)
        due = [index for index in unfinished if self.runs[index].step == clock]
        rests = [run.rests_from(row) for run in self.runs for row in range(len(run.run.seeds))]
        self.stepper.choose_rows(rests, clock)
        pairs = [run.next_block(wait=index not in due) for index, run in enumerate(self.runs)]
        plans = [plan for plan, _ in pairs]
        return Block(due, plans, Plan.join(plans), join([data for _, data in pairs]))

    def _take_metrics(
        self, block: Block, metrics: Tensor, before: Sequence[Tensor]
    ) -> dict[int, list[Line]]:
        """Hand each run what the block gave; returns its lines for the metrics file."""
        lines = {}
        for index in block.due:
            rows, plan = self.slices[index], block.plans[index]
            tables = [table[rows] for table in before]
            lines[index] = self.runs[index].take_metrics(metrics[: plan.steps, rows], plan, tables)
        return lines

    def _show_held_out(self, lines: dict[int, list[Line]]) -> None:
        """Measure losses on held-out sequences for the methods that want them."""
        due = [self.runs[index] for index in lines]
        multiples = {m for run in due for m in run.methods.held_out(run.live_rows())}
        if not multiples:
            return
        chosen = self.stepper.chosen
        measured = held_out_losses(
            self._predictor(), len(chosen), self.task, sorted(multiples), self.device
        )
        by_row = dict(zip(chosen, measured, strict=True))
        for index in lines:
            run, first = self.runs[index], self.slices[index].start
            for row in run.live_rows():
                run.methods.observe_held_out(run.step, row, by_row[first + row])

    @torch.no_grad()
    def _probe(self, lines: dict[int, list[Line]]) -> None:
        """A quick test of joint accuracy at and beyond the training length, of runs that are due.

        The rows that were stepped are tested: those left out rest, and nothing is said of them.
        """
        due, chosen = [i for i in lines if self.runs[i].probe_due], self.stepper.chosen
        for step in sorted({self.runs[index].step for index in due}):
            results = evaluate_stack(
                self._predictor(),
                len(chosen),
                self.task,
                PROBED,
                PROBE_SEQUENCES,
                self.device,
                self.seeds.model.model.ceiling,
                variants=False,
                stream_name=f"probe {step}",
            )
            by_row = dict(zip(chosen, results, strict=True))
            for index in due:
                run, rows = self.runs[index], self.slices[index]
                if run.step == step:
                    tested = [by_row.get(row, []) for row in range(rows.start, rows.stop)]
                    lines[index] += run.take_probe(tested)

    def _predictor(self) -> Callable[[Tensor], Tensor]:
        """Tokens to the logits of the rows that are stepped, with the weights of a test."""
        controls = [run.control(row) for run in self.runs for row in range(len(run.run.seeds))]
        weights = [run.test_weights() for run in self.runs]
        joined = weights[0]
        if len(weights) > 1:
            joined = {n: torch.cat([each[n] for each in weights]) for n in weights[0]}
        chosen = self.stepper.chosen
        if self.stepper.compact:
            joined = {n: weight[list(chosen)] for n, weight in joined.items()}
        return self.seeds.model.predictor([controls[row] for row in chosen], joined)

    def _start_clock(self) -> None:
        self.started, self.first_block = time.monotonic(), True
        self.first_step = min((self.runs[i].step for i in self._unfinished()), default=0)

    def _report(self, block: Block, lines: dict[int, list[Line]], watch: Watch | None) -> None:
        """Tell `watch` where each run stands, and how long it will take at this rate."""
        for index in block.due:
            run = self.runs[index]
            seconds = (time.monotonic() - self.started) / (run.step - self.first_step)
            left = run.settings.steps - run.step if run.unfinished else 0
            if watch is not None:
                watch(self.folders[index], run.progress(seconds * left, lines[index]))
        if self.first_block:  # it compiles: the time left is told by those after it
            self._start_clock()
            self.first_block = False

    # ---- files ---------------------------------------------------------------------------

    def _write(self, lines: dict[int, list[Line]]) -> None:
        for index, each in lines.items():
            append_metrics(self.folders[index], each)

    def _keep(self, lines: dict[int, list[Line]]) -> None:
        """Keep the weights of runs whose step is due, or those of seeds that have just switched.

        Before the checkpoint of the step: whoever resumes from it has them. The weights of the last
        step are in the checkpoint.
        """
        for index, each in lines.items():
            run = self.runs[index]
            every = run.settings.keep_every
            if every is None or not run.unfinished:
                continue
            events = [line for line in each if isinstance(line, EventLine)]
            switched = [line.seed for line in events if line.event == "switch"]
            if seeds := run.run.seeds if run.step % every == 0 else switched:
                save_kept(self.folders[index], run.tensors(), run.state(), seeds)

    def _checkpoint_due(self, index: int) -> bool:
        run = self.runs[index]
        return run.step % run.settings.checkpoint_every == 0 or not run.unfinished

    def save(self, runs: Iterable[int]) -> None:
        """Write the checkpoints of some runs."""
        for index in runs:
            run = self.runs[index]
            save_checkpoint(self.folders[index], run.tensors(), run.state())

    @contextmanager
    def _saved_on_error(self) -> Iterator[None]:
        """After an error, save the runs that have come further, and say what helps."""
        begun = [run.step for run in self.runs]
        try:
            yield
        except Exception as error:
            short = short_of_memory(error)
            if short:
                clear_frames(error.__traceback__)  # they hold on to what the step had made
            if not isinstance(error, RunFolderError):  # it would not be written this time either
                self._save_progress(begun)
            if not short:
                raise
            others = ", or processes=1" if self.stepper.processes > 1 else ""
            batch_size = self.runs[0].settings.batch_size
            raise TrainingError(
                f"the memory of {self.device} does not suffice, even for one seed at a time: take "
                f"a smaller batch_size (it is {batch_size}), steps_per_block, model or length, or "
                f"fewer seeds in one run{others} ({error}).{other_processes(self.device)}"
            ) from error

    def _save_progress(self, begun: Sequence[int]) -> None:
        """Save the runs that are past the steps they began at, if they are intact."""
        for index, step in enumerate(begun):
            if self.intact and self.runs[index].step > step:
                folder = self.folders[index]
                try:
                    self.save([index])
                    log.info("%s is saved at step %d", folder, self.runs[index].step)
                except Exception as another:  # the first error is the one to raise
                    log.warning("%s could not be saved: %s", folder, another)

    @contextmanager
    def _rolled_back_on_error(self) -> Iterator[list[Tensor]]:
        """All rows as they are now; after an error they are so again, or `intact` is False."""
        before, states = self.seeds.read(), [run.state() for run in self.runs]
        self.intact = False
        try:
            yield before
        except Exception:
            with suppress(Exception):  # after some errors of a GPU nothing can be had from it
                self.seeds.write(before)
                for run, state in zip(self.runs, states, strict=True):
                    run.set_state(state)
                self.intact = True
            raise
        self.intact = True
