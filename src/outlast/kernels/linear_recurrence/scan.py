"""Scans over tokens, each channel by itself."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.kernels.linear_recurrence.chunks import cut, in_single, join

#: tokens of a chunk of a scan, and the most tokens that are not cut
CHUNK, WHOLE = 8, 16


@in_single
def linear_scan(decay: Tensor, x: Tensor, state: Tensor) -> Tensor:
    """h_t = decay_t h_{t-1} + x_t, with h before the first token in `state`.

    A loop goes through the tokens of all chunks at the same time. What the chunks add up to is a
    scan again, an eighth as long. The gradient is the same scan from the last token to the first.

    Args:
        decay: [batch, tokens, width], from 0 to 1.
        x: [batch, tokens, width].
        state: [batch, width].

    Returns:
        h, [batch, tokens, width].
    """
    h: Tensor = _Scan.apply(decay, x, state)  # type: ignore[no-untyped-call]
    return h


class _Scan(torch.autograd.Function):
    """A scan that keeps nothing but its outputs for the backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(decay: Tensor, x: Tensor, state: Tensor) -> Tensor:
        return _scan(decay, x, state)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        decay, _, state = inputs
        ctx.save_for_backward(decay, state, output)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay, state, h = ctx.saved_tensors
        after = F.pad(decay[:, 1:], (0, 0, 0, 1)).flip(1)
        grad = linear_scan(after, upstream.flip(1), torch.zeros_like(state)).flip(1)
        before = torch.cat([state.unsqueeze(1), h[:, :-1]], 1)
        return grad * before, grad, decay[:, 0] * grad[:, 0]


def _scan(decay: Tensor, x: Tensor, state: Tensor) -> Tensor:
    """`linear_scan` in plain torch."""
    tokens = x.shape[1]
    if tokens <= WHOLE:
        whole = []
        for a, b in zip(decay.unbind(1), x.unbind(1), strict=True):
            state = a * state + b
            whole.append(state)
        return torch.stack(whole, 1)
    decays, added = cut(decay, CHUNK).unbind(2), cut(x, CHUNK).unbind(2)
    kept, h = decays[0], added[0]
    so_far, within = [kept], [h]
    for a, b in zip(decays[1:], added[1:], strict=True):
        kept, h = a * kept, a * h + b
        so_far.append(kept)
        within.append(h)
    ends = _scan(kept, h, state)
    carried = torch.cat([state.unsqueeze(1), ends[:, :-1]], 1).unsqueeze(2)
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
