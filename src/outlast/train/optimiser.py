"""AdamW over a table of seeds, pathway by pathway.

Every seed has its own learning rate and step count for each pathway, its own clipping and its own
weight decay. A pathway that does not learn in a step is left exactly as it is, whatever its
gradient: no moments, no decay, no count; so attention that joins late starts with fresh moments,
and a seed that is parked stays as it was even where its loss is not a number.

On a GPU with Triton a step is two passes over the table (`kernels/adamw`); the plain operations
here are what it is held to, and what runs elsewhere.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from outlast.kernels.choosing import can_fuse
from outlast.methods.base import PATHWAYS
from outlast.mixers.base import Pathway
from outlast.runs.spec import Settings

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


def learning_rate(settings: Settings, step: int) -> float:
    """The learning rate of a step by its schedule, before any method changes it."""
    warm = min(1.0, (step + 1) / max(1, settings.warmup))
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
        stack: WeightTable,
        max_grad_norm: float | Sequence[float],
        weight_decay: float | Sequence[float],
    ) -> None:
        self.stack = stack
        self.max_grad_norm, self.weight_decay = (
            stack.table.new_tensor(n).expand(len(stack.seeds)).contiguous()
            for n in (max_grad_norm, weight_decay)
        )
        self.first = torch.zeros_like(stack.table)
        self.second = torch.zeros_like(stack.table)
        self.counts = stack.table.new_zeros(len(stack.seeds), len(PATHWAYS))
        # for the fused update: the pathway of each weight (-1: spare), and its decay
        self.pathway = torch.full_like(stack.decays, -1, dtype=torch.int32)
        for pathway, columns in stack.columns.items():
            self.pathway[columns] = PATHWAYS.index(pathway)

    def part(self, stack: WeightTable, rows: slice | list[int]) -> AdamW:
        """The optimiser of some rows, which are those of `stack`; a list of them is a copy."""
        own = copy.copy(self)
        own.stack = stack
        for name in ("first", "second", "counts", "max_grad_norm", "weight_decay"):
            setattr(own, name, getattr(self, name)[rows])
        return own

    def reset(self, row: int) -> None:
        """Forget everything about one seed."""
        for table in (self.first, self.second, self.counts):
            table[row] = 0

    @torch.no_grad()
    def update(self, gradient: Tensor, rates: Tensor, active: Tensor) -> None:
        """One step; `rates` and `active` (0 or 1) are (S, pathways). Uses up the gradient."""
        if can_fuse(self.stack.table, gradient):
            self._update_fused(gradient, rates, active)
        else:
            self._update_plain(gradient, rates, active)

    def _update_fused(self, gradient: Tensor, rates: Tensor, active: Tensor) -> None:
        from outlast.kernels.adamw import triton

        self.counts += active
        count, rate = self.counts.clamp_min(1), rates * active
        decay = rate * self.weight_decay[:, None]
        controls = torch.stack([active, decay, rate / (1 - BETA1**count), 1 - BETA2**count], -1)
        triton.update(
            gradient,
            self.stack.table,
            self.first,
            self.second,
            controls,
            self.pathway,
            self.stack.decays,
            self.max_grad_norm,
            betas=(BETA1, BETA2),
            epsilon=EPSILON,
        )

    def _update_plain(self, gradient: Tensor, rates: Tensor, active: Tensor) -> None:
        for index, pathway in enumerate(PATHWAYS):
            if pathway in self.stack.columns:
                idle = active[:, index, None] == 0
                gradient[:, self.stack.columns[pathway]].masked_fill_(idle, 0.0)
        norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        gradient *= (self.max_grad_norm[:, None] / (norm + 1e-6)).clamp_max(1.0)
        self.counts += active
        for index, pathway in enumerate(PATHWAYS):
            if pathway in self.stack.columns:
                self._update_pathway(
                    self.stack.columns[pathway],
                    gradient,
                    rates[:, index, None],
                    active[:, index, None],
                    self.counts[:, index, None].clamp_min(1),
                )

    def _update_pathway(
        self, columns: slice, gradient: Tensor, rate: Tensor, active: Tensor, count: Tensor
    ) -> None:
        # once more: where the norm is not a number, nor is what was 0
        g = gradient[:, columns].masked_fill_(active == 0, 0.0)
        first, second = self.first[:, columns], self.second[:, columns]
        weights = self.stack.table[:, columns]
        first.lerp_(g, (1 - BETA1) * active)
        second.lerp_(g * g, (1 - BETA2) * active)
        scale = (second / (1 - BETA2**count)).sqrt_().add_(EPSILON)
        rate = rate * active
        weights *= 1 - rate * self.weight_decay[:, None] * self.stack.decays[columns]
        weights -= rate / (1 - BETA1**count) * first / scale
