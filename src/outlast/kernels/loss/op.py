"""Losses by part as a torch op."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from outlast.kernels.derivatives import first_only
from outlast.kernels.dispatch import can_fuse
from outlast.kernels.loss import reference
from outlast.kernels.register import register_op
from outlast.kernels.row_alignment import empty_aligned


def back_end(logits: Tensor) -> ModuleType:
    """The module to run: the fused kernel where it can, else the reference."""
    if can_fuse(logits):
        from outlast.kernels.loss import triton

        if triton.fits(logits):
            return triton
    return reference


def part_losses(
    logits: Tensor, targets: Tensor, part: Tensor, parts: int, ignore: int
) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy and accuracy by part, in float32.

    Args:
        logits: [S, B, T, classes].
        targets: [S, B, T], the class of each token, or `ignore`.
        part: [S, B, T], the part of each token; it belongs to none outside 0 to `parts` - 1.
        parts: How many parts there are.
        ignore: The target of a token that asks nothing.

    Returns:
        Losses and accuracies, each [S, parts].
    """
    if back_end(logits) is reference:
        return reference.plain(logits, targets, part, parts, ignore)
    losses, accuracies, _ = part_losses_op(logits, targets, part, parts, ignore)
    return losses, accuracies


def _part_losses(
    logits: Tensor, targets: Tensor, part: Tensor, parts: int, ignore: int
) -> tuple[Tensor, Tensor, Tensor]:
    losses, accuracies, counts = back_end(logits).forward(logits, targets, part, parts, ignore)
    return losses, accuracies, counts


def _part_losses_backward(
    d_losses: Tensor, counts: Tensor, logits: Tensor, targets: Tensor, part: Tensor, ignore: int
) -> Tensor:
    d_logits: Tensor = back_end(logits).backward(d_losses, counts, logits, targets, part, ignore)
    return d_logits


def _empty_losses(logits: Tensor, targets: Tensor, part: Tensor, parts: int, ignore: int) -> Any:
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return tuple(logits.new_empty(len(logits), parts, dtype=dtype) for _ in range(3))


def _empty_gradient(d_losses: Tensor, counts: Tensor, logits: Tensor, *_: Any) -> Tensor:
    dense = back_end(logits) is reference
    return logits.new_empty(logits.shape) if dense else empty_aligned(logits)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, targets, part, _, ctx.ignore = inputs
    ctx.save_for_backward(output[2], logits, targets, part)


def _differentiate(ctx: Any, d_losses: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    counts, logits, targets, part = ctx.saved_tensors
    d_logits = part_losses_backward_op(d_losses, counts, logits, targets, part, ctx.ignore)
    return d_logits, *[None] * 4


part_losses_backward_op = register_op(
    "part_losses_backward",
    _part_losses_backward,
    fake=_empty_gradient,
    backward=first_only("the loss kernel has"),
)
part_losses_op = register_op(
    "part_losses", _part_losses, fake=_empty_losses, backward=_differentiate, save=_save
)
