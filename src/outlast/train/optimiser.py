"""AdamW over a table of seeds, pathway by pathway.

Every seed has its own learning rate and step count for each pathway, its own clipping and its own
weight decay. A pathway that does not learn in a step is left exactly as it is, whatever its
gradient. So attention that joins late starts with fresh moments, and a parked seed stays as it was
even where its loss is not a number. `kernels/adamw` makes the update.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from outlast.kernels import adamw
from outlast.methods.base import PATHWAYS
from outlast.mixers.base import Pathway
from outlast.runs.spec import Settings


def learning_rate(settings: Settings, step: int) -> float:
    """The learning rate of a step by its schedule, before any method changes it."""
    warm = min(1.0, (step + 1) / max(1, settings.warmup_steps))
    start = {"constant": 1.0, "cosine": 0.0}.get(settings.schedule, settings.decay_from)
    done = step / settings.steps
    falling = 0.0 if done <= start else (done - start) / (1 - start)
    return settings.lr * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * falling)))


class WeightTable(Protocol):
    """What the optimiser needs of a `StackedModel`."""

    seeds: tuple[int, ...]
    #: the weights (S, P), and whether each of them is decayed (P)
    table: Tensor
    decays: Tensor
    columns: dict[Pathway, slice]


class AdamW:
    """Moments and counts for a `StackedModel`, and the update."""

    def __init__(
        self,
        model: WeightTable,
        max_grad_norm: float | Sequence[float],
        weight_decay: float | Sequence[float],
    ) -> None:
        self.model = model
        self.max_grad_norm, self.weight_decay = (
            model.table.new_tensor(n).expand(len(model.seeds)).contiguous()
            for n in (max_grad_norm, weight_decay)
        )
        self.first = torch.zeros_like(model.table)
        self.second = torch.zeros_like(model.table)
        self.counts = model.table.new_zeros(len(model.seeds), len(PATHWAYS))
        slices = {i: model.columns[p] for i, p in enumerate(PATHWAYS) if p in model.columns}
        self.columns = adamw.Columns.of(slices, model.decays)

    def part(self, model: WeightTable, rows: slice | list[int]) -> AdamW:
        """The optimiser of some rows, which are those of `model`; a list of them is a copy."""
        part = copy.copy(self)
        part.model = model
        for name in ("first", "second", "counts", "max_grad_norm", "weight_decay"):
            setattr(part, name, getattr(self, name)[rows])
        return part

    def reset(self, row: int) -> None:
        """Forget everything about one seed."""
        for table in (self.first, self.second, self.counts):
            table[row] = 0

    def update(self, gradient: Tensor, rates: Tensor, active: Tensor) -> None:
        """One step; `rates` and `active` (0 or 1) are [S, pathways]. The gradient is used up."""
        adamw.update(
            self.model.table,
            gradient,
            self.first,
            self.second,
            self.counts,
            rates,
            active,
            self.max_grad_norm,
            self.weight_decay,
            self.columns,
        )
