"""Layer norm and RMS norm on a residual stream, as one torch op.

In its one pass the op may have several things to do. It adds to the stream what is pending. It
writes the norm in the dtype of the matmuls that follow. Where the stream itself continues as the
norm, it writes the norm in the stream's own dtype too.

Under `vmap` the seeds become the op's own leading axis, and their scales and shifts are read
where they lie in the table of weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from outlast.kernels.derivatives import first_only
from outlast.kernels.dispatch import can_fuse, matmul_dtype
from outlast.kernels.norm import reference
from outlast.kernels.register import register_op


def back_end(x: Tensor, scale: Tensor) -> ModuleType:
    """The module to run: the fused kernel where it can, else the reference."""
    if can_fuse(x, scale):
        from outlast.kernels.norm import triton

        if triton.fits(x):
            return triton
    return reference


def fused(x: Tensor, scale: Tensor, added: Sequence[Tensor] = ()) -> bool:
    """Whether this is one pass here; where it is not, torch's own operations are faster."""
    alike = all(
        x.shape == a.shape and torch.promote_types(x.dtype, a.dtype) == x.dtype for a in added
    )
    return x.dim() >= 2 and alike and back_end(x, scale) is not reference


def norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float = 1e-5) -> Tensor:
    """Layer norm over the last axis.

    The result has the dtype of x; where it is fused and under autocast, that of the matmuls that
    follow. Where nothing is fused these are torch's own operations, so every derivative exists.

    Args:
        x: [..., D].
        scale: [D].
        shift: [D].
        eps: Added to the variance.

    Returns:
        [..., D].
    """
    if not fused(x, scale):
        return reference.plain(x, scale, shift, eps)
    return _run(x, (), None, scale, shift, eps)[1]


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

    `bias` [D] is added too: what the linear maps that made y and z left out.
    """
    added = (y,) if z is None else (y, z)
    if not fused(x, scale, added):
        total = x + y if z is None else x + y + z
        total = total if bias is None else total + bias
        return total, norm(total, scale, shift, eps)
    return _run(x, added, bias, scale, shift, eps)[:2]


def rms(
    x: Tensor,
    scale: Tensor,
    eps: float = 1e-6,
    added: Sequence[Tensor] = (),
    bias: Tensor | None = None,
    keep: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """x and up to two tensors that are added to it, and the RMS norm of the sum.

    Args:
        x: [..., D].
        scale: [D].
        eps: Added to the mean square.
        added: Up to two tensors like x.
        bias: [D], added too.
        keep: Whether the third result is asked for.

    Returns:
        The sum; its norm, in the dtype that `norm` has; and its norm in the dtype of x.
    """
    if bias is not None and not added:
        x, bias = x + bias, None
    if not fused(x, scale, added):
        total = sum(added, x)
        total = total if bias is None else total + bias
        normed = reference.plain_rms(total, scale, eps)
        return total, normed, normed
    return _run(x, added, bias, scale, None, eps, keep)


def _run(
    x: Tensor,
    added: Sequence[Tensor],
    bias: Tensor | None,
    scale: Tensor,
    shift: Tensor | None,
    eps: float,
    keep: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """One seed's sum, its norm, and its norm in the dtype of x, by the op."""
    rows = (1, -1, *x.shape[-2:])
    y, z = [*(a.reshape(rows) for a in added), None, None][:2]
    dtype = matmul_dtype(x)
    kept_dtype = x.dtype if keep and dtype != x.dtype else None
    bias, shift = (None if a is None else a.unsqueeze(0) for a in (bias, shift))
    total, normed, kept = stream_norm_op(
        x.reshape(rows), y, z, bias, scale.unsqueeze(0), shift, eps, dtype, kept_dtype
    )
    total, normed = total.reshape(x.shape) if added else x, normed.reshape(x.shape)
    return total, normed, normed if kept_dtype is None else kept.reshape(x.shape)


