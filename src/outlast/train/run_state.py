"""One run: its record, its folder, its methods, and what its seeds have come to.

A run does not step by itself. `train/trainer.py` has the loop: it asks each run for the plan and
the data of a block, and hands back what the block gave. Everything a run needs to go on is in its
checkpoint and the step number, so a killed run resumes bit for bit.

A seed whose loss or weights are no longer finite is *parked*: it is what it was at the start of
that block, and stays so; it is reported, and the other seeds go on. One that has *succeeded*
(`train/stopping.py`) rests in the same way, as it is; a run ends when no seed is left to train.
Where every one was parked the run has diverged: it is saved and can be tested like any other, and
says so as an error (`failure`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outlast.errors import RunFolderError, TrainingError
from outlast.methods.base import PATHWAYS, Control, Losses
from outlast.mixers.randomness import fixed_positions
from outlast.registry import methods as method_registry
from outlast.registry import tasks as task_registry
from outlast.runs import CHECKPOINT, append_metrics, cut_metrics
from outlast.tasks import Batch
from outlast.train.checkpoint import load_checkpoint, restore, save_checkpoint
from outlast.train.data import fresh, nothing
from outlast.train.plan import Conductor, Plan, setup
from outlast.train.rows import SeedState, decay_among
from outlast.train.settings import RunSpec
from outlast.train.stack import StackedModel
from outlast.train.stopping import read_stop

#: why a seed is parked
NOT_FINITE = "the loss or a weight is not finite"


@dataclass
class Progress:
    """What an onlooker is told after each block; `parked` and `succeeded` are seeds."""

    step: int
    steps: int
    seconds_left: float
    loss: dict[str, float]
    probe: dict[str, float]
    waiting: int
    seeds: int
    parked: tuple[int, ...] = ()
    succeeded: tuple[int, ...] = ()

    @property
    def over(self) -> bool:
        """Whether there is nothing left to train."""
        return self.step == self.steps or len(self.parked + self.succeeded) == self.seeds


class RunState:
    """All seeds of one run, in one folder; `rows` are theirs among those of other runs."""

    def __init__(
        self, run: RunSpec, folder: Path, device: torch.device, rows: SeedState | None = None
    ) -> None:
        self.run, self.folder, self.device = run, folder, device
        self.settings = run.settings
        self.task = task_registry.build(run.task)
        built = [method_registry.build(m) for m in run.methods]
        self.rows = SeedState.make([run], device) if rows is None else rows
        self.stack, self.optimiser = self.rows.stack, self.rows.optimiser
        known = setup(run.settings, self.task, self.stack.model)
        self.conductor = Conductor(built, known, run.settings, run.seeds)
        self.decay = decay_among(built)
        self.average = None if self.decay is None else self.rows.average
        #: steps each seed's average has seen, for the correction of its start
        self.averaged = [0] * len(run.seeds)
        #: for a seed that is parked, the step whose weights it has
        self.parked: list[int | None] = [None] * len(run.seeds)
        #: for a seed that has succeeded, the step at which; and its good probes in a row
        self.goal = read_stop(run.settings.stop)
        self.succeeded: list[int | None] = [None] * len(run.seeds)
        self.streaks = [0] * len(run.seeds)
        self.probes: list[dict[str, float]] = [{} for _ in run.seeds]
        self.losses = torch.zeros(len(run.seeds), len(self.task.parts))
        self.step = 0

    @property
    def going(self) -> bool:
        """Whether there are steps left to train, and a seed to train."""
        return self.step < self.settings.steps and bool(self.live())

    @property
    def failure(self) -> TrainingError | None:
        """What to tell of a run that has diverged."""
        return divergence(self.run, self.folder, self.parked, self.step)

    def since(self, row: int) -> int | None:
        """The step whose weights a seed that is parked or has succeeded keeps."""
        parked = self.parked[row]
        return self.succeeded[row] if parked is None else parked

    def rests(self, row: int) -> int:
        """The step from which a seed is at rest, as far as is known."""
        parked, end = self.parked[row], self.settings.steps
        if parked is not None:  # in the course of a block
            return min(parked + self.settings.block, end)
        return self.succeeded[row] or end

    def live(self) -> list[int]:
        """The rows that still learn: neither parked nor succeeded."""
        return [row for row in range(len(self.run.seeds)) if self.since(row) is None]

    def control(self, row: int) -> Control:
        """What the methods want of a seed now, or wanted when it came to rest."""
        since = self.since(row)
        return self.conductor.control(self.step if since is None else since, row)

    # ---- saving and going on -------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Everything that changes, under the names it is saved by."""
        own = {
            "optimiser.first": self.optimiser.first,
            "optimiser.second": self.optimiser.second,
            "optimiser.counts": self.optimiser.counts,
        }
        if self.average is not None:
            own["average"] = self.average
        return own | {f"weights.{n}": t for n, t in self.stack.named(self.stack.table).items()}

    def state(self) -> dict[str, Any]:
        """Everything plain that changes, as it is now."""
        return {
            "step": self.step,
            "averaged": self.averaged,
            "methods": self.conductor.states,
            "probe": self.probes,
            "parked": self.parked,
            "succeeded": self.succeeded,
            "streaks": self.streaks,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `state` gave."""
        self.step, self.averaged = state["step"], state["averaged"]
        self.conductor.states, self.probes = state["methods"], state["probe"]
        self.parked, self.succeeded = state["parked"], state["succeeded"]
        self.streaks = state["streaks"]

    def save(self) -> None:
        save_checkpoint(self.folder, self.tensors(), {"run": self._identity(), **self.state()})

    def resume(self) -> None:
        """Go to the last checkpoint, if there is one; else stay at the very beginning."""
        if (self.folder / CHECKPOINT).exists():
            path = self.folder / CHECKPOINT
            saved, state = load_checkpoint(self.folder)
            here = self._identity()
            for field, there in state.get("run", {}).items():
                if there != here.get(field):
                    both = f"its {field} is {there}, this run's is {here.get(field)}"
                    raise RunFolderError(f"{path} is of another run: {both}")
            for name, target in self.tensors().items():
                restore(target, saved, name, path)
            self.set_state(state)

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint must agree on with its run."""
        run = self.run
        return {
            "task": run.task,
            "model": run.model,
            "methods": list(run.methods),
            "seeds": list(run.seeds),
        }

    def test_weights(self) -> dict[str, Tensor]:
        """The weights to test with: the corrected average where one is kept and has begun."""
        if self.average is None or self.decay is None:
            return self.stack.named(self.stack.table)
        seen = torch.tensor(self.averaged, dtype=torch.float64)
        correction = (1 - self.decay ** seen.clamp_min(1)).to(self.average)
        begun = (seen > 0).to(self.average.device)[:, None]
        found = torch.where(begun, self.average / correction[:, None], self.stack.table)
        return self.stack.named(found)

    # ---- a block of steps ----------------------------------------------------------------

    def next_block(self, wait: bool = False) -> tuple[Plan, Batch]:
        """The plan and the data (steps, S, batch, tokens) of the next block.

        A run that is over, or is to wait, has a step of nothing, for others to go on beside it.
        """
        begin, everyone = self.step, range(len(self.run.seeds))
        if wait or not self.going:
            data = nothing(len(everyone), self.settings.batch, self.device)
            return self.conductor.plan(begin, begin + 1).without(everyone), data
        end = min(begin + self.settings.block, self.settings.steps)
        plan, live = self.conductor.plan(begin, end), self.live()
        if idle := [row for row in everyone if row not in live]:
            plan = plan.without(idle)
        return plan, self.data(begin, plan)

    def data(self, begin: int, plan: Plan) -> Batch:
        """Fresh sequences for each step of a plan and each seed that learns in it."""
        shape, sort = (len(plan.alive), self.settings.batch), self.settings.by_length
        idle = [row for row, alive in enumerate(plan.alive.any(0).tolist()) if not alive]
        seeds = self.run.seeds
        return fresh(self.task, seeds, plan.lengths, begin, shape, self.device, idle, sort)

    def take(self, metrics: Tensor, plan: Plan, before: Sequence[Tensor]) -> list[dict[str, Any]]:
        """What a block gave, (steps, S, 2, parts); returns lines for the metrics.

        `before` are the tables of the rows as they were at its start.
        """
        begin, live = self.step, self.live()
        self.step += len(metrics)
        # a last step may break the weights after its loss was taken: they must not be saved
        sound = torch.isfinite(self.stack.table).all(1).cpu()
        sound &= torch.isfinite(metrics[:, :, 0]).all(2).all(0)
        lines: list[dict[str, Any]] = []
        for row in live:
            if sound[row]:
                self.averaged[row] += len(metrics)
                lines += self._look(row, metrics[:, row], plan)
            else:
                self.rows.put_back(before, row)
                self.parked[row] = begin
                event = {"event": "parked", "since": begin, "what": NOT_FINITE}
                lines.append({"step": self.step, "seed": self.run.seeds[row], **event})
        self.losses = metrics[:, :, 0].mean(0)
        return lines

    def _look(self, row: int, metrics: Tensor, plan: Plan) -> list[dict[str, Any]]:
        """Show the losses of a block to the methods of a seed, and note what happened."""
        parts, losses, accuracies = self.task.parts, metrics[:, 0], metrics[:, 1]
        where = {"step": self.step, "seed": self.run.seeds[row]}
        means = {"loss": _rounded(parts, losses.mean(0))}
        lines: list[dict[str, Any]] = [
            where | means | {"accuracy": _rounded(parts, accuracies.mean(0))}
        ]
        shown: Losses = {parts[i]: losses[:, i].tolist() for i in plan.trained(row, parts)}
        for method, event in self.conductor.observe(self.step, row, shown):
            lines.append(where | {"event": event.name, "method": method.spec.name} | event.details)
            if event.name == "restart":
                self._restart(row, event.details["attempt"])
        return lines

    def write(self, lines: list[dict[str, Any]]) -> None:
        """Add lines to the metrics."""
        append_metrics(self.folder, lines)

    def cut_back(self) -> None:
        """Take back what the metrics say of steps past the checkpoint."""
        cut_metrics(self.folder, self.step)

    def _restart(self, row: int, attempt: int) -> None:
        self.stack.reset(row, attempt)
        self.optimiser.reset(row)
        if self.average is not None:
            self.average[row] = 0
            self.averaged[row] = 0

    def tester(self) -> Callable[[Tensor], Tensor]:
        """Tokens (batch, tokens) to every seed's logits, as the methods leave the gates now."""
        return tester(self.stack, [self], range(len(self.run.seeds)))

    def note_probe(self, found: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Joint accuracy of each seed at and beyond the training length; returns lines.

        Of seeds at rest nothing is read, and nothing said.
        """
        lines: list[dict[str, Any]] = []
        for row in self.live():
            joint = {r["multiple"]: r["exact"]["joint"] for r in found[row] if r["exact"]}
            self.probes[row] = {f"{m:g}": round(right, 4) for m, right in joint.items()}
            where = {"step": self.step, "seed": self.run.seeds[row]}
            lines.append(where | {"probe": self.probes[row]})
            if self._succeeds(row, joint):
                self.succeeded[row] = self.step
                lines.append(where | {"event": "succeeded", "goal": self.settings.stop})
        return lines

    def _succeeds(self, row: int, joint: dict[float, float]) -> bool:
        """Whether a seed has been good enough for long enough, this probe included."""
        goal = self.goal
        if goal is None:
            return False
        good = joint.get(goal.at, 0.0) >= goal.accuracy
        self.streaks[row] = self.streaks[row] + 1 if good else 0
        return self.streaks[row] >= goal.probes

    def progress(self, seconds_left: float) -> Progress:
        """Where the run stands; losses are means over the seeds that learn.

        Accuracies are means over all that are not parked.
        """
        live, seeds = self.live(), self.run.seeds
        waits = [any(s.get("switched", 0) is None for s in own) for own in self.conductor.states]
        probed = [
            own for own, at in zip(self.probes, self.parked, strict=True) if own and at is None
        ]
        return Progress(
            self.step,
            self.settings.steps,
            seconds_left,
            _rounded(self.task.parts, self.losses[live].mean(0)) if live else {},
            {m: sum(p[m] for p in probed) / len(probed) for m in probed[0]} if probed else {},
            sum(waits[row] for row in live),
            len(seeds),
            tuple(s for s, at in zip(seeds, self.parked, strict=True) if at is not None),
            tuple(s for s, at in zip(seeds, self.succeeded, strict=True) if at is not None),
        )


def divergence(
    run: RunSpec, folder: Path, parked: Sequence[int | None], step: int
) -> TrainingError | None:
    """What to tell of a run whose every seed is parked; `step` is where the last of them was."""
    since = [at for at in parked if at is not None]
    if len(since) < len(run.seeds):
        return None
    now = [seed for seed, at in zip(run.seeds, since, strict=True) if at == max(since)]
    earlier = len(run.seeds) - len(now)
    others = f" (the other {earlier} were parked before)" if earlier else ""
    return TrainingError(
        f"seed{'s' * (len(now) > 1)} {', '.join(map(str, now))}: {NOT_FINITE} between steps "
        f"{max(since)} and {step}{others}; the last good weights are kept in {folder}. No seed is "
        f"left to train. Try a smaller lr (it is {run.settings.lr:g}) or a longer warmup."
    )


def tester(
    stack: StackedModel, trainers: Sequence[RunState], rows: Sequence[int]
) -> Callable[[Tensor], Tensor]:
    """Tokens (batch, tokens) to the logits of some rows; the stack's rows are the trainers'."""
    all_controls = [t.control(row) for t in trainers for row in range(len(t.run.seeds))]
    controls = [all_controls[row] for row in rows]
    gates = torch.tensor([[c.gate[p] for p in PATHWAYS] for c in controls])
    spans = sorted({c.span for c in controls})
    stack.set_controls(
        {p: gates[:, i].tolist() for i, p in enumerate(PATHWAYS)}, {p: [1.0] for p in PATHWAYS}
    )
    each = [t.test_weights() for t in trainers]
    weights = each[0] if len(each) == 1 else {n: torch.cat([w[n] for w in each]) for n in each[0]}
    if len(rows) < len(all_controls):
        weights = {n: w[list(rows)] for n, w in weights.items()}
    gates = gates.to(stack.table.device)
    upstream_grads = torch.ones_like(gates)

    def test(tokens: Tensor) -> Tensor:
        if spans == [0]:
            return stack.run(tokens[None], weights, gates, upstream_grads)
        drawn = {n: fixed_positions(tokens.shape[1], n, tokens.device) for n in spans}
        positions = [drawn[c.span] for c in controls] if len(spans) > 1 else list(drawn.values())
        return stack.run(tokens[None], weights, gates, upstream_grads, torch.stack(positions))

    return test


def _rounded(names: tuple[str, ...], values: Tensor) -> dict[str, float]:
    return {n: round(v, 6) for n, v in zip(names, values.tolist(), strict=True)}
