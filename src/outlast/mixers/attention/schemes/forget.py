"""`forget`: FoX, softmax attention with a forget gate (Lin et al., 2503.02130).

Each token has a gate f_t = σ(w·x_t + b) for each head, and the score of key j for query i is

    q_i·k_j / √d + sum_{l=j+1..i} log f_l.

A constant gate is ALiBi. No other position; the paper's "Pro" block (output gate, QK-norm, token
shift) is not part of the scheme.

Path: a block of queries at a time; log f is cached. With a softmax flash-linear-attention is used
where it is possible (`kernels/libraries.py`).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from outlast.kernels import libraries
from outlast.mixers.attention.schemes.base import Scheme, scaled_products
from outlast.mixers.base import Linear
from outlast.registry import schemes


@schemes.register("forget")
class Forget(Scheme):
    """Forgetting attention: a learned, data-dependent decay."""

    uses_positions = False

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.gate = Linear(width, heads)

    def token_features(self, x: Tensor) -> Tensor:
        return log_gates(self.gate, x)

    def fused(
        self, q: Tensor, k: Tensor, v: Tensor, token_features: Tensor | None, drawn: bool
    ) -> Tensor | None:
        attend = libraries.forgetting(q, k, v)
        if attend is None or token_features is None:
            return None
        return attend(q, k, v, token_features[..., 0])

    def scores(
        self, q: Tensor, k: Tensor, token_features: Tensor | None, positions: Tensor, keys: Tensor
    ) -> Tensor:
        assert token_features is not None  # for the type checker: the method above returns them
        decay = token_features[..., 0].to(q.dtype).cumsum(-1)
        return scaled_products(q, k) + decay[..., -q.shape[-2] :, None] - decay[..., None, :]


def log_gates(linear: Linear, x: Tensor) -> Tensor:
    """log σ of one number for each head and token, (batch, heads, tokens, 1), float32 or wider."""
    raw = linear(x)
    wide = raw if raw.dtype.itemsize >= 4 else raw.float()
    return F.logsigmoid(wide).transpose(1, 2)[..., None]
