"""`rope`: queries and keys are rotated by their position (Su et al., 2104.09864).

Pair i of a head of width d turns by position * base^(-2i/d), so scores depend on the distance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outlast.errors import bad_value
from outlast.mixers.attention.schemes.base import Scheme
from outlast.registry import schemes


@schemes.register("rope")
class Rope(Scheme):
    """Rotary position embedding."""

    def __init__(self, width: int, heads: int, base: float = 10_000.0) -> None:
        super().__init__(width, heads)
        if (width // heads) % 2:
            raise bad_value("heads", heads, "a number that leaves an even head width for rope")
        if base <= 1:
            raise bad_value("base", base, "a number > 1")
        self.base = base

    def rotate(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        d = q.shape[-1]
        speed = self.base ** (-torch.arange(0, d, 2, device=q.device) / d)
        angle = positions[:, None] * speed
        cos, sin = angle.cos().to(q.dtype), angle.sin().to(q.dtype)
        return _turn(q, cos, sin), _turn(k, cos, sin)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
