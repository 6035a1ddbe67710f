"""Attention of some queries behind a long cache, without a table of all queries and keys.

It has no gradient: a test reads a long sequence in chunks, and no training does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.kernels.attention.reference import causal_mask

#: the most pairs of a query and a key in a mask; where there are more, none is made of all of them
MOST_MASKED = 2**22
#: the most scores that may be held at once
MOST_SCORES = 2**24


def is_long(q: Tensor, k: Tensor) -> bool:
    """Whether a mask of these queries and keys would be too large, and no gradient is asked for."""
    return q.shape[-2] * k.shape[-2] > MOST_MASKED and not torch.is_grad_enabled()


def attend_cached(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As `attend` without a bias; the last query is aligned with the last key."""
    if q.is_cuda and q.dtype != torch.float64:
        from torch.nn.attention.bias import causal_lower_right  # loads the compiler: not for all

        # torch picks a fused kernel that counts from the last key
        bias = causal_lower_right(q.shape[-2], k.shape[-2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    if q.device.type == "cpu" and q.shape[-1] == v.shape[-1]:
        return _in_two_parts(q, k, v)
    return _in_rows(q, k, v)


def _in_two_parts(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The keys before the chunk, which need no mask, and those of the chunk, which are causal.

    Each part has its own softmax. The logarithms of their sums say what share each part has.
    """
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    before = k.shape[-2] - q.shape[-2]
    earlier, earlier_sum = attend(q, k[..., :before, :], v[..., :before, :])
    chunk, chunk_sum = attend(q, k[..., before:, :], v[..., before:, :], is_causal=True)
    share = (earlier_sum - chunk_sum).sigmoid().unsqueeze(-1).to(chunk.dtype)
    return torch.lerp(chunk, earlier, share)


def _in_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As many queries at a time as there is room for their scores, whatever torch makes of them."""
    queries, keys = q.shape[-2], k.shape[-2]
    rows = max(1, MOST_SCORES // (q.shape[:-2].numel() * keys))
    outputs = []
    for start in range(0, queries, rows):
        end = min(start + rows, queries)
        seen = keys - queries + end
        mask = causal_mask(end - start, seen, q.device)
        block = (q[..., start:end, :], k[..., :seen, :], v[..., :seen, :])
        outputs.append(F.scaled_dot_product_attention(*block, attn_mask=mask))
    return torch.cat(outputs, -2)
