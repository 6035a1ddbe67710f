"""`alibi`: scores fall linearly with distance (Press et al., 2108.12409).

    scores = q_i·k_j / √d - m_h (i - j)

The slopes m_h of heads h = 1..H depend on the convention if H is not a power of two:

    alibi                              m_h = 2^(-8 h / H) for every H, as the paper's text says
    alibi(convention=transformers)     first the slopes of the largest power of two n below H, then
                                       those of 2n heads, from the first on and leaving out every
                                       other one

The second is what the authors' code does, and BLOOM and MPT in transformers. With 3 heads the
slopes are 2^(-8/3), 2^(-16/3), 2^(-8) in the first convention and 2^(-4), 2^(-8), 2^(-2) in the
second.

Path: in 16 bit on a GPU `kernels.tra`, with every key kept and the slope as the gate. A table of
biases would be rounded there, and distances blurred. Elsewhere a bias of positions alone (see
`attention`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outlast.arguments import check_choice
from outlast.kernels.tra import has_kernel, threshold_relative_attention
from outlast.mixers.attention.schemes.base import Convention, Scheme, distances
from outlast.registry import schemes

#: the widest type, in bytes, in which a table of biases is too coarse
WIDEST_TYPE = 2


@schemes.register("alibi")
class Alibi(Scheme):
    """Attention with linear biases.

    Args:
        convention: The slopes for head counts that are no powers of two: the paper's formula, or
            that of transformers.
    """

    def __init__(self, width: int, heads: int, convention: Convention = "paper") -> None:
        super().__init__(width, heads)
        check_choice("convention", convention, Convention)
        self.convention = convention

    def bias(self, positions: Tensor, keys: Tensor) -> Tensor:
        slopes = self._slopes(positions.device)
        return (-slopes[:, None, None] * distances(positions, keys)).unsqueeze(0)

    def fused(
        self, q: Tensor, k: Tensor, v: Tensor, token_features: Tensor | None, drawn: bool
    ) -> Tensor | None:
        if drawn or q.dtype.itemsize > WIDEST_TYPE or v.shape != k.shape or not has_kernel(q):
            return None  # the values of `compositional` have another width
        gate = -self._slopes(q.device)[:, None].expand(q.shape[:-1])
        return threshold_relative_attention(q, k, v, gate, threshold=-math.inf)

    def _slopes(self, device: torch.device) -> Tensor:
        head = torch.arange(1, self.heads + 1, device=device)
        power = 2 ** (self.heads.bit_length() - 1)  # the largest one up to the number of heads
        if self.convention == "paper" or power == self.heads:
            return 2.0 ** (-8 * head / self.heads)
        extra = 2 * (head - power) - 1  # the 1st, 3rd, 5th ... of twice as many heads
        return 2.0 ** (-8 * torch.where(head <= power, 2 * head, extra) / (2 * power))
