"""Causal attention with explicit scores, in any precision: the truth."""

from __future__ import annotations

import torch
from torch import Tensor


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """True where a query may look; the last query sees every key, as when keys were cached."""
    ones = torch.ones(queries, keys, dtype=torch.bool, device=device)
    return ones.tril(keys - queries)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(d) + bias) v over the keys at or before each query.

    q (b, h, tq, d); k, v (b, h, tk, d) with tk >= tq; bias broadcasts to (b, h, tq, tk).
    """
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if bias is not None:
        scores = scores + bias
    allowed = causal_mask(q.shape[-2], k.shape[-2], q.device)
    return scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ v


def empty(like: Tensor) -> Tensor:
    """Room for [B, H, T, D] in which the heads of a token lie side by side."""
    b, h, t, d = like.shape
    return like.new_empty(b, t, h, d).transpose(1, 2)
