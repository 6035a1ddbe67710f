"""`deltanet` and `gated_deltanet`: a memory in which a new value replaces the old one of its key.

::

    q, k, v = silu(conv(W x)), q and k of length 1
    S_t     = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T
    y_t     = W norm(S_t^T q_t)

DeltaNet (Schlag et al., arXiv 2102.11174; Yang et al., 2406.06484) has a = 1. Gated DeltaNet
(2412.06464) learns a, and multiplies the output by silu(W x). With b between 0 and 2 an eigenvalue
of the transition may be negative, and the layer can track states such as parity (2411.12537). With
b between 0 and 1 it cannot.

Keys and values have the same width here; in the papers values may be wider.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from outlast.kernels.linear_recurrence import delta_rule
from outlast.mixers.base import Linear, Mixer, RMSNorm
from outlast.mixers.heads import Decay, ShortConv, from_heads, head_width, to_heads, unit
from outlast.registry import mixers

#: the last tokens of the convolution, and the memory (batch, heads, keys, values) in float32
DeltaState = tuple[Tensor, Tensor]


@mixers.register("deltanet")
class DeltaNet(Mixer):
    """Delta rule: a memory of keys and values that forgets a value only for a new one.

    Args:
        heads: How many memories there are.
        negative: Whether eigenvalues may be negative, which state tracking needs.
        conv: How many tokens the convolution before it sees; 1 is this token alone.
    """

    pathway = "recurrent"

    def __init__(self, width: int, heads: int = 4, negative: bool = True, conv: int = 4) -> None:
        super().__init__()
        self.heads, self.head_width = heads, head_width(width, heads)
        inner = heads * self.head_width
        self.largest = 2.0 if negative else 1.0
        self.qkv = Linear(width, 3 * inner, bias=False)
        self.conv = ShortConv(3 * inner, conv)
        self.beta = Linear(width, heads, bias=False)
        self.norm = RMSNorm(self.head_width)
        self.out = Linear(inner, width, bias=False)

    def forward(self, x: Tensor, state: DeltaState | None = None) -> tuple[Tensor, DeltaState]:
        projected = self.qkv(x)
        before, memory = state or (self.conv.start(projected), None)
        projected, before = self.conv(projected, before)
        q, k, v = (to_heads(part, self.heads) for part in projected.chunk(3, -1))
        if memory is None:
            memory = v.new_zeros(*v.shape[:2], self.head_width, self.head_width)
        beta = self.largest * to_heads(self.beta(x), self.heads).sigmoid()
        q = unit(q) * self.head_width**-0.5
        y, memory = delta_rule(q, unit(k), v, beta, self.log_decay(x, beta), memory)
        y = self.gated(from_heads(self.norm(y)).to(x.dtype), x)
        return self.out(y), (before, memory)

    def log_decay(self, x: Tensor, beta: Tensor) -> Tensor:
        """The logarithm of a, in the shape of `beta`."""
        return beta.new_zeros(beta.shape[-2], 1)

    def gated(self, y: Tensor, x: Tensor) -> Tensor:
        """What is read from the memory, after a gate."""
        return y


@mixers.register("gated_deltanet")
class GatedDeltaNet(DeltaNet):
    """Delta rule with a learned decay of the whole memory and a gate on what is read.

    Args:
        heads: How many memories there are.
        negative: Whether eigenvalues may be negative, which state tracking needs.
        conv: How many tokens the convolution before it sees; 1 is this token alone.
    """

    def __init__(self, width: int, heads: int = 4, negative: bool = True, conv: int = 4) -> None:
        super().__init__(width, heads, negative, conv)
        self.decay = Decay(width, heads)
        self.gate = Linear(width, heads * self.head_width, bias=False)

    def log_decay(self, x: Tensor, beta: Tensor) -> Tensor:
        log_decay: Tensor = self.decay(x)[1]
        return log_decay

    def gated(self, y: Tensor, x: Tensor) -> Tensor:
        return y * F.silu(self.gate(x))
