"""Layer norm as a torch op: fake, autograd and vmap rules around the back ends.

Under `vmap` the seeds become the op's own leading axis, and their scales and shifts are read
where they lie in the table of weights.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from outlast.kernels.choosing import can_fuse
from outlast.kernels.folding import folded
from outlast.kernels.norm import reference

_library = torch.library.Library("outlast", "FRAGMENT")
_library.define("norm(Tensor x, Tensor scale, Tensor shift, float eps) -> Tensor")
_library.define("norm_backward(Tensor dy, Tensor x, Tensor scale, float eps) -> (Tensor, Tensor)")


def back_end(x: Tensor, scale: Tensor) -> ModuleType:
    """The module to run: the fused kernel where it can, else the reference."""
    if can_fuse(x, scale):
        from outlast.kernels.norm import triton as fused

        if fused.fits(x):
            return fused
    return reference


def norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float = 1e-5) -> Tensor:
    """Layer norm of x (..., d) with scale and shift (d); the result has the type of x.

    Where nothing is fused these are torch's own operations, so every derivative exists there.
    """
    if x.dim() < 2 or back_end(x, scale) is reference:
        return reference.plain(x, scale, shift, eps)
    rows = x.reshape(1, -1, *x.shape[-2:])
    out: Tensor = torch.ops.outlast.norm(rows, scale.unsqueeze(0), shift.unsqueeze(0), eps)
    return out.reshape(x.shape)


def _norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    found: Tensor = back_end(x, scale).forward(x, scale, shift, eps)
    return found


def _norm_backward(dy: Tensor, x: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = back_end(x, scale).backward(dy, x, scale, eps)
    return found


@torch.library.register_fake("outlast::norm", lib=_library)
def _(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("outlast::norm_backward", lib=_library)
def _(dy: Tensor, x: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), scale.new_empty(len(scale), 2, *scale.shape[1:])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, scale, _, ctx.eps = inputs
    ctx.save_for_backward(x, scale)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    dx, affine = torch.ops.outlast.norm_backward(dy, *ctx.saved_tensors, ctx.eps)
    return dx, affine[:, 0], affine[:, 1], None


def _refuse(ctx: Any, *_: Tensor) -> tuple[Tensor, ...]:
    raise NotImplementedError("the norm kernel has first derivatives only; use the CPU for more")


_library.impl("norm", _norm, "CompositeExplicitAutograd")
_library.impl("norm_backward", _norm_backward, "CompositeExplicitAutograd")
torch.library.register_autograd("outlast::norm", _differentiate, setup_context=_save, lib=_library)
torch.library.register_autograd("outlast::norm_backward", _refuse, lib=_library)
for _name in ("norm", "norm_backward"):
    torch.library.register_vmap(
        f"outlast::{_name}", folded(getattr(torch.ops.outlast, _name)), lib=_library
    )
