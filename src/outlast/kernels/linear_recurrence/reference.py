"""The linear recurrences token by token: the truth.

Explicit and in any precision, float64 too. Nothing is cut into chunks. Each function has the name,
the arguments and the shapes of the fast one beside it.

Shapes (b rows of a batch, h heads, t tokens; keys d wide, values e wide)::

    q, k               [b, h, t, d]
    v, y               [b, h, t, e]
    beta, log_decay    [b, h, t, 1]
    state              [b, h, d, e]
"""

from __future__ import annotations

import torch
from torch import Tensor


def decayed_sum(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """S_t = a_t S_{t-1} + k_t v_t^T and y_t = S_t^T q_t.

    Args:
        q: [b, h, t, d].
        k: [b, h, t, d].
        v: [b, h, t, e].
        log_decay: [b, h, t, 1], the logarithm of a.
        state: [b, h, d, e], S before the first token.

    Returns:
        y [b, h, t, e], and S after the last token.
    """
    decay, rows = log_decay.exp().unsqueeze(-1), []
    tokens = (q.unbind(-2), k.unbind(-2), v.unbind(-2), decay.unbind(-3))
    for query, key, value, a in zip(*tokens, strict=True):
        state = a * state + key.unsqueeze(-1) * value.unsqueeze(-2)
        rows.append((query.unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(rows, -2), state


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T and y_t = S_t^T q_t.

    It is written as it is meant. The state decays. Then what it holds under the key goes a part b
    of the way to the value.

    Args:
        q: [b, h, t, d].
        k: [b, h, t, d].
        v: [b, h, t, e].
        beta: [b, h, t, 1], b of the formula.
        log_decay: [b, h, t, 1], the logarithm of a.
        state: [b, h, d, e], S before the first token.

    Returns:
        y [b, h, t, e], and S after the last token.
    """
    decay, rows = log_decay.exp().unsqueeze(-1), []
    tokens = (q.unbind(-2), k.unbind(-2), v.unbind(-2), beta.unbind(-2), decay.unbind(-3))
    for query, key, value, b, a in zip(*tokens, strict=True):
        state = a * state
        change = b * (value - (key.unsqueeze(-2) @ state).squeeze(-2))
        state = state + key.unsqueeze(-1) * change.unsqueeze(-2)
        rows.append((query.unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(rows, -2), state


def linear_scan(decay: Tensor, x: Tensor, state: Tensor) -> Tensor:
    """h_t = decay_t h_{t-1} + x_t, each channel by itself.

    Args:
        decay: [b, t, width].
        x: [b, t, width].
        state: [b, width], h before the first token.

    Returns:
        h [b, t, width].
    """
    rows = []
    for a, value in zip(decay.unbind(1), x.unbind(1), strict=True):
        state = a * state + value
        rows.append(state)
    return torch.stack(rows, 1)


def running_maximum(decay: Tensor, x: Tensor, state: Tensor) -> Tensor:
    """m_t = max(decay_t + m_{t-1}, x_t).

    Args:
        decay: [b, h, t, 1].
        x: [b, h, t, 1].
        state: [b, h, 1, 1], m before the first token.

    Returns:
        m [b, h, t, 1].
    """
    rows = []
    for a, value in zip(decay.split(1, -2), x.split(1, -2), strict=True):
        state = torch.maximum(a + state, value)
        rows.append(state)
    return torch.cat(rows, -2)
