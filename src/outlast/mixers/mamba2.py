"""`mamba2`: a state space layer with one decay for each head (Dao & Gu, arXiv 2405.21060).

::

    [z, u, B, C] = W x,  u, B, C = silu(conv([u, B, C]))
    S_t = exp(-a d_t) S_{t-1} + B_t (d_t u_t)^T
    y_t = W norm((S_t^T C_t + D u_t) * silu(z_t))

d is the step of each head, softplus of a linear map of x. All heads share B and C, as with one
group in the paper. Decays are between 0 and 1, so it cannot track states such as parity.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outlast.arguments import check_whole
from outlast.kernels.linear_recurrence import decayed_sum
from outlast.kernels.linear_recurrence.chunks import at_least_single
from outlast.mixers.base import Linear, Mixer, RMSNorm
from outlast.mixers.heads import Decay, ShortConv, from_heads, head_width, to_heads
from outlast.registry import mixers

#: the last tokens of the convolution, and the memory (batch, heads, state, values) in float32
MambaState = tuple[Tensor, Tensor]


@mixers.register("mamba2")
class Mamba2(Mixer):
    """State space layer (SSD): sums of inputs that decay by learned, input-dependent steps.

    Args:
        heads: How many decays there are; each has a share of the inner width.
        state: How many values each inner channel remembers.
        expand: How many times as wide the layer is inside.
        conv: How many tokens the convolution before it sees; 1 is this token alone.
    """

    pathway = "recurrent"

    def __init__(
        self, width: int, heads: int = 4, state: int = 64, expand: int = 2, conv: int = 4
    ) -> None:
        super().__init__()
        check_whole("state", state, 1)
        check_whole("expand", expand, 1)
        self.heads, self.state = heads, state
        self.inner = heads * head_width(expand * width, heads)
        self.input = Linear(width, 2 * self.inner + 2 * state, bias=False)
        self.conv = ShortConv(self.inner + 2 * state, conv)
        self.decay = Decay(width, heads)
        self.skip = nn.Parameter(torch.ones(heads))
        self.norm = RMSNorm(self.inner)
        self.out = Linear(self.inner, width, bias=False)

    def forward(self, x: Tensor, state: MambaState | None = None) -> tuple[Tensor, MambaState]:
        gate, projected = self.input(x).split([self.inner, self.inner + 2 * self.state], -1)
        before, memory = state or (self.conv.start(projected), None)
        projected, before = self.conv(projected, before)
        u, keys, queries = projected.split([self.inner, self.state, self.state], -1)
        u, keys, queries = to_heads(u, self.heads), to_heads(keys, 1), to_heads(queries, 1)
        if memory is None:
            memory = u.new_zeros(*u.shape[:2], self.state, u.shape[-1])
        step, log_decay = self.decay(x)
        y, memory = decayed_sum(queries, keys, step * u, log_decay, memory)
        y = from_heads(y + self.skip[:, None, None] * u) * F.silu(at_least_single(gate))
        return self.out(self.norm(y).to(x.dtype)), (before, memory)
