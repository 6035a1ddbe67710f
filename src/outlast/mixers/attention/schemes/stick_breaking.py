"""`stick_breaking`: the nearest keys take first, the rest share what is left (2410.17980).

β_ij = σ(q_i·k_j / √d) is the part that key j breaks off what the keys between it and the query
have left over,

    w_ij = β_ij prod_{j<l<i} (1 - β_il),    j < i,

so recency is built in and the weights may add up to less than 1; the rest goes nowhere. A query
does not see itself (as in flash-linear-attention's plain version);
`stick_breaking(current=true)` lets it. It makes its own weights and takes no others.

Path: a block of queries at a time.
"""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from outlast.mixers.attention.schemes.base import Change, Scheme, distances, scaled_products
from outlast.registry import schemes


@schemes.register("stick_breaking")
class StickBreaking(Scheme):
    """Stick-breaking attention: nearest first, instead of a softmax.

    Args:
        current: Whether a query sees its own token.
    """

    scores_memory: ClassVar[int] = 2
    uses_positions = False

    def __init__(self, width: int, heads: int, current: bool = False) -> None:
        super().__init__(width, heads)
        self.current = current

    def weigh(
        self,
        q: Tensor,
        k: Tensor,
        token_features: Tensor | None,
        positions: Tensor,
        allowed: Tensor,
        keys: Tensor,
        change: Change,
    ) -> Tensor:
        scores = change(scaled_products(q, k))
        back = distances(positions, keys)
        seen = allowed & (back >= (0 if self.current else 1))
        left = F.logsigmoid(-scores).masked_fill(~seen, 0)
        # the sum over the keys after this one: from here to the end, without this one
        after = left.flip(-1).cumsum(-1).flip(-1) - left
        return (F.logsigmoid(scores) + after).exp().masked_fill(~seen, 0)
