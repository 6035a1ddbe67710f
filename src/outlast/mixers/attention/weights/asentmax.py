"""`asentmax`: adaptive-scalable entmax (Vasylenko et al., 2506.16640).

The query at position t (counted from 1) has its scores multiplied by

    δ + β (log (t+1))^γ,    β = softplus(w_β·x),  γ = range tanh(w_γ·x),

one β and γ for each head and query, δ = 1 and range = 2, and the weights are the α-entmax of
that. Checked against the authors' code, from which the defaults and the t+1 are; there, in a
model that mixes ALiBi heads with heads without position, the latter alone are scaled: here all
are.

Path: as `entmax`, but AdaSplash without gradients only: of scores this sharp its are too coarse (on
an H200 in bfloat16, 256 tokens, w_β 12 % off where our own path is 3 %).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.errors import require
from outlast.mixers.attention.weights.entmax import Entmax, check_alpha
from outlast.mixers.base import Linear
from outlast.registry import weightings


@weightings.register("asentmax")
class ASEntmax(Entmax):
    """Entmax whose sharpness each query sets itself and that grows with the log of the context.

    Args:
        alpha: How sparse the weights are: 1 would be the softmax, 2 is sparser than 1.5.
        delta: The factor on the scores that does not grow with the context.
        range: The bound of the exponent of log n.
    """

    def __init__(
        self, width: int, heads: int, alpha: float = 1.5, delta: float = 1.0, range_: float = 2.0
    ) -> None:
        check_alpha(alpha, learned="")
        super().__init__(width, heads, alpha)
        require(delta >= 0, "delta", delta, "a number >= 0")
        require(range_ >= 0, "range", range_, "a number >= 0")
        self.delta, self.range = delta, range_
        self.beta = Linear(width, heads, bias=False)
        self.gamma = Linear(width, heads, bias=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
        return None if torch.is_grad_enabled() else super().attend(q, k, v)

    def sharpen(self, q: Tensor, x: Tensor, positions: Tensor) -> Tensor:
        logs = (positions + 2).float().log()[:, None]
        beta, gamma = F.softplus(self.beta(x)), self.range * self.gamma(x).tanh()
        factor = self.delta + beta * logs**gamma
        return q * factor.transpose(1, 2)[..., None].to(q.dtype)
