"""AdamW over a table of seeds, pathway by pathway.

Every seed has its own learning rate, clipping and step count for each pathway. A pathway that
does not learn in a step is left exactly as it is: no moments, no decay, no count; so attention
that joins late starts with fresh moments.

On a GPU with Triton a step is two passes over the table (`kernels/adamw`); the plain operations
here are what it is held to, and what runs elsewhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outlast.kernels.choosing import can_fuse
from outlast.methods.base import PATHWAYS
from outlast.train.stack import Stack

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class AdamW:
    """Moments and counts for a `Stack`, and the update."""

    def __init__(self, stack: Stack, clip: float, weight_decay: float) -> None:
        self.stack, self.clip, self.weight_decay = stack, clip, weight_decay
        self.first = torch.zeros_like(stack.table)
        self.second = torch.zeros_like(stack.table)
        self.counts = stack.table.new_zeros(len(stack.seeds), len(PATHWAYS))
        # for the fused update: the pathway of each weight (-1: spare), and its decay
        self.pathway = torch.full_like(stack.decays, -1, dtype=torch.int32)
        for pathway, columns in stack.columns.items():
            self.pathway[columns] = PATHWAYS.index(pathway)
        self.decays = weight_decay * stack.decays

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
        controls = torch.stack([active, rate, rate / (1 - BETA1**count), 1 - BETA2**count], -1)
        triton.update(
            gradient,
            self.stack.table,
            self.first,
            self.second,
            controls,
            self.pathway,
            self.decays,
            clip=self.clip,
            betas=(BETA1, BETA2),
            epsilon=EPSILON,
        )

    def _update_plain(self, gradient: Tensor, rates: Tensor, active: Tensor) -> None:
        for index, pathway in enumerate(PATHWAYS):
            if pathway in self.stack.columns:
                gradient[:, self.stack.columns[pathway]] *= active[:, index, None]
        norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        gradient *= (self.clip / (norm + 1e-6)).clamp_max(1.0)
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
        g = gradient[:, columns]
        first, second = self.first[:, columns], self.second[:, columns]
        weights = self.stack.table[:, columns]
        first.lerp_(g, (1 - BETA1) * active)
        second.lerp_(g * g, (1 - BETA2) * active)
        scale = (second / (1 - BETA2**count)).sqrt_().add_(EPSILON)
        rate = rate * active
        weights *= 1 - rate * self.weight_decay * self.stack.decays[columns]
        weights -= rate / (1 - BETA1**count) * first / scale
