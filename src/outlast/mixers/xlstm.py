"""`mlstm` and `slstm`: LSTMs with exponential input gates (Beck et al., arXiv 2405.04517).

mlstm has a matrix as its memory, and gates that see the input alone::

    f, i = sigmoid(w_f x), exp(w_i x)
    C_t  = f_t C_{t-1} + i_t k_t v_t^T
    n_t  = f_t n_{t-1} + i_t k_t
    y_t  = W (sigmoid(W_o x_t) * norm(C_t^T q_t / max(|n_t . q_t|, 1)))

slstm has a vector, and gates that see the last output of their head::

    z, i, f, o = tanh(.), exp(.), sigmoid(.), sigmoid(.)   of   W x_t + R h_{t-1}
    c_t = f_t c_{t-1} + i_t z_t,   n_t = f_t n_{t-1} + i_t
    h_t = o_t c_t / n_t,           y_t = W norm(h_t)

So slstm goes token by token, and can track states; mlstm is computed in chunks, and cannot.

Both keep their memory divided by exp(m), the largest gate so far, so that no exponential
overflows. m changes no output, so it has no gradient. The wider maps and the convolutions around
them in the paper are left out: in a layout line they are `mlp` and `conv`. `norm` is a root mean
square over each head; the paper's also subtracts the mean. The map W after slstm is ours.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outlast.kernels.linear_recurrence import decayed_sum, running_maximum
from outlast.kernels.linear_recurrence.chunks import at_least_single
from outlast.mixers.base import Linear, Mixer, RMSNorm
from outlast.mixers.heads import from_heads, head_width, to_heads
from outlast.registry import mixers

#: C beside n, (batch, heads, keys, values + 1), and m, (batch, heads, 1, 1), in float32
MLSTMState = tuple[Tensor, Tensor]
#: c, n, h and m, each (batch, heads, head width), in float32
SLSTMState = tuple[Tensor, Tensor, Tensor, Tensor]
#: m before the first token of slstm
LOWEST = -1e30


def mlstm_cell(
    q: Tensor, k: Tensor, v: Tensor, write: Tensor, log_forget: Tensor, state: MLSTMState
) -> tuple[Tensor, MLSTMState]:
    """C^T q / max(|n . q|, 1) for all tokens, and the last state.

    Args:
        q: [batch, heads, tokens, d].
        k: [batch, heads, tokens, d].
        v: [batch, heads, tokens, e].
        write: [batch, heads, tokens, 1], the logarithm of the input gate.
        log_forget: [batch, heads, tokens, 1], that of the forget gate, at most 0.
        state: C beside n, [batch, heads, d, e + 1], and m, [batch, heads, 1, 1].

    Returns:
        [batch, heads, tokens, e], and the state.
    """
    memory, before = state
    largest = running_maximum(log_forget.detach(), write.detach(), before.detach())
    log_decay = log_forget + torch.cat([before, largest[..., :-1, :]], -2) - largest
    written = F.pad(v, (0, 1), value=1.0) * (write - largest).exp()
    y, memory = decayed_sum(q, k, written, log_decay, memory)
    total = torch.maximum(y[..., -1:].abs(), (-largest).exp())
    return y[..., :-1] / (total + 1e-6), (memory, largest[..., -1:, :])


@mixers.register("mlstm")
class MLSTM(Mixer):
    """LSTM with a matrix as its memory and exponential gates, in chunks of tokens.

    Args:
        heads: How many memories there are.
    """

    pathway = "recurrent"

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.head_width = heads, head_width(width, heads)
        inner = heads * self.head_width
        self.qkv = Linear(width, 3 * inner)
        self.gates = Linear(width, 2 * heads)
        self.output_gate = Linear(width, inner)
        self.norm = RMSNorm(self.head_width)
        self.out = Linear(inner, width)
        with torch.no_grad():  # heads that remember for some 20 to 400 tokens
            self.gates.bias[heads:] = torch.linspace(3, 6, heads)

    def forward(self, x: Tensor, state: MLSTMState | None = None) -> tuple[Tensor, MLSTMState]:
        q, k, v = (to_heads(part, self.heads) for part in self.qkv(x).chunk(3, -1))
        write, forget = (to_heads(part, self.heads) for part in self.gates(x).chunk(2, -1))
        if state is None:
            shape = (*v.shape[:2], self.head_width, self.head_width + 1)
            state = (v.new_zeros(shape), v.new_zeros(*v.shape[:2], 1, 1))
        k = k * self.head_width**-0.5
        y, state = mlstm_cell(q, k, v, write, F.logsigmoid(forget), state)
        y = from_heads(self.norm(y)) * at_least_single(self.output_gate(x)).sigmoid()
        return self.out(y.to(x.dtype)), state


@mixers.register("slstm")
class SLSTM(Mixer):
    """LSTM with exponential gates and a normaliser; each head sees its own last output.

    Args:
        heads: In how many heads the state is mixed, each by itself.
    """

    pathway = "recurrent"

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.head_width = heads, head_width(width, heads)
        inner = heads * self.head_width
        self.input = Linear(width, 4 * inner)
        self.weight = nn.Parameter(torch.empty(heads, self.head_width, 4 * self.head_width))
        self.norm = RMSNorm(self.head_width)
        self.out = Linear(inner, width)
        nn.init.uniform_(self.weight, -(self.head_width**-0.5), self.head_width**-0.5)
        with torch.no_grad():  # the forget gate of each head
            bias = self.input.bias.view(heads, 4, self.head_width)
            bias[:, 2] = torch.linspace(3, 6, heads)[:, None]

    def forward(self, x: Tensor, state: SLSTMState | None = None) -> tuple[Tensor, SLSTMState]:
        projected = to_heads(self.input(x), self.heads)
        if state is None:
            start = projected.new_zeros(*projected.shape[:2], self.head_width)
            state = (start, start, start, torch.full_like(start, LOWEST))
        c, n, h, m = state
        outputs = []
        for step in projected.unbind(2):
            recurrent = torch.bmm(h.transpose(0, 1), self.weight).transpose(0, 1).to(h.dtype)
            z, write, forget, o = (step + recurrent).chunk(4, -1)
            log_forget = F.logsigmoid(forget) + m
            m = torch.maximum(log_forget, write).detach()
            kept, written = (log_forget - m).exp(), (write - m).exp()
            c, n = kept * c + written * z.tanh(), kept * n + written
            h = o.sigmoid() * c / n
            outputs.append(h)
        y = from_heads(self.norm(torch.stack(outputs, 2)))
        return self.out(y.to(x.dtype)), (c, n, h, m)
