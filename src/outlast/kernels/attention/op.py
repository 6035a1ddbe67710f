"""Causal attention through torch's fused `scaled_dot_product_attention`, or our own where short.

`attend` is a composite (autograd sees through it) whose only addition is a vmap rule: attention
has no weights, so a stack of seeds is simply more batch. On a GPU, sequences that fit on chip
whole go through `triton.py`. A test behind a long cache goes through `cached.py`.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from outlast.kernels.attention.cached import attend_cached, is_long
from outlast.kernels.attention.reference import causal_mask, empty
from outlast.kernels.derivatives import first_only
from outlast.kernels.dispatch import has_triton
from outlast.kernels.register import register_op, save_inputs
from outlast.kernels.vmap_rules import fold, unfold


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(D) + bias) v over the keys at or before each query.

    Args:
        q: [B, H, Tq, D].
        k: [B, H, Tk, D] with Tk >= Tq; the last query is aligned with the last key.
        v: As `k`.
        bias: [1 or B, H, Tq, Tk], added to the scores.

    Returns:
        [B, H, Tq, D].
    """
    return attend_op(q, k, v, bias)


def attend_packed(packed: Tensor) -> Tensor:
    """`attend` without bias on q, k and v that lie side by side, as one matmul made them.

    The gradient comes in one piece; those of three views would need another pass to be joined.

    Args:
        packed: [B, T, 3, H, D].

    Returns:
        [B, H, T, D].
    """
    return attend_packed_op(packed)


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    queries, keys = q.shape[-2], k.shape[-2]
    if bias is None and _short(q, k, v):
        return attend_short_op(q, k, v)
    if bias is None and queries == keys:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if bias is None and queries == 1:
        return F.scaled_dot_product_attention(q, k, v)
    if bias is None and is_long(q, k):
        return attend_cached(q, k, v)
    mask = causal_mask(queries, keys, q.device)
    if bias is not None:
        mask = bias.to(q.dtype).masked_fill(~mask, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _attend_packed(packed: Tensor) -> Tensor:
    q, k, v = packed.permute(2, 0, 3, 1, 4)
    return attend_packed_short_op(packed) if _short(q, k, v) else _attend(q, k, v, None)


def _fold_attend(
    op: Any,
    info: Any,
    axes: tuple[int | None, ...],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
) -> tuple[Tensor, int]:
    """The vmap rule of `attend`: seeds are more batch; a bias that all share stays one."""
    size = info.batch_size
    q, k, v = (fold(t, axis, size) for t, axis in zip((q, k, v), axes, strict=False))
    if bias is not None and (axes[3] is not None or bias.shape[0] > 1):
        rows = q.shape[0] // size
        bias = bias[None] if axes[3] is None else bias.movedim(axes[3], 0)
        bias = bias.expand(size, rows, *bias.shape[2:]).flatten(0, 1)
    return unfold(op(q, k, v, bias), size)


attend_op = register_op("attend", _attend, vmap=_fold_attend)
attend_packed_op = register_op("attend_packed", _attend_packed)


# ---- short sequences ----------------------------------------------------------------------------


def _short(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernel for short sequences takes this."""
    if v.shape != k.shape or not q.is_cuda or not has_triton():
        return False
    from outlast.kernels.attention import triton

    return triton.fits(q, k)


def _attend_short(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from outlast.kernels.attention import triton

    return triton.forward(q, k, v)


def _attend_short_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    from outlast.kernels.attention import triton

    return triton.backward(d_out, q, k, v)


def _attend_packed_short(packed: Tensor) -> Tensor:
    from outlast.kernels.attention import triton

    return triton.forward(*triton.views(packed))


def _attend_packed_short_backward(d_out: Tensor, packed: Tensor) -> Tensor:
    from outlast.kernels.attention import triton

    return triton.backward_packed(d_out, packed)


_refuse = first_only("short attention has")

attend_short_backward_op = register_op(
    "attend_short_backward",
    _attend_short_backward,
    fake=lambda d_out, q, k, v: (empty(q), empty(q), empty(q)),
    backward=_refuse,
)
attend_short_op = register_op(
    "attend_short",
    _attend_short,
    fake=lambda q, k, v: empty(q),
    backward=lambda ctx, d_out: attend_short_backward_op(d_out, *ctx.saved_tensors),
    save=save_inputs,
)
attend_packed_short_backward_op = register_op(
    "attend_packed_short_backward",
    _attend_packed_short_backward,
    fake=lambda d_out, packed: packed.new_empty(packed.shape),
    backward=_refuse,
)
attend_packed_short_op = register_op(
    "attend_packed_short",
    _attend_packed_short,
    fake=lambda packed: empty(packed[:, :, 0].transpose(1, 2)),
    backward=lambda ctx, d_out: attend_packed_short_backward_op(d_out, *ctx.saved_tensors),
    save=save_inputs,
)
