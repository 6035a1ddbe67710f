"""`fire`: a learned function of the distance relative to the context (Li et al., 2310.04418).

b_ij = f(ψ(i-j) / ψ(max(i, L))),    ψ(x) = log(c x + 1),

f an MLP from one number to one for each head (32 hidden, ReLU), c and L learned: c starts at 0.1,
L is `threshold` times a learned 1. As the query's position bounds the distance, the ratio stays
between 0 and 1 at any length. Absolute values keep c and L positive, as in the paper's listing
(checked from memory); i is counted from 0.

Path: a bias of positions alone, so torch's fused attention while its table fits (`attention`).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from outlast.errors import require
from outlast.mixers.attention.schemes.base import Scheme, distances
from outlast.mixers.base import Linear
from outlast.registry import schemes

_HIDDEN = 32


@schemes.register("fire")
class Fire(Scheme):
    """Functional interpolation for relative positions.

    Args:
        threshold: Where L starts: distances of earlier queries are relative to L.
    """

    scores_memory: ClassVar[int] = _HIDDEN

    def __init__(self, width: int, heads: int, threshold: float = 512.0) -> None:
        super().__init__(width, heads)
        require(threshold > 0, "threshold", threshold, "a number > 0")
        self.threshold = threshold
        self.c = nn.Parameter(torch.tensor(0.1))
        self.share = nn.Parameter(torch.tensor(1.0))
        self.up = Linear(1, _HIDDEN)
        self.down = Linear(_HIDDEN, heads)

    def bias(self, positions: Tensor, keys: Tensor) -> Tensor:
        distance = distances(positions, keys).clamp_min(0).to(self.c.dtype)
        bound = torch.maximum(positions.to(self.c.dtype), (self.share * self.threshold).abs())
        ratio = _psi(distance, self.c) / (_psi(bound, self.c)[:, None] + 1e-6)
        return self.down(self.up(ratio[..., None]).relu()).movedim(-1, 0).unsqueeze(0)


def _psi(x: Tensor, c: Tensor) -> Tensor:
    return (c * x).abs().log1p()
