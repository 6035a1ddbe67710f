"""`xpos`: rope whose pairs also fade with distance, fast ones sooner (Sun et al., 2212.10554).

Pair i contributes its rotated product times ζ_i^((position of query - of key) / scale), with
ζ_i = (2i/d + 0.4) / 1.4 and scale = 512. The paper multiplies queries by ζ^position and keys by
ζ^-position, which overflows at some length; here positions are counted from the last query of a
block, which is the same product and stays finite. The paper's windows at test time are left out.

Path: a block of queries at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outlast.errors import require
from outlast.mixers.attention.schemes.base import distances, scaled_products
from outlast.mixers.attention.schemes.rope import Rope
from outlast.registry import schemes

_GAMMA = 0.4


@schemes.register("xpos")
class XPos(Rope):
    """Extrapolatable positions: rotary, with a decay for each pair.

    Args:
        base: The base of the angles, as for `rope`.
        scale: The distance over which pairs fade; a larger one fades them more slowly.
    """

    def __init__(
        self, width: int, heads: int, base: float = 10_000.0, scale: float = 512.0
    ) -> None:
        super().__init__(width, heads, base)
        require(scale > 0, "scale", scale, "a number > 0")
        self.scale = scale

    def scores(
        self, q: Tensor, k: Tensor, token_features: Tensor | None, positions: Tensor, keys: Tensor
    ) -> Tensor:
        d = q.shape[-1]
        zeta = (torch.arange(0, d, 2, device=q.device, dtype=q.dtype) / d + _GAMMA) / (1 + _GAMMA)
        zeta = torch.cat([zeta, zeta])
        back = (positions[-1] - positions)[:, None] / self.scale
        ahead = distances(positions[-1:], keys).mT / self.scale
        return scaled_products(q * zeta**-back, k * zeta**ahead)
