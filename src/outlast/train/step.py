"""One block of training steps for all seeds, without a look by the host.

The data, the plan and the metrics of a block lie in tables on the device; a step reads its row
by a counter that lives there too. So on a GPU one step is captured as a CUDA graph and replayed,
and on the CPU the same code simply runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outlast.kernels.loss import part_losses
from outlast.methods.base import SUBLAYER_CONTROLS
from outlast.tasks import IGNORE, Batch
from outlast.train.augmentation import draw_mix
from outlast.train.initial_state import state_inputs
from outlast.train.plan import Plan, Tables
from outlast.train.seeds import SeedState

#: on a GPU a step's tokens are rounded up to a multiple of this, so that a few graphs serve all
COARSE = 8
#: kinds of work whose graphs are kept: each holds the data of a block, and a curriculum goes
#: through many. Two at the least, as graphs share their memory, which goes with the last of them
KEPT = 8
#: more keys than any sequence has
MOST = 2**31 - 1


@dataclass(frozen=True)
class BlockTables:
    """The data of a block and the tables of its plan; each has the steps first, then the seeds."""

    data: Batch
    tables: Tables

    @classmethod
    def of(cls, data: Batch, plan: Plan) -> BlockTables:
        """The data of a block with its plan, on the data's device."""
        return cls(data, plan.map(lambda table: table.to(data.inputs.device)).tables)

    def at(self, step: Tensor) -> BlockTables:
        """The row of one step."""

        def row(table: Tensor) -> Tensor:
            return table.index_select(0, step)[0]

        return BlockTables(self.data.map(row), {n: row(table) for n, table in self.tables.items()})

    def widths(self) -> list[int]:
        """How many tokens each step needs: nothing is asked past them, and nothing looks back."""
        asked = (self.data.part >= 0).any(1).any(1)
        places = torch.arange(1, asked.shape[1] + 1, device=asked.device)
        widths: list[int] = (asked * places).amax(1).clamp_min(1).tolist()
        return widths

    def cut(self, width: int) -> BlockTables:
        """The row of a step with its first tokens only."""
        if width >= self.data.inputs.shape[-1]:
            return self

        def first(page: Tensor) -> Tensor:
            return page[..., :width].contiguous()

        positions = first(self.tables["positions"])
        return BlockTables(self.data.map(first), self.tables | {"positions": positions})

    def copy_(self, other: BlockTables) -> None:
        """Take over the numbers of another block of the same shape."""
        for table, values in zip(self._tensors(), other._tensors(), strict=True):
            table.copy_(values)

    def _tensors(self) -> list[Tensor]:
        return [self.data.inputs, self.data.targets, self.data.part, *self.tables.values()]


@dataclass
class CapturedBlock:
    """The CUDA graphs of one shape of work, by their tokens, and what they read and write."""

    block: BlockTables
    metrics: Tensor
    graphs: dict[int, torch.cuda.CUDAGraph]


