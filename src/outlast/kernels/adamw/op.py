"""Which AdamW runs: two fused passes over the table on a GPU, else the reference."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from outlast.kernels.adamw import reference
from outlast.kernels.dispatch import can_fuse


def back_end(weights: Tensor, gradient: Tensor) -> ModuleType:
    """The module to run: the fused kernel where it can, else the reference."""
    if can_fuse(weights, gradient):
        from outlast.kernels.adamw import triton

        return triton
    return reference


@torch.no_grad()
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
    columns: reference.Columns,
) -> None:
    """One step of all seeds, in place; the gradient is used up. Shapes are in `reference`."""
    back_end(weights, gradient).update(
        weights, gradient, first, second, counts, rates, active, clip, weight_decay, columns
    )
