"""The training loop, for all seeds of a run at once. As pseudocode::

    stack, optimiser, conductor = from the run's record, or from its checkpoint
    for each block of 50 steps:
        plan  = what the methods want of each seed      (gates, rates, loss weights, lengths)
        data  = fresh sequences for each seed           (a pure function of seed and block)
        for each step: forward, losses by part, backward, AdamW       (never waits for the host)
        losses of the block -> metrics.jsonl, methods' triggers, progress
        now and then: probe accuracy at 1 x and 3 x, save a checkpoint

The host looks at the device once a block; everything a run needs to go on is in the checkpoint
and the step number, so a killed run resumes bit for bit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.errors import RunFolderError, TrainingError
from outlast.evaluate.ladder import evaluate_stack
from outlast.methods.base import PATHWAYS, Losses, Setup
from outlast.registry import methods as method_registry
from outlast.registry import tasks as task_registry
from outlast.runs import CHECKPOINT, append_metrics, cut_metrics
from outlast.streams import stream
from outlast.tasks import IGNORE, Batch
from outlast.train.checkpoint import load_checkpoint, restore, save_checkpoint
from outlast.train.optimiser import AdamW
from outlast.train.plan import Conductor, Plan
from outlast.train.settings import RunSpec
from outlast.train.stack import Stack
from outlast.train.step import Block, Stepper

log = logging.getLogger(__name__)
PROBE_SEQUENCES = 128
PROBE_MULTIPLES = (1, 3)


@dataclass
class Progress:
    """What an onlooker is told after each block."""

    step: int
    steps: int
    seconds_left: float
    loss: dict[str, float]
    probe: dict[str, float]
    waiting: int
    seeds: int


class Trainer:
    """All seeds of one run, in one folder."""

    def __init__(self, run: RunSpec, folder: Path, device: torch.device) -> None:
        self.run, self.folder, self.device = run, folder, device
        self.settings = run.settings
        self.task = task_registry.build(run.task)
        self.stack = Stack(run.model, self.task, run.seeds, device)
        built = [method_registry.build(m) for m in run.methods]
        setup = Setup(run.settings.steps, self.task.parts, self.task.lengths)
        self.conductor = Conductor(built, setup, run.settings, run.seeds)
        self.optimiser = AdamW(self.stack, run.settings.clip, run.settings.weight_decay)
        decays = [m.average for m in built if m.average is not None]
        self.decay = decays[-1] if decays else None
        self.average = torch.zeros_like(self.stack.table) if decays else None
        #: steps each seed's average has seen, for the correction of its start
        self.averaged = [0] * len(run.seeds)
        kept = (self.decay, self.average) if self.decay and self.average is not None else None
        bf16 = run.settings.precision == "bf16"
        self.stepper = Stepper(self.stack, self.optimiser, self.task.parts, bf16, kept)
        self.step = 0
        self.probe: dict[str, float] = {}

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

    def save(self) -> None:
        state = {
            "run": self._identity(),
            "step": self.step,
            "averaged": self.averaged,
            "methods": self.conductor.states,
            "probe": self.probe,
        }
        save_checkpoint(self.folder, self.tensors(), state)

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
            self.step, self.averaged = state["step"], state["averaged"]
            self.conductor.states, self.probe = state["methods"], state["probe"]

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
        """The weights to test with: the corrected average where one is kept."""
        if self.average is None or self.decay is None:
            return self.stack.named(self.stack.table)
        seen = torch.tensor(self.averaged, dtype=torch.float64)
        correction = (1 - self.decay ** seen.clamp_min(1)).to(self.average)
        return self.stack.named(self.average / correction[:, None])

    # ---- the loop ------------------------------------------------------------------------

    def train(
        self,
        watch: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Train to the end, or until `stop` asks to leave; True when the end was reached."""
        started, first = time.monotonic(), self.step
        cut_metrics(self.folder, self.step)
        while self.step < self.settings.steps:
            if stop():
                self.save()
                return False
            losses = self._block()
            done = time.monotonic() - started
            left = done / (self.step - first) * (self.settings.steps - self.step)
            if watch is not None:
                watch(self._progress(losses, left))
            if self.step % self.settings.checkpoint == 0 or self.step == self.settings.steps:
                self.save()
        return True

    def _block(self) -> Tensor:
        begin = self.step
        end = min(begin + self.settings.block, self.settings.steps)
        plan = self.conductor.plan(begin, end)
        metrics = self.stepper.run(self._data(begin, end, plan), plan).cpu()
        self.step = end
        self.averaged = [n + end - begin for n in self.averaged]
        lines = self._look(metrics, plan)
        if self.settings.probe and self.step % self.settings.probe == 0:
            lines += self._probe()
        append_metrics(self.folder, lines)
        return metrics[:, :, 0].mean(0)

    def _data(self, begin: int, end: int, plan: Plan) -> Block:
        """Fresh sequences for each seed and step, a pure function of the seed and the block."""
        steps, size = end - begin, self.settings.batch
        batches = [
            self.task.sample(lengths, steps * size, stream(self.device, "data", seed, begin))
            for seed, lengths in zip(self.run.seeds, plan.lengths, strict=True)
        ]
        widest = max(b.inputs.shape[1] for b in batches)
        padded = [_pad(b, widest) for b in batches]

        def table(name: str) -> Tensor:
            rows = torch.stack([getattr(b, name) for b in padded])
            return rows.unflatten(1, (steps, size)).transpose(0, 1).contiguous()

        controls = (plan.gates, plan.leaks, plan.rates, plan.active, plan.weights)
        return Block(
            table("inputs"), table("targets"), table("part"), *(c.to(self.device) for c in controls)
        )

    def _look(self, metrics: Tensor, plan: Plan) -> list[dict[str, Any]]:
        """Check the losses of a block, show them to the methods, and note what happened."""
        parts, lines = self.task.parts, []
        # a last step may break the weights after its loss was taken: they must not be saved
        sound = torch.isfinite(self.stack.table).all(1).tolist()
        for row, seed in enumerate(self.run.seeds):
            losses, accuracies = metrics[:, row, 0], metrics[:, row, 1]
            if not (sound[row] and bool(torch.isfinite(losses).all())):
                raise TrainingError(
                    f"seed {seed}: the loss or a weight is not finite between steps "
                    f"{self.step - len(losses)} and {self.step}; the last good checkpoint is kept "
                    f"in {self.folder}. "
                    f"Try a smaller lr (it is {self.settings.lr:g}) or a longer warmup."
                )
            lines.append(
                {
                    "step": self.step,
                    "seed": seed,
                    "loss": _rounded(parts, losses.mean(0)),
                    "accuracy": _rounded(parts, accuracies.mean(0)),
                }
            )
            shown: Losses = {parts[i]: losses[:, i].tolist() for i in plan.trained(row, parts)}
            for method, event in self.conductor.observe(self.step, row, shown):
                lines.append(
                    {
                        "step": self.step,
                        "seed": seed,
                        "event": event.name,
                        "method": method.spec.name,
                        **event.details,
                    }
                )
                if event.name == "restart":
                    self._restart(row, event.details["attempt"])
        return lines

    def _restart(self, row: int, attempt: int) -> None:
        self.stack.reset(row, attempt)
        self.optimiser.reset(row)
        if self.average is not None:
            self.average[row] = 0
            self.averaged[row] = 0

    def tester(self) -> Callable[[Tensor], Tensor]:
        """Tokens (batch, tokens) to every seed's logits, as the methods leave the gates now."""
        rows = range(len(self.run.seeds))
        gates = torch.tensor(
            [[self.conductor.control(self.step, row).gate[p] for p in PATHWAYS] for row in rows]
        )
        self.stack.set_controls(
            {p: gates[:, i].tolist() for i, p in enumerate(PATHWAYS)},
            {p: [1.0] for p in PATHWAYS},
        )
        weights, gates = self.test_weights(), gates.to(self.device)
        return lambda tokens: self.stack.run(tokens[None], weights, gates)

    @torch.no_grad()
    def _probe(self) -> list[dict[str, Any]]:
        """A quick look at joint accuracy at and beyond the training length."""
        rows = evaluate_stack(
            self.tester(),
            len(self.run.seeds),
            self.task,
            PROBE_MULTIPLES,
            PROBE_SEQUENCES,
            self.device,
            self.stack.model.ceiling,
            variants=False,
            stream_name=f"probe {self.step}",
        )
        found = [
            {f"{r['multiple']:g}": round(r["exact"]["joint"], 4) for r in own if r["exact"]}
            for own in rows
        ]
        self.probe = {m: sum(f[m] for f in found) / len(found) for m in found[0]}
        return [
            {"step": self.step, "seed": seed, "probe": own}
            for seed, own in zip(self.run.seeds, found, strict=True)
        ]

    def _progress(self, losses: Tensor, left: float) -> Progress:
        waiting = sum(
            any(s.get("switched", 0) is None for s in states) for states in self.conductor.states
        )
        return Progress(
            self.step,
            self.settings.steps,
            left,
            _rounded(self.task.parts, losses.mean(0)),
            self.probe,
            waiting,
            len(self.run.seeds),
        )


def _rounded(names: tuple[str, ...], values: Tensor) -> dict[str, float]:
    return {n: round(v, 6) for n, v in zip(names, values.tolist(), strict=True)}


def _pad(batch: Batch, width: int) -> Batch:
    """Widen a batch on the right; causal models never look there and nothing is asked there."""
    extra = (0, width - batch.inputs.shape[1])
    if not extra[1]:
        return batch
    return Batch(
        F.pad(batch.inputs, extra),
        F.pad(batch.targets, extra, value=IGNORE),
        F.pad(batch.part, extra, value=-1),
    )
