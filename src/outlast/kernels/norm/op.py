"""Layer norm as a torch op: fake, autograd and vmap rules around the back ends.

Under `vmap` the seeds become the op's own leading axis, and their scales and shifts are read
where they lie in the table of weights.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from outlast.kernels.choosing import can_fuse, product_type
from outlast.kernels.derivatives import first_only
from outlast.kernels.folding import folded
from outlast.kernels.norm import reference

_library = torch.library.Library("outlast", "FRAGMENT")
_library.define("norm(Tensor x, Tensor scale, Tensor shift, float eps, ScalarType dtype) -> Tensor")
_library.define(
    "add_norm(Tensor x, Tensor y, Tensor? z, Tensor? bias, Tensor scale, Tensor shift, float eps, "
    "ScalarType dtype) -> (Tensor, Tensor)"
)
_library.define(
    "norm_backward(Tensor dy, Tensor? dx, Tensor x, Tensor scale, float eps, ScalarType? narrow, "
    "bool biased) -> (Tensor, Tensor, Tensor)"
)


def back_end(x: Tensor, scale: Tensor) -> ModuleType:
    """The module to run: the fused kernel where it can, else the reference."""
    if can_fuse(x, scale):
        from outlast.kernels.norm import triton

        if triton.fits(x):
            return triton
    return reference


def fused(x: Tensor, scale: Tensor) -> bool:
    """Whether this is one pass here; where it is not, torch's own operations do better."""
    return back_end(x, scale) is not reference


def norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float = 1e-5) -> Tensor:
    """Layer norm of x (..., d) with scale and shift (d).

    The result has the type of x; under autocast, where it is fused, that of the products to come.
    Where nothing is fused these are torch's own operations, so every derivative exists there.
    """
    if x.dim() < 2 or not fused(x, scale):
        return reference.plain(x, scale, shift, eps)
    rows = x.reshape(1, -1, *x.shape[-2:])
    out: Tensor = torch.ops.outlast.norm(
        rows, scale.unsqueeze(0), shift.unsqueeze(0), eps, product_type(x)
    )
    return out.reshape(x.shape)


def add_norm(
    x: Tensor,
    y: Tensor,
    scale: Tensor,
    shift: Tensor,
    eps: float = 1e-5,
    z: Tensor | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """x + y (+ z), and its `norm`: the step from one sublayer to the next on a residual stream.

    `bias` (d) is added too, as what the linear maps that made y and z left out.
    """
    added = (y,) if z is None else (y, z)
    alike = all(
        x.shape == a.shape and torch.promote_types(x.dtype, a.dtype) == x.dtype for a in added
    )
    if x.dim() < 2 or not alike or not fused(x, scale):
        total = x + y if z is None else x + y + z
        total = total if bias is None else total + bias
        return total, norm(total, scale, shift, eps)
    rows = (1, -1, *x.shape[-2:])
    total, normed = torch.ops.outlast.add_norm(
        x.reshape(rows),
        y.reshape(rows),
        None if z is None else z.reshape(rows),
        None if bias is None else bias.unsqueeze(0),
        scale.unsqueeze(0),
        shift.unsqueeze(0),
        eps,
        product_type(x),
    )
    return total.reshape(x.shape), normed.reshape(x.shape)


def _norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    found: Tensor = back_end(x, scale).forward(x, scale, shift, eps, dtype)
    return found


def _add_norm(
    x: Tensor,
    y: Tensor,
    z: Tensor | None,
    bias: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = back_end(x, scale).add_forward(
        x, y, z, bias, scale, shift, eps, dtype
    )
    return found


def _norm_backward(
    dy: Tensor,
    dx: Tensor | None,
    x: Tensor,
    scale: Tensor,
    eps: float,
    narrow: torch.dtype | None,
    biased: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = back_end(x, scale).backward(
        dy, dx, x, scale, eps, narrow, biased
    )
    return found


@torch.library.register_fake("outlast::norm", lib=_library)
def _(x: Tensor, scale: Tensor, shift: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


@torch.library.register_fake("outlast::add_norm", lib=_library)
def _(
    x: Tensor,
    y: Tensor,
    z: Tensor | None,
    bias: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape, dtype=dtype)


@torch.library.register_fake("outlast::norm_backward", lib=_library)
def _(
    dy: Tensor,
    dx: Tensor | None,
    x: Tensor,
    scale: Tensor,
    eps: float,
    narrow: torch.dtype | None,
    biased: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    copy = x.new_empty(len(x), 0) if narrow is None else x.new_empty(x.shape, dtype=narrow)
    return x.new_empty(x.shape), scale.new_empty(len(scale), 2 + biased, *scale.shape[1:]), copy


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, scale, _, ctx.eps, _ = inputs
    ctx.save_for_backward(x, scale)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    dx, affine, _ = torch.ops.outlast.norm_backward(
        dy, None, *ctx.saved_tensors, ctx.eps, None, False
    )
    return dx, affine[:, 0], affine[:, 1], None, None


def _save_sum(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, y, z, bias, scale, _, ctx.eps, _ = inputs
    ctx.dtypes = [None if a is None else a.dtype for a in (y, z)]
    ctx.bias = None if bias is None else bias.dtype
    ctx.set_materialize_grads(False)  # the last sum of a stream is only ever normed
    ctx.save_for_backward(output[0], scale)


def _differentiate_sum(
    ctx: Any, d_total: Tensor | None, d_normed: Tensor | None
) -> tuple[Tensor | None, ...]:
    if d_normed is None:
        if d_total is None:
            return (None,) * 8
        past = (None if k is None else d_total.to(k) for k in ctx.dtypes)
        d_bias = None if ctx.bias is None else d_total.sum((1, 2)).to(ctx.bias)
        return d_total, *past, d_bias, None, None, None, None
    total, scale = ctx.saved_tensors
    narrow = next((k for k in ctx.dtypes if k not in (None, total.dtype)), None)
    biased = ctx.bias is not None
    dx, affine, copy = torch.ops.outlast.norm_backward(
        d_normed, d_total, total, scale, ctx.eps, narrow, biased
    )
    added = (None if k is None else copy if k == narrow else dx.to(k) for k in ctx.dtypes)
    d_bias = affine[:, 2].to(ctx.bias) if biased else None
    return dx, *added, d_bias, affine[:, 0], affine[:, 1], None, None


_refuse = first_only("the norm kernel has")


_library.impl("norm", _norm, "CompositeExplicitAutograd")
_library.impl("add_norm", _add_norm, "CompositeExplicitAutograd")
_library.impl("norm_backward", _norm_backward, "CompositeExplicitAutograd")
torch.library.register_autograd("outlast::norm", _differentiate, setup_context=_save, lib=_library)
torch.library.register_autograd(
    "outlast::add_norm", _differentiate_sum, setup_context=_save_sum, lib=_library
)
torch.library.register_autograd("outlast::norm_backward", _refuse, lib=_library)
for _name in ("norm", "add_norm", "norm_backward"):
    torch.library.register_vmap(
        f"outlast::{_name}", folded(getattr(torch.ops.outlast, _name)), lib=_library
    )
