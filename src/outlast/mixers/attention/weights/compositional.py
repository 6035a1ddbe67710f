"""`compositional`: what to look for and what to take are chosen apart (Mittal et al., 2110.09419).

S searches (softmax over keys) meet R retrievals (values) that all searches share: out_sr is
search s applied to values r, and a second softmax, over r, takes one of them,

    a_sr = softmax_r(q'_s · k'(out_sr) / sqrt(d)),    out_s = sum_r a_sr out_sr,

q'_s linear in the token, k' one linear map for all. Here S = R = heads and the retrievals are the
heads' own values (our choice: no value map is added); that k' is shared we have from summaries.
The cache holds every head's values for every search, R times as much as usual.

Path: torch's fused attention on values that are R times as wide.
"""

from __future__ import annotations

from torch import Tensor

from outlast.mixers.attention.weights.base import Weights
from outlast.mixers.base import Linear
from outlast.registry import weightings


@weightings.register("compositional")
class Compositional(Weights):
    """Softmax searches that share their retrievals."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.ask = Linear(width, width, bias=False)
        self.answer = Linear(width // heads, width // heads, bias=False)

    def spread(self, v: Tensor) -> Tensor:
        every = v.transpose(1, 2).flatten(2)
        return every[:, None].expand(-1, self.heads, -1, -1)

    def gather(self, y: Tensor, x: Tensor) -> Tensor:
        retrieved = y.unflatten(-1, (self.heads, -1))  # batch, searches, tokens, retrievals, d
        queries = self.ask(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        scores = (self.answer(retrieved) * queries[..., None, :]).sum(-1)
        weights = (scores / retrieved.shape[-1] ** 0.5).softmax(-1).to(retrieved.dtype)
        return (weights[..., None] * retrieved).sum(-2)
