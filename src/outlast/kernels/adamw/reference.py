"""AdamW (Loshchilov & Hutter, arXiv 1711.05101) on a table of seeds: the truth.

Shapes (S seeds, P weights, W pathways)::

    weights, gradient, first, second  [S, P]   first and second are the moments
    counts                            [S, W]   how many steps each pathway has learned
    rates                             [S, W]   learning rates of this step
    active                            [S, W]   1 where a pathway learns in this step, 0 elsewhere
    clip, weight_decay                [S]      largest norm of a seed's gradient; decay

A pathway that does not learn is left exactly as it is, even if its gradient is not finite: no
moments, no decay, no count.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Columns(NamedTuple):
    """What the columns of a table are.

    Args:
        slices: The columns of each pathway, by the pathway's index.
        pathway: [P] int32, the pathway of each weight; -1 for a column that holds no weight.
        decays: [P], 1 where a weight is decayed, 0 where it is not.
    """

    slices: dict[int, slice]
    pathway: Tensor
    decays: Tensor

    @classmethod
    def of(cls, slices: dict[int, slice], decays: Tensor) -> Columns:
        """With the pathway of each weight filled in."""
        pathway = torch.full_like(decays, -1, dtype=torch.int32)
        for index, columns in slices.items():
            pathway[columns] = index
        return cls(slices, pathway, decays)


def update(
    weights: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    counts: Tensor,
    rates: Tensor,
    active: Tensor,
    clip: Tensor,
    weight_decay: Tensor,
    columns: Columns,
) -> None:
    """One step of all seeds, in place; the gradient is used up."""
    for index, slice_ in columns.slices.items():
        gradient[:, slice_].masked_fill_(active[:, index, None] == 0, 0.0)
    norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
    gradient *= (clip[:, None] / (norm + 1e-6)).clamp_max(1.0)
    counts += active
    for index, slice_ in columns.slices.items():
        count = counts[:, index, None].clamp_min(1)
        learns = active[:, index, None]
        rate = rates[:, index, None] * learns
        # once more: where the norm is not a number, nor is what was 0
        g = gradient[:, slice_].masked_fill_(learns == 0, 0.0)
        m, v, w = (table[:, slice_] for table in (first, second, weights))
        m.lerp_(g, (1 - BETA1) * learns)
        v.lerp_(g * g, (1 - BETA2) * learns)
        scale = (v / (1 - BETA2**count)).sqrt_().add_(EPSILON)
        w *= 1 - rate * weight_decay[:, None] * columns.decays[slice_]
        w -= rate / (1 - BETA1**count) * m / scale
