"""One run among those that are trained together: its methods, and what its seeds have come to.

A run does not step by itself, and touches no file. `trainer.py` has the loop: it asks each run for
the plan and the data of a block, and hands back what the block gave. Everything a run needs to
resume is in its `TrainingState` and its tensors, so a killed run resumes bit for bit.

A seed whose loss or weights are no longer finite is *parked*: it goes back to the start of that
block and stays there. It is reported, and the other seeds go on. A seed that has *succeeded*
(`Success` in `runs/spec.py`) rests in the same way, as it is. A run ends when no seed is left to
train. If every seed was parked, the run has diverged: it is saved and can be tested like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outlast.errors import TrainingError
from outlast.methods.base import Control, Losses
from outlast.registry import methods, tasks
from outlast.runs.checkpoint import AVERAGE, WEIGHTS, TrainingState
from outlast.runs.records import ALL, EventLine, Line, MetricLine, ResultRow
from outlast.runs.spec import RunSpec
from outlast.runs.status import NOT_FINITE
from outlast.tasks import Batch, Task
from outlast.train.augmentation import shuffle_blocks
from outlast.train.data import blank_step, sample_block
from outlast.train.plan import MethodStates, Plan, setup
from outlast.train.seeds import SeedState, decay_among


@dataclass
class Progress:
    """What an onlooker sees after each block; `parked` and `succeeded` are seeds."""

    step: int
    steps: int
    seconds_left: float
    loss: dict[str, float]
    probe: dict[str, float]
    #: seeds in the first phase of a method
    waiting: int
    seeds: int
    parked: tuple[int, ...] = ()
    succeeded: tuple[int, ...] = ()
    #: whether the probes are bits per byte, and not shares of sequences right
    in_bits: bool = False
    #: what the block added to the metrics file: losses of each seed, probes, events
    lines: tuple[Line, ...] = ()

    @property
    def over(self) -> bool:
        """Whether there is nothing left to train."""
        return self.step == self.steps or len(self.parked + self.succeeded) == self.seeds


class RunState:
    """All seeds of one run; `seeds` are their rows among those of other runs."""

    def __init__(self, run: RunSpec, seeds: SeedState) -> None:
        self.run, self.settings, self.seeds = run, run.settings, seeds
        self.task: Task = tasks.build(run.task)
        built = [methods.build(method) for method in run.methods]
        known = setup(run.settings, self.task, seeds.model.model)
        self.methods = MethodStates(built, known, run)
        #: of the average of the weights, if a method wants one
        self.decay = decay_among(built)
        self.average = None if self.decay is None else seeds.average
        self.step = 0
        #: for each seed, the steps that its average has seen, to correct its start
        self.averaged = [0] * len(run.seeds)
        #: for each parked seed, the step whose weights it has
        self.parked: list[int | None] = [None] * len(run.seeds)
        #: for each seed that succeeded, the step at which; and its good probes in a row
        self.succeeded: list[int | None] = [None] * len(run.seeds)
        self.streaks = [0] * len(run.seeds)
        self.probes: list[dict[str, float]] = [{} for _ in run.seeds]
        self.losses = torch.zeros(len(run.seeds), len(self.task.parts))

    @property
    def unfinished(self) -> bool:
        """Whether there are steps left to train, and a seed to train."""
        return self.step < self.settings.steps and bool(self.live_rows())

    @property
    def diverged(self) -> bool:
        """Whether every seed is parked."""
        return None not in self.parked

    def resting_since(self, row: int) -> int | None:
        """The step whose weights a seed that is parked or has succeeded keeps."""
        parked = self.parked[row]
        return self.succeeded[row] if parked is None else parked

    def rests_from(self, row: int) -> int:
        """The step from which a seed is at rest, as far as is known."""
        parked, end = self.parked[row], self.settings.steps
        if parked is not None:  # in the course of a block
            return min(parked + self.settings.steps_per_block, end)
        return self.succeeded[row] or end

    def live_rows(self) -> list[int]:
        """The rows that still learn: neither parked nor succeeded."""
        return [row for row in range(len(self.run.seeds)) if self.resting_since(row) is None]

    def control(self, row: int) -> Control:
        """What the methods want of a seed now, or wanted when it came to rest."""
        since = self.resting_since(row)
        return self.methods.control(self.step if since is None else since, row)

    # ---- saving and resuming -------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Everything that changes, under the names it is saved by."""
        optimiser, model = self.seeds.optimiser, self.seeds.model
        tensors = {
            "optimiser.first": optimiser.first,
            "optimiser.second": optimiser.second,
            "optimiser.counts": optimiser.counts,
        }
        if self.average is not None:
            tensors[AVERAGE] = self.average
        return tensors | {f"{WEIGHTS}{n}": t for n, t in model.named(model.table).items()}

    def state(self) -> TrainingState:
        """Everything plain that changes, as it is now: a copy."""
        return deepcopy(
            TrainingState(
                step=self.step,
                averaged=self.averaged,
                methods=self.methods.states,
                probe=self.probes,
                parked=self.parked,
                succeeded=self.succeeded,
                streaks=self.streaks,
                run=self.run.identity,
            )
        )

    def set_state(self, state: TrainingState) -> None:
        """Take over what `state` gave."""
        self.step, self.averaged = state.step, state.averaged
        self.methods.states, self.probes = state.methods, state.probe
        self.parked, self.succeeded = state.parked, state.succeeded
        self.streaks = state.streaks

    def test_weights(self) -> dict[str, Tensor]:
        """The weights to test with: the corrected average where one is kept and has begun."""
        model = self.seeds.model
        if self.average is None or self.decay is None:
            return model.named(model.table)
        return model.named(model.corrected_average(self.average, self.averaged, self.decay))

    # ---- a block of steps ----------------------------------------------------------------

    def next_block(self, wait: bool = False) -> tuple[Plan, Batch]:
        """The plan and the data (steps, S, batch, tokens) of the next block.

        A run that is over, or is to wait, has one blank step, for others to go on beside it.
        """
        begin, everyone = self.step, range(len(self.run.seeds))
        if wait or not self.unfinished:
            device = self.seeds.model.table.device
            blank = blank_step(len(everyone), self.settings.batch_size, device)
            return self.methods.plan(begin, begin + 1).without(everyone), blank
        end = min(begin + self.settings.steps_per_block, self.settings.steps)
        plan, live = self.methods.plan(begin, end), self.live_rows()
        if idle := [row for row in everyone if row not in live]:
            plan = plan.without(idle)
        return plan, self.data(begin, plan)

    def data(self, begin: int, plan: Plan) -> Batch:
        """Fresh sequences for each step of a plan and each seed that learns in it."""
        learning = plan.tables["alive"].any(0).tolist()
        data = sample_block(
            self.task,
            self.run.seeds,
            plan.lengths,
            begin,
            (plan.steps, self.settings.batch_size),
            self.seeds.model.table.device,
            idle=[row for row, alive in enumerate(learning) if not alive],
            by_length=self.settings.by_length,
        )
        return shuffle_blocks(data, plan.tables) if plan.tables["shuffle"].any() else data

    def take_metrics(self, metrics: Tensor, plan: Plan, before: Sequence[Tensor]) -> list[Line]:
        """Take in what a block gave, (steps, S, 2, parts); returns lines for the metrics file.

        `before` is what `SeedState.read` gave at the start of the block.
        """
        begin, live = self.step, self.live_rows()
        self.step += len(metrics)
        # a last step may break the weights after its loss was taken: they must not be saved
        sound = torch.isfinite(self.seeds.model.table).all(1).cpu()
        sound &= torch.isfinite(metrics[:, :, 0]).all(2).all(0)
        lines: list[Line] = []
        for row in live:
            if sound[row]:
                self.averaged[row] += len(metrics)
                lines += self._observe(row, metrics[:, row], plan)
            else:
                self.seeds.write([table[row] for table in before], [row])
                self.parked[row] = begin
                lines.append(self._event(row, "parked", {"since": begin, "what": NOT_FINITE}))
        self.losses = metrics[:, :, 0].mean(0)
        return lines

    def _event(self, row: int, name: str, details: dict[str, Any]) -> EventLine:
        return EventLine(self.step, self.run.seeds[row], name, details)

    def _observe(self, row: int, metrics: Tensor, plan: Plan) -> list[Line]:
        """Show the losses of a block to the methods of a seed, and note what happened."""
        parts, losses, accuracies = self.task.parts, metrics[:, 0], metrics[:, 1]
        lines: list[Line] = [
            MetricLine(
                self.step,
                self.run.seeds[row],
                loss=_by_part(parts, losses.mean(0)),
                accuracy=_by_part(parts, accuracies.mean(0)),
            )
        ]
        shown: Losses = {parts[i]: losses[:, i].tolist() for i in plan.trained_parts(row, parts)}
        for method, event in self.methods.observe(self.step, row, shown):
            details = {"method": method.spec.name} | event.details
            lines.append(self._event(row, event.name, details))
            if event.name == "restart":
                self._restart(row, event.details["attempt"])
        return lines

    def _restart(self, row: int, attempt: int) -> None:
        if (start := self.run.start_from) is not None:  # by a method that does not say `restarts`
            raise TrainingError(
                f"a method asks for fresh weights for seed {self.run.seeds[row]}, and the run "
                f"starts from the weights of {start.run}"
            )
        self.seeds.model.reset(row, attempt)
        self.seeds.optimiser.reset(row)
        if self.average is not None:
            self.average[row] = 0
            self.averaged[row] = 0

    @property
    def probe_due(self) -> bool:
        every = self.settings.probe_every
        return bool(every) and self.step % every == 0 and not self.diverged

    def take_probe(self, rows: Sequence[Sequence[ResultRow]]) -> list[Line]:
        """Take in a probe, rows of results for each seed; returns lines for the metrics file.

        Nothing is noted of seeds at rest.
        """
        lines: list[Line] = []
        if self.task.measure == "bits":
            return [self._take_bits(row, rows[row]) for row in self.live_rows()]
        for row in self.live_rows():
            joint = {r["multiple"]: r["exact"]["joint"] for r in rows[row] if r["exact"]}
            self.probes[row] = {f"{m:g}": round(right, 4) for m, right in joint.items()}
            lines.append(MetricLine(self.step, self.run.seeds[row], probe=self.probes[row]))
            if self._succeeds(row, joint):
                self.succeeded[row] = self.step
                lines.append(self._event(row, "succeeded", {"goal": self.settings.stop}))
        return lines

    def _take_bits(self, row: int, rows: Sequence[ResultRow]) -> Line:
        """Take in the bits per byte of a seed; none if they are not finite at every length."""
        bits = [(r["multiple"], b.get(ALL)) for r in rows if (b := r.get("bits")) is not None]
        finite = {f"{m:g}": round(value, 4) for m, value in bits if value is not None}
        self.probes[row] = finite if len(finite) == len(bits) else {}
        return MetricLine(self.step, self.run.seeds[row], probe_bits=self.probes[row])

    def _succeeds(self, row: int, joint: dict[float, float]) -> bool:
        """Whether a seed has been good enough for long enough, this probe included."""
        rule = self.settings.stop_rule
        if rule is None:
            return False
        good = joint.get(rule.at, 0.0) >= rule.accuracy
        self.streaks[row] = self.streaks[row] + 1 if good else 0
        return self.streaks[row] >= rule.probes

    def progress(self, seconds_left: float, lines: Sequence[Line] = ()) -> Progress:
        """Where the run stands after a block that gave `lines`.

        Losses are means over the seeds that learn. Accuracies are means over all seeds that are not
        parked.
        """
        live, seeds = self.live_rows(), self.run.seeds
        waiting = [
            any(state.get("switched", 0) is None for state in states)
            for states in self.methods.states
        ]
        probes = [
            probe
            for probe, at in zip(self.probes, self.parked, strict=True)
            if probe and at is None
        ]
        return Progress(
            self.step,
            self.settings.steps,
            seconds_left,
            _by_part(self.task.parts, self.losses[live].mean(0)) if live else {},
            {m: sum(p[m] for p in probes) / len(probes) for m in probes[0]} if probes else {},
            sum(waiting[row] for row in live),
            len(seeds),
            tuple(s for s, at in zip(seeds, self.parked, strict=True) if at is not None),
            tuple(s for s, at in zip(seeds, self.succeeded, strict=True) if at is not None),
            self.task.measure == "bits",
            tuple(lines),
        )


def _by_part(parts: tuple[str, ...], values: Tensor) -> dict[str, float]:
    return {part: round(value, 6) for part, value in zip(parts, values.tolist(), strict=True)}
