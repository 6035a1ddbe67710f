"""Losses by part as a torch op: fake, autograd and vmap rules around the back ends."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from outlast.kernels.choosing import can_fuse
from outlast.kernels.derivatives import first_only
from outlast.kernels.folding import folded
from outlast.kernels.loss import reference
from outlast.kernels.rows import filled_up

_library = torch.library.Library("outlast", "FRAGMENT")
_library.define(
    "part_losses(Tensor logits, Tensor targets, Tensor part, int parts, int ignore) "
    "-> (Tensor, Tensor, Tensor)"
)
_library.define(
    "part_losses_backward(Tensor d_losses, Tensor counts, Tensor logits, Tensor targets, "
    "Tensor part, int ignore) -> Tensor"
)


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
    """Mean cross-entropy and accuracy by part, each (S, parts), in float32.

    logits (S, batch, tokens, classes); targets and part (S, batch, tokens).
    """
    if back_end(logits) is reference:
        return reference.plain(logits, targets, part, parts, ignore)
    losses, accuracies, _ = torch.ops.outlast.part_losses(logits, targets, part, parts, ignore)
    return losses, accuracies


def _part_losses(
    logits: Tensor, targets: Tensor, part: Tensor, parts: int, ignore: int
) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = back_end(logits).forward(
        logits, targets, part, parts, ignore
    )
    return found


def _part_losses_backward(
    d_losses: Tensor, counts: Tensor, logits: Tensor, targets: Tensor, part: Tensor, ignore: int
) -> Tensor:
    found: Tensor = back_end(logits).backward(d_losses, counts, logits, targets, part, ignore)
    return found


@torch.library.register_fake("outlast::part_losses", lib=_library)
def _(
    logits: Tensor, targets: Tensor, part: Tensor, parts: int, ignore: int
) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.promote_types(logits.dtype, torch.float32)
    one, two, three = (logits.new_empty(len(logits), parts, dtype=wide) for _ in range(3))
    return one, two, three


@torch.library.register_fake("outlast::part_losses_backward", lib=_library)
def _(
    d_losses: Tensor, counts: Tensor, logits: Tensor, targets: Tensor, part: Tensor, ignore: int
) -> Tensor:
    plain = back_end(logits) is reference
    return logits.new_empty(logits.shape) if plain else filled_up(logits)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, targets, part, _, ctx.ignore = inputs
    ctx.save_for_backward(output[2], logits, targets, part)


def _differentiate(ctx: Any, d_losses: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    return torch.ops.outlast.part_losses_backward(d_losses, *saved, ctx.ignore), *[None] * 4


_refuse = first_only("the loss kernel has")


_library.impl("part_losses", _part_losses, "CompositeExplicitAutograd")
_library.impl("part_losses_backward", _part_losses_backward, "CompositeExplicitAutograd")
torch.library.register_autograd(
    "outlast::part_losses", _differentiate, setup_context=_save, lib=_library
)
torch.library.register_autograd("outlast::part_losses_backward", _refuse, lib=_library)
for _name in ("part_losses", "part_losses_backward"):
    torch.library.register_vmap(
        f"outlast::{_name}", folded(getattr(torch.ops.outlast, _name)), lib=_library
    )
