"""`matchability`: scores and values reweighted by how much a key can matter (2505.02161).

    scores = (q_i·k_j + α (q_i ⊙ w)·k_j) / √d,    v_j <- σ(u·x_j + b) v_j

with α, w, u and b learned for each head. After matchability-based reweighting for local feature
matching, which we know from summaries; the sizes, α = 1 and w = 0 at the start are ours.

Path: q ⊙ (1 + αw), so torch's fused attention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outlast.mixers.attention.schemes.base import Scheme
from outlast.mixers.base import Linear
from outlast.registry import schemes


@schemes.register("matchability")
class Matchability(Scheme):
    """Scores and values weighed by a learned relevance."""

    uses_positions = False

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.alpha = nn.Parameter(torch.ones(heads))
        self.direction = nn.Parameter(torch.zeros(heads, width // heads))
        self.relevance = Linear(width, heads)

    def rotate(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        factor = 1 + self.alpha[:, None] * self.direction
        return q * factor[:, None].to(q.dtype), k

    def values(self, x: Tensor, v: Tensor) -> Tensor:
        return v * self.relevance(x).sigmoid().transpose(1, 2)[..., None].to(v.dtype)
