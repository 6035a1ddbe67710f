"""`cope`: contextual position, counted over the keys that matter (Golovneva et al., 2405.18719).

g_ij = σ(q_i·k_j / √d) says whether key j counts for query i; p_ij = sum_{l=j..i} g_il, at most
`positions` - 1, is how far back it lies; and the score is

    (q_i·k_j + q_i·e[p_ij]) / √d,

with e[p] interpolated between the learned vectors e[floor p] and e[ceil p], 0 at the start and
shared by the heads. Checked against the authors' code (facebookresearch/RAM), from which are the
√d under both terms, the sharing and the start; the paper writes the gate without √d.

Path: a block of queries at a time. On a GPU the gradient in e is added up in no fixed order, so
two runs of the same training differ in their last bits.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from outlast.errors import require
from outlast.mixers.attention.schemes.base import Scheme, distances, scaled_products
from outlast.registry import schemes


@schemes.register("cope")
class Cope(Scheme):
    """Contextual position encoding: each query counts the keys that matter to it.

    Args:
        positions: How many learned vectors there are; farther keys share the last one.
    """

    scores_memory: ClassVar[int] = 4
    uses_positions = False

    def __init__(self, width: int, heads: int, positions: int = 64) -> None:
        super().__init__(width, heads)
        require(positions >= 2, "positions", positions, "a whole number >= 2")
        self.last = positions - 1
        self.table = nn.Parameter(torch.zeros(width // heads, positions))

    def scores(
        self, q: Tensor, k: Tensor, token_features: Tensor | None, positions: Tensor, keys: Tensor
    ) -> Tensor:
        scores = scaled_products(q, k)
        later = distances(positions, keys) < 0
        gates = scores.sigmoid().masked_fill(later, 0)
        back = gates.flip(-1).cumsum(-1).flip(-1).clamp_max(self.last)
        below = back.detach().floor()
        part = back - below
        each = q @ self.table.to(q.dtype) / q.shape[-1] ** 0.5  # one number a whole position
        index = below.long().clamp(0, self.last)  # NaN would be no index; `part` stays NaN
        low = each.gather(-1, index)
        high = each.gather(-1, (index + 1).clamp_max(self.last))
        return scores + low + part * (high - low)
