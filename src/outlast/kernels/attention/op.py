"""Causal attention through torch's fused `scaled_dot_product_attention`, or our own where short.

`attend` is a composite (autograd sees through it) whose only addition is a vmap rule: attention
has no weights, so a stack of seeds is simply more batch. On a GPU, sequences that fit on chip
whole go through `triton.py`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.kernels.attention.reference import causal_mask
from outlast.kernels.choosing import has_triton
from outlast.kernels.derivatives import first_only
from outlast.kernels.folding import fold, unfold

_library = torch.library.Library("outlast", "FRAGMENT")
_library.define("attend(Tensor q, Tensor k, Tensor v, Tensor? bias) -> Tensor")
_library.define("attend_short(Tensor q, Tensor k, Tensor v) -> Tensor")
_library.define(
    "attend_short_backward(Tensor d_out, Tensor q, Tensor k, Tensor v) -> (Tensor, Tensor, Tensor)"
)
_library.define("attend_packed(Tensor packed) -> Tensor")
_library.define("attend_packed_short(Tensor packed) -> Tensor")
_library.define("attend_packed_short_backward(Tensor d_out, Tensor packed) -> Tensor")


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(d) + bias) v over the keys at or before each query.

    q (b, h, tq, d); k, v (b, h, tk, d) with tk >= tq, the last query aligned with the last key;
    `bias` (1 or b, h, tq, tk) is added to the scores.
    """
    out: Tensor = torch.ops.outlast.attend(q, k, v, bias)
    return out


def attend_packed(packed: Tensor) -> Tensor:
    """`attend` without bias on q, k and v that lie side by side, as one product made them.

    packed (b, t, 3, h, d) to (b, h, t, d). Its gradient comes in one piece, where those of three
    views would have to be put together in a pass of their own.
    """
    out: Tensor = torch.ops.outlast.attend_packed(packed)
    return out


def _attend_packed(packed: Tensor) -> Tensor:
    q, k, v = packed.permute(2, 0, 3, 1, 4)
    if _short(q, k, v):
        found: Tensor = torch.ops.outlast.attend_packed_short(packed)
        return found
    return _attend(q, k, v, None)


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    queries, keys = q.shape[-2], k.shape[-2]
    if bias is None and _short(q, k, v):
        found: Tensor = torch.ops.outlast.attend_short(q, k, v)
        return found
    if bias is None and queries == keys:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if bias is None and queries == 1:
        return F.scaled_dot_product_attention(q, k, v)
    mask = causal_mask(queries, keys, q.device)
    if bias is not None:
        mask = bias.to(q.dtype).masked_fill(~mask, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _short(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernel for short sequences takes this."""
    if v.shape != k.shape or not q.is_cuda or not has_triton():
        return False
    from outlast.kernels.attention import triton as fused

    return fused.fits(q, k)


def _attend_short(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from outlast.kernels.attention import triton as fused

    return fused.forward(q, k, v)


def _attend_short_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    from outlast.kernels.attention import triton as fused

    return fused.backward(d_out, q, k, v)


def _attend_packed_short(packed: Tensor) -> Tensor:
    from outlast.kernels.attention import triton as fused

    return fused.forward(*fused.views(packed))


def _attend_packed_short_backward(d_out: Tensor, packed: Tensor) -> Tensor:
    from outlast.kernels.attention import triton as fused

    return fused.backward_packed(d_out, packed)


def _differentiate(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.outlast.attend_short_backward(
        d_out, *ctx.saved_tensors
    )
    return found


_refuse = first_only("short attention has")


def _differentiate_packed(ctx: Any, d_out: Tensor) -> Tensor:
    found: Tensor = torch.ops.outlast.attend_packed_short_backward(d_out, *ctx.saved_tensors)
    return found


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def empty(like: Tensor) -> Tensor:
    """Room for (b, h, t, d) in which the heads of a token lie side by side."""
    b, h, t, d = like.shape
    return like.new_empty(b, t, h, d).transpose(1, 2)


@torch.library.register_fake("outlast::attend_short", lib=_library)
def _(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return empty(q)


@torch.library.register_fake("outlast::attend_short_backward", lib=_library)
def _(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return empty(q), empty(q), empty(q)


@torch.library.register_fake("outlast::attend_packed_short", lib=_library)
def _(packed: Tensor) -> Tensor:
    return empty(packed[:, :, 0].transpose(1, 2))


@torch.library.register_fake("outlast::attend_packed_short_backward", lib=_library)
def _(d_out: Tensor, packed: Tensor) -> Tensor:
    return packed.new_empty(packed.shape)


def _batched_packed(info: Any, axes: tuple[int], packed: Tensor) -> tuple[Tensor, int]:
    return unfold(_attend_packed(fold(packed, axes[0], info.batch_size)), info.batch_size), 0


def _batched(
    info: Any, axes: tuple[int | None, ...], q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None
) -> tuple[Tensor, int]:
    size = info.batch_size
    q, k, v = (fold(t, axis, size) for t, axis in zip((q, k, v), axes, strict=False))
    if bias is not None and (axes[3] is not None or bias.shape[0] > 1):
        rows = q.shape[0] // size
        bias = bias[None] if axes[3] is None else bias.movedim(axes[3], 0)
        bias = bias.expand(size, rows, *bias.shape[2:]).flatten(0, 1)
    return unfold(_attend(q, k, v, bias), size), 0


_library.impl("attend_short", _attend_short, "CompositeExplicitAutograd")
_library.impl("attend_short_backward", _attend_short_backward, "CompositeExplicitAutograd")
torch.library.register_autograd(
    "outlast::attend_short", _differentiate, setup_context=_save, lib=_library
)
torch.library.register_autograd("outlast::attend_short_backward", _refuse, lib=_library)
_library.impl("attend_packed_short", _attend_packed_short, "CompositeExplicitAutograd")
_library.impl(
    "attend_packed_short_backward", _attend_packed_short_backward, "CompositeExplicitAutograd"
)
torch.library.register_autograd(
    "outlast::attend_packed_short", _differentiate_packed, setup_context=_save, lib=_library
)
torch.library.register_autograd("outlast::attend_packed_short_backward", _refuse, lib=_library)
_library.impl("attend", _attend, "CompositeImplicitAutograd")
torch.library.register_vmap("outlast::attend", _batched, lib=_library)
_library.impl("attend_packed", _attend_packed, "CompositeImplicitAutograd")
torch.library.register_vmap("outlast::attend_packed", _batched_packed, lib=_library)
