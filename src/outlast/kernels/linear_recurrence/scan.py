"""Scans over tokens, each channel by itself."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.kernels.linear_recurrence.chunks import cut, in_single, join


@in_single
def linear_scan(decay: Tensor, x: Tensor, state: Tensor) -> Tensor:
    """h_t = decay_t h_{t-1} + x_t, with h before the first token in `state`.

    n tokens are cut into √n chunks. One loop goes through all chunks at the same time, another
    passes the state from chunk to chunk.

    Args:
        decay: [batch, tokens, width], from 0 to 1.
        x: [batch, tokens, width].
        state: [batch, width].

    Returns:
        h, [batch, tokens, width].
    """
    tokens = x.shape[1]
    size = math.isqrt(max(tokens - 1, 0)) + 1
    decay, x = cut(decay, size), cut(x, size)
    kept, h = torch.ones_like(x[:, :, 0]), torch.zeros_like(x[:, :, 0])
    so_far, within = [], []
    for a, b in zip(decay.unbind(2), x.unbind(2), strict=True):
        kept, h = a * kept, a * h + b
        so_far.append(kept)
        within.append(h)
    before = []
    for a, b in zip(kept.unbind(1), h.unbind(1), strict=True):
        before.append(state)
        state = a * state + b
    carried = torch.stack(before, 1).unsqueeze(2)
    return join(torch.stack(within, 2) + torch.stack(so_far, 2) * carried, tokens)


@in_single
def running_maximum(decay: Tensor, x: Tensor, state: Tensor) -> Tensor:
    """m_t = max(decay_t + m_{t-1}, x_t), by doubling.

    After the pass with distance d, each token has the last 2 d tokens in it.

    Args:
        decay: [batch, heads, tokens, 1].
        x: [batch, heads, tokens, 1].
        state: [batch, heads, 1, 1], m before the first token.

    Returns:
        m, [batch, heads, tokens, 1].
    """
    tokens, distance = x.shape[-2], 1
    while distance < tokens:
        shift = (0, 0, distance, -distance)
        x = torch.maximum(x, decay + F.pad(x, shift, value=float("-inf")))
        decay = decay + F.pad(decay, shift)
        distance *= 2
    return torch.maximum(x, decay + state)
