"""`rope`: queries and keys are rotated by their position (Su et al., 2104.09864).

Pair i of a head of width d turns by position * base^(-2i/d), so scores depend on the distance.
To go past the training length `original`, by `factor`, on trained weights:

    rope(scaling=linear, factor=4)                every position / factor (2306.15595)
    rope(scaling=ntk, factor=4)                   base * factor^(d/(d-2)) ("NTK-aware")
    rope(scaling=yarn, factor=4, original=512)    slow pairs / factor, fast ones as they are, a
                                                  ramp between (2309.00071)

YaRN's ramp runs from pairs that turn once within `original` to those that turn 32 times, and its
scores are multiplied by (0.1 ln factor + 1)^2, half of it on q and half on k.

Angles and rotation are in float32, whatever autocast is in force.

Path: `kernels.heads` for the rotation, torch's fused attention.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from outlast.errors import bad_value, require
from outlast.kernels.heads import turn, turned_heads
from outlast.mixers.attention.schemes.base import Scheme
from outlast.registry import schemes

#: turns within the training length at which YaRN's ramp begins and ends
_SLOW, _FAST = 1, 32


@schemes.register("rope")
class Rope(Scheme):
    """Rotary position embedding, with the scalings that stretch it.

    Args:
        base: The base of the angles: a larger one turns slow pairs more slowly.
        scaling: How positions past the training length are brought back into it.
        factor: How many times the training length is to be reached.
        original: The training length in tokens, >= 1; only `yarn` needs it.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        base: float = 10_000.0,
        scaling: Literal["linear", "ntk", "yarn"] | None = None,
        factor: float = 1.0,
        original: int | None = None,
    ) -> None:
        super().__init__(width, heads)
        head = width // heads
        require(head % 2 == 0, "heads", heads, f"a number that makes {width}/heads even")
        require(base > 1, "base", base, "a number > 1")
        require(factor >= 1, "factor", factor, "a number >= 1")
        if scaling is None and (factor != 1 or original is not None):
            raise bad_value("scaling", "none", "linear | ntk | yarn if factor or original is set")
        if (scaling == "yarn") != (original is not None):
            accepted = "the training length in tokens with scaling=yarn, none otherwise"
            raise bad_value("original", original or "none", accepted)
        if scaling is not None and factor == 1:
            raise bad_value("factor", factor, f"a number > 1 with scaling={scaling}")
        require(original is None or original >= 1, "original", original, "a whole number >= 1")
        if scaling == "ntk" and head > 2:
            base *= factor ** (head / (head - 2))
        self.base, self.scaling, self.factor, self.original = base, scaling, factor, original

    def rotate(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.turns(q, positions)
        return turn(q, cos, sin), turn(k, cos, sin)

    def unpacked(self, packed: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        return turned_heads(packed, *self.turns(packed, positions))

    def turns(self, q: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each pair's angle, (tokens, head width / 2), float32 or wider."""
        d = q.shape[-1]
        speed = self.base ** (-torch.arange(0, d, 2, device=q.device) / d)
        if self.scaling == "linear":
            speed = speed / self.factor
        if self.scaling == "yarn" and self.original is not None:
            turns = self.original * speed / (2 * math.pi)
            kept = ((turns - _SLOW) / (_FAST - _SLOW)).clamp(0, 1)
            speed = speed * (kept + (1 - kept) / self.factor)
        angle = positions[:, None] * speed
        cos, sin = angle.cos(), angle.sin()
        if self.scaling == "yarn":
            scale = 0.1 * math.log(self.factor) + 1
            cos, sin = cos * scale, sin * scale
        wide = torch.promote_types(q.dtype, torch.float32)
        return cos.to(wide), sin.to(wide)
