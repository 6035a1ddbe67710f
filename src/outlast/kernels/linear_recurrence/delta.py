"""`delta_rule`: the state replaces what it holds under a key, after a decay.

::

    S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T
    y_t = S_t^T q_t

The recurrence of DeltaNet (a = 1; arXiv 2406.06484) and Gated DeltaNet (2412.06464). Within a
chunk it is a sum of outer products of the keys with corrected values u. They solve a triangular
system (the UT transform)::

    u_t = b_t (v_t - a_t S_{t-1}^T k_t)
"""

from __future__ import annotations

import torch
from torch import Tensor

from outlast.kernels.linear_recurrence.chunks import chunk_size, cut, decay_within, in_single, join


@in_single
def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The outputs of all tokens and the last state.

    Args:
        q: [batch, heads, tokens, d].
        k: [batch, heads, tokens, d]. Keys longer than 1 can make the state grow without bound.
        v: [batch, heads, tokens, e].
        beta: [batch, heads, tokens, 1], from 0 to 2.
        log_decay: [batch, heads, tokens, 1], the logarithm of a, at most 0.
        state: [batch, heads, d, e].

    Returns:
        [batch, heads, tokens, e] and [batch, heads, d, e].
    """
    tokens = v.shape[-2]
    size = chunk_size(tokens)
    q, k, v, beta, log_decay = (cut(x, size) for x in (q, k, v, beta, log_decay))
    left, pairs = decay_within(log_decay)
    # (I + L) U = b V - b (left K) S, where L is strictly lower; the solver takes the diagonal as 1
    system = beta * (k @ k.mT) * pairs
    right = torch.cat([beta * v, beta * left * k], -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    values, reads = solved.split([v.shape[-1], k.shape[-1]], -1)
    # a chunk takes the state to `transition` S + `added`
    to_end = (k * pairs[..., -1, :, None]).mT
    added, taken = (to_end @ solved).split([v.shape[-1], k.shape[-1]], -1)
    transition = left[..., -1:, :] * torch.eye(k.shape[-1], dtype=k.dtype, device=k.device) - taken
    before = []
    for matrix, more in zip(transition.unbind(-3), added.unbind(-3), strict=True):
        before.append(state)
        state = matrix @ state + more
    states = torch.stack(before, -3)
    y = ((q @ k.mT) * pairs) @ (values - reads @ states) + left * (q @ states)
    return join(y, tokens), state
