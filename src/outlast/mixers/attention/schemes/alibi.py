"""`alibi`: scores fall linearly with distance (Press et al., 2108.12409).

Head h of H has the slope 2^(-8 h / H), h = 1..H.

Path: a bias of positions alone, so torch's fused attention.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outlast.mixers.attention.schemes.base import Scheme, distances
from outlast.registry import schemes


@schemes.register("alibi")
class Alibi(Scheme):
    """Attention with linear biases."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)

    def bias(self, positions: Tensor, keys: Tensor | int) -> Tensor:
        head = torch.arange(1, self.heads + 1, device=positions.device)
        slope = 2.0 ** (-8 * head / self.heads)
        return (-slope[:, None, None] * distances(positions, keys)).unsqueeze(0)
