"""`decayed_sum`: a sum of outer products with a decay.

::

    S_t = a_t S_{t-1} + k_t v_t^T
    y_t = S_t^T q_t

The recurrence of linear attention (a = 1), of Mamba-2 (arXiv 2405.21060) and, with a stabiliser,
of the mLSTM (2405.04517).
"""

from __future__ import annotations

import torch
from torch import Tensor

from outlast.kernels.linear_recurrence.chunks import chunk_size, cut, decay_within, in_single, join


@in_single
def decayed_sum(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The outputs of all tokens and the last state.

    Axes before the tokens are broadcast, so heads may share q and k.

    Args:
        q: [batch, heads, tokens, d].
        k: [batch, heads, tokens, d].
        v: [batch, heads, tokens, e].
        log_decay: [batch, heads, tokens, 1], the logarithm of a, at most 0.
        state: [batch, heads, d, e].

    Returns:
        [batch, heads, tokens, e] and [batch, heads, d, e].
    """
    tokens = v.shape[-2]
    size = chunk_size(tokens)
    q, k, v, log_decay = (cut(x, size) for x in (q, k, v, log_decay))
    left, pairs = decay_within(log_decay)
    # what each chunk adds to the state, and what it leaves of it
    added = k.mT @ (v * pairs[..., -1, :, None])
    kept = left[..., -1:, :]
    states = []
    for decay, more in zip(kept.unbind(-3), added.unbind(-3), strict=True):
        states.append(state)
        state = decay * state + more
    y = ((q @ k.mT) * pairs) @ v + left * (q @ torch.stack(states, -3))
    return join(y, tokens), state