class Stepper:
    """Runs blocks of steps; on a GPU through CUDA graphs, one for each shape of the work.

    The graphs that were used last are kept; the others are captured again when they are needed.
    With `by_length` a step has no more tokens than it needs. `pool` is the memory of the graphs.
    """

    def __init__(
        self,
        seeds: SeedState,
        parts: tuple[str, ...],
        bf16: bool,
        pool: Any = None,
        by_length: bool = False,
    ) -> None:
        self.seeds, self.parts, self.bf16 = seeds, parts, bf16
        self.pool, self.by_length = pool, by_length
        self.device = seeds.model.table.device
        #: whether any weights are fixed in the block at hand
        self.fixes = False
        #: the kinds of initial state, other than none, in the block at hand
        self.initial_states: tuple[str, ...] = ()
        #: whether attention is kept to a window in the block at hand
        self.windowed = False
        #: whether tokens are mixed in the block at hand
        self.mixes = False
        self.cursor = torch.zeros(1, dtype=torch.long, device=self.device)
        #: by the shape of the work, what was used last at the end
        self.captured: dict[object, CapturedBlock] = {}

    def run(self, data: Batch, plan: Plan) -> Tensor:
        """All steps of a block; returns losses and accuracies (steps, S, 2, parts).

        data (steps, S, batch, tokens), on the device of the seeds.
        """
        block = BlockTables.of(data, plan)
        self.seeds.model.set_modes(plan.tables)
        self.fixes = bool(plan.tables["fixed"].any())
        self.initial_states = plan.initial_states
        self.windowed = bool(plan.tables["window"].any())
        self.mixes = bool(plan.tables["mix"].any())
        steps, seeds, _, tokens = data.inputs.shape
        metrics = torch.zeros(steps, seeds, 2, len(self.parts), device=self.device)
        widths = block.widths() if self.by_length else [tokens] * steps
        if self.device.type == "cuda":
            sublayers = self.seeds.model.model.sublayers()
            modes = tuple(getattr(s, f"{n}_mode") for s in sublayers for n in SUBLAYER_CONTROLS)
            shape = (tuple(data.inputs.shape), block.tables["positions"].shape[-1])
            coarse = [min(-(-width // COARSE) * COARSE, tokens) for width in widths]
            changes = (self.fixes, self.initial_states, self.windowed, self.mixes)
            key = (shape, modes, *changes)
            return self._replay(key, block, metrics, coarse)
        self.cursor.zero_()
        for width in widths:
            self._step(block, metrics, width)
        return metrics

    def _step(self, block: BlockTables, metrics: Tensor, width: int) -> None:
        """One optimiser step of all seeds: forward, losses by part, backward, AdamW, average."""
        now = block.at(self.cursor).cut(width)
        seeds, data, tables = self.seeds, now.data, now.tables
        initial = None
        if kinds := self.initial_states:
            initial = state_inputs(data, tables["initial_state"], kinds)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            logits = seeds.model.run(
                data.inputs,
                controls=tables,
                positions=tables["positions"] if tables["positions"].shape[-1] else None,
                keys=tables["keys"],
                initial=initial,
                windows=_windows(tables["window"]) if self.windowed else None,
                mix=draw_mix(data, tables, seeds.model.model.mixing_points) if self.mixes else None,
            )
        losses, accuracies = part_losses(logits, data.targets, data.part, len(self.parts), IGNORE)
        gradient = seeds.model.gradient((losses * tables["loss_weights"]).sum())
        fixed = seeds.model.fixed(gradient, tables["fixed"]) if self.fixes else nullcontext()
        with fixed:
            seeds.optimiser.update(gradient, tables["rate"], tables["active"])
        with torch.no_grad():
            if seeds.average is not None:
                rates = seeds.average_rate * tables["alive"]
                seeds.average.lerp_(seeds.model.table, rates[:, None])
            metrics.index_copy_(0, self.cursor, torch.stack([losses, accuracies], 1)[None].detach())
            self.cursor += 1

    def _replay(
        self, key: object, block: BlockTables, metrics: Tensor, widths: Sequence[int]
    ) -> Tensor:
        captured = self.captured.pop(key, None)
        if captured is None:
            while len(self.captured) >= KEPT:  # before, so that the new one has the room
                del self.captured[next(iter(self.captured))]
            captured = CapturedBlock(block, metrics, {})
        for width in sorted(set(widths) - captured.graphs.keys()):
            captured.graphs[width] = self._capture(captured.block, captured.metrics, width)
        self.captured[key] = captured
        captured.block.copy_(block)
        self.cursor.zero_()
        for width in widths:
            captured.graphs[width].replay()
        return captured.metrics.clone()

    def _capture(self, block: BlockTables, metrics: Tensor, width: int) -> torch.cuda.CUDAGraph:
        """Warm up on a side stream, record one step, and put every number back as it was."""
        saved = self.seeds.read()
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
        self.seeds.write(saved)
        return graph


def _windows(window: Tensor) -> Tensor:
    """The windows of all seeds, (S); a seed that sees all keys has one larger than any sequence."""
    return window.masked_fill(window == 0, MOST)
