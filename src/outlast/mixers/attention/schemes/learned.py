"""`learned`: a learned vector for each absolute position (Gehring et al., 1705.03122).

    attention of x_t + p_t,    p_t a row of a table with `ceiling` rows.

Added at every attention sublayer rather than once to the token embedding (our choice: the
recurrent pathway of a hybrid must not see positions).

Path: torch's fused attention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outlast.errors import require
from outlast.mixers.attention.schemes.base import Scheme
from outlast.registry import schemes


@schemes.register("learned")
class Learned(Scheme):
    """A learned vector for each position (Gehring et al., 1705.03122); it has a ceiling.

    Args:
        ceiling: How many positions have a vector; the model takes no more tokens.
    """

    def __init__(self, width: int, heads: int, ceiling: int = 512) -> None:
        super().__init__(width, heads)
        require(ceiling >= 1, "ceiling", ceiling, "a whole number >= 1")
        self.ceiling = ceiling
        self.table = nn.Parameter(torch.randn(ceiling, width) * 0.02)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table[positions]
