"""RMS norm on a residual stream as a torch op, through the kernels of layer norm.

One op for all it may have to do in its pass: what waits to be added to the stream, the norm in the
type of the products to come, and, where the stream goes on normalised, the norm in the stream's own
type too. Under `vmap` the seeds become the op's own leading axis, as in `op.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from outlast.kernels.choosing import product_type
from outlast.kernels.derivatives import first_only
from outlast.kernels.folding import folded
from outlast.kernels.norm import reference
from outlast.kernels.norm.op import back_end, fused

_library = torch.library.Library("outlast", "FRAGMENT")
_library.define(
    "rms(Tensor x, Tensor? y, Tensor? z, Tensor? bias, Tensor scale, float eps, ScalarType dtype, "
    "ScalarType? kept) -> (Tensor, Tensor, Tensor)"
)
_library.define(
    "rms_backward(Tensor dy, Tensor? also, Tensor? dx, Tensor x, Tensor scale, float eps, "
    "ScalarType? narrow, bool biased) -> (Tensor, Tensor, Tensor)"
)
_ARGUMENTS = 8


def rms(
    x: Tensor,
    scale: Tensor,
    eps: float = 1e-6,
    added: Sequence[Tensor] = (),
    bias: Tensor | None = None,
    keep: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """x (..., d) and up to two that are added to it, the RMS norm of that, and the norm to keep.

    `bias` (d) is added too. The norm has the type of x; under autocast, where it is fused, that of
    the products to come. The norm to keep has the type of x in either case, if it is asked for.
    """
    if bias is not None and not added:
        x, bias = x + bias, None
    alike = all(
        x.shape == a.shape and torch.promote_types(x.dtype, a.dtype) == x.dtype for a in added
    )
    if x.dim() < 2 or not alike or not fused(x, scale):
        total = sum(added, x)
        total = total if bias is None else total + bias
        normed = reference.plain_rms(total, scale, eps)
        return total, normed, normed
    rows = (1, -1, *x.shape[-2:])
    y, z = [*(a.reshape(rows) for a in added), None, None][:2]
    dtype = product_type(x)
    kept = x.dtype if keep and dtype != x.dtype else None
    found = torch.ops.outlast.rms(
        x.reshape(rows),
        y,
        z,
        None if bias is None else bias.unsqueeze(0),
        scale.unsqueeze(0),
        eps,
        dtype,
        kept,
    )
    total = found[0].reshape(x.shape) if added else x
    normed = found[1].reshape(x.shape)
    return total, normed, normed if kept is None else found[2].reshape(x.shape)


def _rms(
    x: Tensor,
    y: Tensor | None,
    z: Tensor | None,
    bias: Tensor | None,
    scale: Tensor,
    eps: float,
    dtype: torch.dtype,
    kept: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    added = [a for a in (y, z) if a is not None]
    total, normed, both = back_end(x, scale).stream_forward(
        x, added, bias, scale, None, eps, dtype, kept
    )
    return total if added else x.new_empty(len(x), 0), normed, both


def _rms_backward(
    dy: Tensor,
    also: Tensor | None,
    dx: Tensor | None,
    x: Tensor,
    scale: Tensor,
    eps: float,
    narrow: torch.dtype | None,
    biased: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = back_end(x, scale).backward(
        dy, dx, x, scale, eps, narrow, biased, also, False
    )
    return found


def _room(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    return x.new_empty(len(x), 0) if dtype is None else x.new_empty(x.shape, dtype=dtype)


@torch.library.register_fake("outlast::rms", lib=_library)
def _(
    x: Tensor,
    y: Tensor | None,
    z: Tensor | None,
    bias: Tensor | None,
    scale: Tensor,
    eps: float,
    dtype: torch.dtype,
    kept: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    return _room(x, None if y is None else x.dtype), _room(x, dtype), _room(x, kept)


@torch.library.register_fake("outlast::rms_backward", lib=_library)
def _(
    dy: Tensor,
    also: Tensor | None,
    dx: Tensor | None,
    x: Tensor,
    scale: Tensor,
    eps: float,
    narrow: torch.dtype | None,
    biased: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    sums = scale.new_empty(len(scale), 1 + biased, *scale.shape[1:])
    return x.new_empty(x.shape), sums, _room(x, narrow)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, y, z, bias, scale, ctx.eps, _, _ = inputs
    ctx.dtypes = [None if a is None else a.dtype for a in (y, z)]
    ctx.bias = None if bias is None else bias.dtype
    ctx.set_materialize_grads(False)  # seldom are all of them used
    ctx.mark_non_differentiable(*(out for out in output if not out.numel()))  # not asked for
    ctx.save_for_backward(x if y is None else output[0], scale)


def _differentiate(
    ctx: Any, d_total: Tensor | None, d_normed: Tensor | None, d_kept: Tensor | None
) -> tuple[Tensor | None, ...]:
    total, scale = ctx.saved_tensors
    above = [d for d in (d_normed, d_kept) if d is not None]
    if not above:
        if d_total is None:
            return (None,) * _ARGUMENTS
        past = (None if k is None else d_total.to(k) for k in ctx.dtypes)
        d_bias = None if ctx.bias is None else d_total.sum((1, 2)).to(ctx.bias)
        return d_total, *past, d_bias, None, None, None, None
    narrow = next((k for k in ctx.dtypes if k not in (None, total.dtype)), None)
    biased = ctx.bias is not None
    dy, also = [*above, None][:2]
    dx, affine, copy = torch.ops.outlast.rms_backward(
        dy, also, d_total, total, scale, ctx.eps, narrow, biased
    )
    added = (None if k is None else copy if k == narrow else dx.to(k) for k in ctx.dtypes)
    d_bias = affine[:, 1].to(ctx.bias) if biased else None
    return dx, *added, d_bias, affine[:, 0], None, None, None


_refuse = first_only("the norm kernel has")


_library.impl("rms", _rms, "CompositeExplicitAutograd")
_library.impl("rms_backward", _rms_backward, "CompositeExplicitAutograd")
torch.library.register_autograd("outlast::rms", _differentiate, setup_context=_save, lib=_library)
torch.library.register_autograd("outlast::rms_backward", _refuse, lib=_library)
for _name in ("rms", "rms_backward"):
    torch.library.register_vmap(
        f"outlast::{_name}", folded(getattr(torch.ops.outlast, _name)), lib=_library
    )
