"""AdamW over a table of seeds, pathway by pathway.

Every seed has its own learning rate and step count for each pathway, its own clipping and its own
weight decay. A pathway that does not learn in a step is left exactly as it is, whatever its
gradient. So attention that joins late starts with fresh moments, and a parked seed stays as it was
even where its loss is not a number. `kernels/adamw` makes the update.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from outlast.kernels import adamw
from outlast.methods.base import PATHWAYS
from outlast.train.stack import StackedModel


class AdamW:
    """Moments and counts for a `StackedModel`, and the update."""

    def __init__(
        self,
        stack: StackedModel,
        clip: float | Sequence[float],
        weight_decay: float | Sequence[float],
    ) -> None:
        self.stack = stack
        self.clip, self.weight_decay = (
            stack.table.new_tensor(n).expand(len(stack.seeds)).contiguous()
            for n in (clip, weight_decay)
        )
        self.first = torch.zeros_like(stack.table)
        self.second = torch.zeros_like(stack.table)
        self.counts = stack.table.new_zeros(len(stack.seeds), len(PATHWAYS))
        slices = {i: stack.columns[p] for i, p in enumerate(PATHWAYS) if p in stack.columns}
        self.columns = adamw.Columns.of(slices, stack.decays)

    def part(self, stack: StackedModel, rows: slice | list[int]) -> AdamW:
        """The optimiser of some rows, which are those of `stack`; a list of them is a copy."""
        part = copy.copy(self)
        part.stack = stack
        for name in ("first", "second", "counts", "clip", "weight_decay"):
            setattr(part, name, getattr(self, name)[rows])
        return part

    def reset(self, row: int) -> None:
        """Forget everything about one seed."""
        for table in (self.first, self.second, self.counts):
            table[row] = 0

    def update(self, gradient: Tensor, rates: Tensor, active: Tensor) -> None:
        """One step; `rates` and `active` (0 or 1) are [S, pathways]. The gradient is used up."""
        adamw.update(
            self.stack.table,
            gradient,
            self.first,
            self.second,
            self.counts,
            rates,
            active,
            self.clip,
            self.weight_decay,
            self.columns,
        )