def _stream_norm(
    x: Tensor,
    y: Tensor | None,
    z: Tensor | None,
    bias: Tensor | None,
    scale: Tensor,
    shift: Tensor | None,
    eps: float,
    dtype: torch.dtype,
    kept_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum, the norm as `dtype` and the norm as `kept_dtype`; empty is what was not asked for.

    With a shift it is layer norm, without one RMS norm.
    """
    added = [a for a in (y, z) if a is not None]
    total, normed, kept = back_end(x, scale).forward(
        x, added, bias, scale, shift, eps, dtype, kept_dtype
    )
    return total if added else _empty(x, None), normed, kept


def _stream_norm_backward(
    dy: Tensor,
    d_kept: Tensor | None,
    d_total: Tensor | None,
    x: Tensor,
    scale: Tensor,
    eps: float,
    copy_dtype: torch.dtype | None,
    biased: bool,
    centred: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dx, d_weights, copy = back_end(x, scale).backward(
        dy, d_total, x, scale, eps, copy_dtype, biased, d_kept, centred
    )
    return dx, d_weights, copy


def _empty(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Room for a tensor like x in this dtype; without one, for nothing."""
    return x.new_empty(len(x), 0) if dtype is None else x.new_empty(x.shape, dtype=dtype)


def _empty_norms(
    x: Tensor,
    y: Tensor | None,
    z: Tensor | None,
    bias: Tensor | None,
    scale: Tensor,
    shift: Tensor | None,
    eps: float,
    dtype: torch.dtype,
    kept_dtype: torch.dtype | None,
) -> tuple[Tensor, ...]:
    return _empty(x, None if y is None else x.dtype), _empty(x, dtype), _empty(x, kept_dtype)


def _empty_gradients(
    dy: Tensor,
    d_kept: Tensor | None,
    d_total: Tensor | None,
    x: Tensor,
    scale: Tensor,
    eps: float,
    copy_dtype: torch.dtype | None,
    biased: bool,
    centred: bool,
) -> tuple[Tensor, ...]:
    d_weights = scale.new_empty(len(scale), 1 + centred + biased, *scale.shape[1:])
    return x.new_empty(x.shape), d_weights, _empty(x, copy_dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, y, z, bias, scale, shift, ctx.eps, _, _ = inputs
    ctx.added_dtypes = [None if a is None else a.dtype for a in (y, z)]
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.centred = shift is not None
    ctx.set_materialize_grads(False)  # seldom are all of them used
    ctx.mark_non_differentiable(*(out for out in output if not out.numel()))  # not asked for
    ctx.save_for_backward(x if y is None else output[0], scale)


def _differentiate(
    ctx: Any, d_total: Tensor | None, d_normed: Tensor | None, d_kept: Tensor | None
) -> tuple[Tensor | None, ...]:
    if d_normed is None:
        d_normed, d_kept = d_kept, None
    if d_normed is None:  # only the sum was used
        if d_total is None:
            return (None,) * 9
        d_added = (None if dtype is None else d_total.to(dtype) for dtype in ctx.added_dtypes)
        d_bias = None if ctx.bias_dtype is None else d_total.sum((1, 2)).to(ctx.bias_dtype)
        return d_total, *d_added, d_bias, *[None] * 5
    total, scale = ctx.saved_tensors
    # the gradient of what was added is dx once more, where that has another dtype
    copy_dtype = next((k for k in ctx.added_dtypes if k not in (None, total.dtype)), None)
    biased = ctx.bias_dtype is not None
    dx, d_weights, copy = stream_norm_backward_op(
        d_normed, d_kept, d_total, total, scale, ctx.eps, copy_dtype, biased, ctx.centred
    )
    d_added = (
        None if dtype is None else copy if dtype == copy_dtype else dx.to(dtype)
        for dtype in ctx.added_dtypes
    )
    d_bias = d_weights[:, -1].to(ctx.bias_dtype) if biased else None
    d_shift = d_weights[:, 1] if ctx.centred else None
    return dx, *d_added, d_bias, d_weights[:, 0], d_shift, None, None, None


stream_norm_backward_op = register_op(
    "stream_norm_backward",
    _stream_norm_backward,
    fake=_empty_gradients,
    backward=first_only("the norm kernel has"),
)
stream_norm_op = register_op(
    "stream_norm", _stream_norm, fake=_empty_norms, backward=_differentiate, save=_save
)
