"""Causal attention through torch's fused `scaled_dot_product_attention`.

The op is a composite (autograd sees through it) whose only addition is a vmap rule: attention
has no weights, so a stack of seeds is simply more batch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.kernels.attention.reference import causal_mask
from outlast.kernels.folding import fold, unfold

_library = torch.library.Library("outlast", "FRAGMENT")
_library.define("attend(Tensor q, Tensor k, Tensor v, Tensor? bias) -> Tensor")


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(d) + bias) v over the keys at or before each query.

    q (b, h, tq, d); k, v (b, h, tk, d) with tk >= tq, the last query aligned with the last key;
    `bias` (1 or b, h, tq, tk) is added to the scores.
    """
    out: Tensor = torch.ops.outlast.attend(q, k, v, bias)
    return out


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    queries, keys = q.shape[-2], k.shape[-2]
    if bias is None and queries == keys:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if bias is None and queries == 1:
        return F.scaled_dot_product_attention(q, k, v)
    mask = causal_mask(queries, keys, q.device)
    if bias is not None:
        mask = bias.to(q.dtype).masked_fill(~mask, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


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


_library.impl("attend", _attend, "CompositeImplicitAutograd")
torch.library.register_vmap("outlast::attend", _batched, lib=_library)
