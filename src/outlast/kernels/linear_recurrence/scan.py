"""Scans over tokens, each channel by itself, by doubling.

After the pass with distance d, each token has the last 2 d tokens in it. So n tokens take
log2(n) passes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.kernels.linear_recurrence.chunks import in_single


@in_single
def linear_scan(decay: Tensor, x: Tensor, state: Tensor) -> Tensor:
    """h_t = decay_t h_{t-1} + x_t, with h before the first token in `state`.

    Args:
        decay: [batch, tokens, width], from 0 to 1.
        x: [batch, tokens, width].
        state: [batch, width].

    Returns:
        h, [batch, tokens, width].
    """
    tokens, distance = x.shape[1], 1
    while distance < tokens:
        shift = (0, 0, distance, -distance)
        x = x + decay * F.pad(x, shift)
        decay = decay * F.pad(decay, shift, value=1.0)
        distance *= 2
    return x + decay * state.unsqueeze(1)


@in_single
def running_maximum(decay: Tensor, x: Tensor, state: Tensor) -> Tensor:
    """m_t = max(decay_t + m_{t-1}, x_t), over the tokens of [..., tokens, 1].

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
