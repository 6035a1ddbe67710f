"""One block of training steps for all seeds, without a word to the host.

The data, the plan and the metrics of a block lie in tables on the device; a step reads its row
by a counter that lives there too. So on a GPU one step is captured as a CUDA graph and replayed,
and on the CPU the same code simply runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from outlast.kernels.loss import part_losses
from outlast.methods.base import PATHWAYS
from outlast.tasks import IGNORE, Batch
from outlast.train.plan import TABLES, Plan
from outlast.train.rows import SeedState

#: on a GPU a step's tokens are rounded up to a multiple of this, so that a few graphs serve all
COARSE = 8
#: kinds of work whose graphs are kept: each holds the data of a block, and a curriculum goes
#: through many. Two at the least, as graphs share their memory, which goes with the last of them
KEPT = 8


@dataclass
class Block:
    """The tables of a block, each with the steps first and the seeds second."""

    inputs: Tensor
    targets: Tensor
    part: Tensor
    gates: Tensor
    upstream_grads: Tensor
    rates: Tensor
    active: Tensor
    weights: Tensor
    alive: Tensor
    keys: Tensor
    positions: Tensor

    @classmethod
    def of(cls, data: Batch, plan: Plan) -> Block:
        """The data of a block with its plan, on the data's device."""
        controls = {n: getattr(plan, n).to(data.inputs.device) for n in TABLES}
        return cls(data.inputs, data.targets, data.part, **controls)

    def at(self, step: Tensor) -> Block:
        """The row of one step."""
        return Block(*(getattr(self, f.name).index_select(0, step)[0] for f in fields(self)))

    def widths(self) -> list[int]:
        """How many tokens each step needs: nothing is asked past them, and nothing looks back."""
        asked = (self.part >= 0).any(1).any(1)
        places = torch.arange(1, asked.shape[1] + 1, device=asked.device)
        found: list[int] = (asked * places).amax(1).clamp_min(1).tolist()
        return found

    def cut(self, width: int) -> Block:
        """The row of a step with its first tokens only."""
        if width >= self.inputs.shape[-1]:
            return self
        names = ("inputs", "targets", "part", "positions")
        return replace(self, **{n: getattr(self, n)[..., :width].contiguous() for n in names})

    def copy_(self, other: Block) -> None:
        """Take over the numbers of another block of the same shape."""
        for f in fields(self):
            getattr(self, f.name).copy_(getattr(other, f.name))


@dataclass
class Recorded:
    """The graphs of one kind of work, by their tokens, and the tables they read and write."""

    block: Block
    metrics: Tensor
    graphs: dict[int, torch.cuda.CUDAGraph]


class Stepper:
    """Runs blocks of steps; on a GPU through CUDA graphs, one for each shape of the work.

    What was used last is kept, and the rest made anew when it is wanted again. With `by_length` a
    step has no more tokens than it needs.
    """

    def __init__(
        self,
        rows: SeedState,
        parts: tuple[str, ...],
        bf16: bool,
        pool: Any = None,
        by_length: bool = False,
    ) -> None:
        self.by_length = by_length
        self.rows, self.stack, self.optimiser = rows, rows.stack, rows.optimiser
        self.parts, self.bf16, self.pool = parts, bf16, pool
        self.device = self.stack.table.device
        self.cursor = torch.zeros(1, dtype=torch.long, device=self.device)
        #: by the shape of the work, what was used last at the end
        self.recorded: dict[object, Recorded] = {}

    def run(self, data: Batch, plan: Plan) -> Tensor:
        """All steps of a block; returns losses and accuracies (steps, S, 2, parts).

        data (steps, S, batch, tokens), on the device of the stack.
        """
        block = Block.of(data, plan)
        gates = {p: plan.column(plan.gates, p) for p in PATHWAYS}
        upstream_grads = {p: plan.column(plan.upstream_grads, p) for p in PATHWAYS}
        self.stack.set_controls(gates, upstream_grads)
        steps, seeds = block.inputs.shape[:2]
        metrics = torch.zeros(steps, seeds, 2, len(self.parts), device=self.device)
        tokens = block.inputs.shape[-1]
        widths = block.widths() if self.by_length else [tokens] * steps
        if self.device.type == "cuda":
            modes = tuple((s.gate_mode, s.upstream_mode) for s in self.stack.model.sublayers())
            shape = (tuple(block.inputs.shape), block.positions.shape[-1])
            coarse = [min(-(-width // COARSE) * COARSE, tokens) for width in widths]
            return self._replay((shape, modes), block, metrics, coarse)
        self.cursor.zero_()
        for width in widths:
            self._step(block, metrics, width)
        return metrics

    def _step(self, block: Block, metrics: Tensor, width: int) -> None:
        now = block.at(self.cursor).cut(width)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            logits = self.stack.run(
                now.inputs,
                gates=now.gates,
                upstream_grads=now.upstream_grads,
                positions=now.positions if now.positions.shape[-1] else None,
                keys=now.keys,
            )
        losses, accuracies = part_losses(logits, now.targets, now.part, len(self.parts), IGNORE)
        gradient = self.stack.gradient((losses * now.weights).sum())
        self.optimiser.update(gradient, now.rates, now.active)
        with torch.no_grad():
            if self.rows.average is not None:
                shares = self.rows.shares * now.alive
                self.rows.average.lerp_(self.stack.table, shares[:, None])
            metrics.index_copy_(0, self.cursor, torch.stack([losses, accuracies], 1)[None].detach())
            self.cursor += 1

    def _replay(self, key: object, block: Block, metrics: Tensor, widths: Sequence[int]) -> Tensor:
        known = self.recorded.pop(key, None)
        if known is None:
            while len(self.recorded) >= KEPT:  # before, so that the new one has the room
                del self.recorded[next(iter(self.recorded))]
            known = Recorded(block, metrics, {})
        for width in sorted(set(widths) - known.graphs.keys()):
            known.graphs[width] = self._capture(known.block, known.metrics, width)
        self.recorded[key] = known
        known.block.copy_(block)
        self.cursor.zero_()
        for width in widths:
            known.graphs[width].replay()
        return known.metrics.clone()

    def _capture(self, block: Block, metrics: Tensor, width: int) -> torch.cuda.CUDAGraph:
        """Warm up on a side stream, record one step, and put every number back as it was."""
        saved = self.rows.copy()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.cursor.zero_()
                self._step(block, metrics, width)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self.cursor.zero_()
        with torch.cuda.graph(graph, pool=self.pool):
            self._step(block, metrics, width)
        self.rows.put_back(saved)
        return graph
