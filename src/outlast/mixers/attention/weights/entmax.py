"""`entmax(alpha)`: weights that can be exactly 0, between softmax (1) and sparsemax (2).

w_j = [(α-1) s_j - τ]_+^(1/(α-1)), with τ such that they add up to 1 (Peters et al., 1905.05702).
`entmax(alpha=learned)` has an α for each head, 1 + σ(a) with a = 0 at the start (Correia et al.,
1909.00015).

Path: a block of queries at a time, through `kernels.entmax`: by sorting for α = 1.5, by bisection
otherwise, with the gradient in closed form. For α = 1.5 without a bias, where it can, AdaSplash
(`kernels/libraries.py`).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from outlast.errors import bad_value
from outlast.kernels import libraries
from outlast.kernels.entmax import entmax, entmax15
from outlast.mixers.attention.weights.base import Weights
from outlast.registry import weightings


def check_alpha(alpha: object, learned: str = ", or learned") -> None:
    """Refuse what no entmax has."""
    if isinstance(alpha, float) and not 1 < alpha <= 4:
        raise bad_value("alpha", alpha, f"a number > 1 (1 is the softmax) and <= 4{learned}")


@weightings.register("entmax")
class Entmax(Weights):
    """Sparse weights: α-entmax, with α fixed or learned for each head.

    Args:
        alpha: How sparse the weights are: 1 would be the softmax; `learned` is one for each head.
    """

    def __init__(self, width: int, heads: int, alpha: float | Literal["learned"] = 1.5) -> None:
        super().__init__(width, heads)
        check_alpha(alpha)
        self.fixed = None if alpha == "learned" else float(alpha)
        if self.fixed is None:
            self.alpha = nn.Parameter(torch.zeros(heads))  # a vector: not decayed

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
        attend = libraries.entmax15(q, k, v) if self.fixed == 1.5 else None
        return None if attend is None else attend(q, k, v)

    def normalise(self, scores: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if self.fixed == 1.5:
            return entmax15(scores), carry
        if self.fixed is not None:
            return entmax(scores, scores.new_full((), self.fixed)), carry
        return entmax(scores, 1 + self.alpha.to(scores.dtype).sigmoid()[:, None, None]), carry
