"""`position_only`: weights that depend on the distance alone; queries and keys play no part.

From "Are queries and keys always relevant?" (2405.18874): o_i = sum_j α_{i-j} v_j. There α has a
number for each distance of a lattice of fixed size. Ours has no largest distance: a learned score
for each of T5's ranges of distance (see `t5`), made into weights like any other scores.

Path: queries of 0 and a bias of positions alone, so torch's fused attention while its table fits
(`attention`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from outlast.mixers.attention.schemes.t5 import T5
from outlast.registry import schemes


@schemes.register("position_only")
class PositionOnly(T5):
    """Attention by distance, without queries and keys."""

    uses_queries = False

    def rotate(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(q), k
