"""`forget`: FoX, softmax attention with a forget gate (Lin et al., 2503.02130).

Each token has a gate f_t = σ(w·x_t + b) for each head, and the score of key j for query i is

    q_i·k_j / √d + sum_{l=j+1..i} log f_l.

A constant gate is ALiBi. No other position; the paper's "Pro" block (output gate, QK-norm, token
shift) is not part of the scheme.

Path: a block of queries at a time; log f is kept in the cache. With a softmax, where it can,
flash-linear-attention (`kernels/libraries.py`).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from outlast.kernels import libraries
from outlast.mixers.attention.schemes.base import Scheme, products
from outlast.mixers.base import Linear
from outlast.registry import schemes


@schemes.register("forget")
class Forget(Scheme):
    """Forgetting attention: a learned, data-dependent decay."""

    placed = False

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.gate = Linear(width, heads)

    def marks(self, x: Tensor) -> Tensor:
        return log_gates(self.gate, x)

    def fused(
        self, q: Tensor, k: Tensor, v: Tensor, marks: Tensor | None, drawn: bool
    ) -> Tensor | None:
        attend = libraries.forgetting(q, k, v)
        return None if attend is None or marks is None else attend(q, k, v, marks[..., 0])

    def scores(
        self,
        q: Tensor,
        k: Tensor,
        marks: Tensor | None,
        positions: Tensor,
        keys: Tensor | None = None,
    ) -> Tensor:
        assert marks is not None  # for the type checker: `marks` above always gives some
        kept = marks[..., 0].to(q.dtype).cumsum(-1)
        return products(q, k) + kept[..., -q.shape[-2] :, None] - kept[..., None, :]


def log_gates(linear: Linear, x: Tensor) -> Tensor:
    """log σ of one number a head and token, (batch, heads, tokens, 1), not below float32."""
    raw = linear(x)
    wide = raw if raw.dtype.itemsize >= 4 else raw.float()
    return F.logsigmoid(wide).transpose(1, 2)[..., None]
