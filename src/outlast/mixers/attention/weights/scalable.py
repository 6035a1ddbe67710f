"""`scalable`: scalable softmax, whose scores grow with the log of the context (2501.19399).

The query at position t (counted from 1) has its scores multiplied by s log t, with s learned
for each head and 0.43 at the start; log t is kept above 0.7 (our choice), so that the first
tokens are not left without any contrast.

Path: the factor goes into the queries, so torch's fused attention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outlast.mixers.attention.weights.base import Weights
from outlast.registry import weightings


@weightings.register("scalable")
class Scalable(Weights):
    """Scalable softmax: a learned log-n temperature against the loss of sharpness at length."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.scale = nn.Parameter(torch.full((heads,), 0.43))  # a vector: not decayed

    def sharpen(self, q: Tensor, x: Tensor, positions: Tensor) -> Tensor:
        logs = (positions + 1).float().log().clamp_min(0.7)
        return q * (self.scale[:, None, None] * logs[:, None]).to(q.dtype)
