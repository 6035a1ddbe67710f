"""`alibi`: scores fall linearly with distance (Press et al., 2108.12409).

    scores = q_i·k_j / √d - m_h (i - j),    m_h = 2^(-8 h / H) for head h = 1..H.

Path: in 16 bit on a GPU `kernels.tra`, with every key kept and the slope as the gate. A table of
biases would be rounded there, and distances blurred. Elsewhere a bias of positions alone (see
`attention`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outlast.kernels.tra import has_kernel, threshold_relative_attention
from outlast.mixers.attention.schemes.base import Scheme, distances
from outlast.registry import schemes

#: the widest type, in bytes, in which a table of biases is too coarse
WIDEST_TYPE = 2


@schemes.register("alibi")
class Alibi(Scheme):
    """Attention with linear biases."""

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
        return 2.0 ** (-8 * head / self.heads)
