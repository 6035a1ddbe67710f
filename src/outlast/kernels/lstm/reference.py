"""The LSTM recurrence, explicit and in any precision: the truth the fast paths are held to.

Shapes (n seeds, t steps, b rows, d units; gates in the order input, forget, cell, output)::

    projected (n, b, t, 4d)   the input's share of the gates, x W_ih^T
    bias      (n, 4d)         added to it
    weight    (n, 4d, d)      the recurrent matrix W_hh
    h0, c0    (n, b, d)       state before the first step
    hidden, cell (n, b, t, d); gates (n, b, t, 4d) after their non-linearity
    last      (n, b, d)       the last hidden state

Only the matmul with the recurrent matrix is inside the time loop; the weight gradient is one
matmul over all steps at the end.
"""

from __future__ import annotations

import torch
from torch import Tensor


def kept(projected: torch.dtype) -> torch.dtype:
    """The type gates are kept in: they lie between -1 and 1, where float16 is the finer half."""
    return torch.float16 if projected == torch.bfloat16 else projected


def forward(
    projected: Tensor, bias: Tensor, weight: Tensor, h0: Tensor, c0: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All hidden states and the last, all cell states, and the activated gates."""
    d = weight.shape[-1]
    gates = torch.empty_like(projected, memory_format=torch.contiguous_format)
    hidden = projected.new_empty(*projected.shape[:-1], d)
    cell = torch.empty_like(hidden)
    recurrent, bias = weight.mT, bias[:, None]
    h, c = h0, c0
    # On a CPU a step of a few rows is all overhead, so views are made once and not at every step.
    z = projected.new_empty(*projected.shape[:2], 4 * d)
    i, f, g, o = z.split(d, -1)
    i_and_f = z[..., : 2 * d]
    tables = (projected, gates, cell, hidden)
    for x, gates_now, cell_now, hidden_now in zip(*(t.unbind(2) for t in tables), strict=True):
        torch.baddbmm(x, h, recurrent, out=z).add_(bias)
        i_and_f.sigmoid_()
        g.tanh_()
        o.sigmoid_()
        c = torch.addcmul(f * c, i, g)
        h = o * c.tanh()
        gates_now.copy_(z)
        cell_now.copy_(c)
        hidden_now.copy_(h)
    return hidden, h, cell, gates


def backward(
    d_hidden: Tensor,
    d_last: Tensor,
    weight: Tensor,
    h0: Tensor,
    c0: Tensor,
    hidden: Tensor,
    cell: Tensor,
    gates: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of projected, bias, weight, h0 and c0; `d_last` is that of the last cell state.

    Everything that does not depend on the running gradient is computed for all steps at once;
    the loop only carries dh and dc back.
    """
    i, f, g, o = gates.split(weight.shape[-1], -1)
    squashed = cell.tanh()
    c_before = torch.cat([c0.unsqueeze(2), cell[:, :, :-1]], 2)
    # per step: d(i, f, g) = dc * through_cell, do = dh * through_output, dc += dh * into_cell
    through_cell = torch.stack([g * i * (1 - i), c_before * f * (1 - f), i * (1 - g * g)], dim=-2)
    through_output = squashed * o * (1 - o)
    into_cell = o * (1 - squashed * squashed)

    d_gates = torch.empty_like(gates)
    blocks = d_gates.unflatten(-1, (4, -1))
    dh, dc = torch.zeros_like(h0), d_last
    for t in range(gates.shape[2] - 1, -1, -1):
        dh = dh + d_hidden[:, :, t]
        dc = torch.addcmul(dc, dh, into_cell[:, :, t])
        torch.mul(dc.unsqueeze(-2), through_cell[:, :, t], out=blocks[:, :, t, :3])
        torch.mul(dh, through_output[:, :, t], out=blocks[:, :, t, 3])
        dh = torch.bmm(d_gates[:, :, t], weight)
        dc = dc * f[:, :, t]
    h_before = torch.cat([h0.unsqueeze(2), hidden[:, :, :-1]], 2)
    d_weight = torch.bmm(d_gates.flatten(1, 2).mT, h_before.flatten(1, 2))
    return d_gates, d_gates.sum((1, 2)), d_weight, dh, dc
