"""`alibi`: scores fall linearly with distance (Press et al., 2108.12409).

    scores = q_i·k_j / √d - m_h (i - j),    m_h = 2^(-8 h / H) for head h = 1..H.

Path: in 16 bit on a GPU `kernels.tra`, of which this is a case: every key kept, the slope for a
gate. There a table of biases would be rounded, and distances blurred. Else a bias of positions
alone (see `attention`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outlast.kernels.tra import has_kernel, threshold_relative_attention
from outlast.mixers.attention.schemes.base import Scheme, distances
from outlast.registry import schemes

#: bytes of a number up to which a table of biases would be too coarse
WIDEST_TYPE = 2


@schemes.register("alibi")
class Alibi(Scheme):
    """Attention with linear biases."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)

    def bias(self, positions: Tensor, keys: Tensor | int) -> Tensor:
        slopes = self._slopes(positions.device)
        return (-slopes[:, None, None] * distances(positions, keys)).unsqueeze(0)

    def fused(
        self, q: Tensor, k: Tensor, v: Tensor, marks: Tensor | None, drawn: bool
    ) -> Tensor | None:
        if drawn or q.dtype.itemsize > WIDEST_TYPE or v.shape != k.shape or not has_kernel(q):
            return None  # values of another width are those of `compositional`
        gate = -self._slopes(q.device)[:, None].expand(q.shape[:-1])
        return threshold_relative_attention(q, k, v, gate, threshold=-math.inf)

    def _slopes(self, device: torch.device) -> Tensor:
        head = torch.arange(1, self.heads + 1, device=device)
        return 2.0 ** (-8 * head / self.heads)
