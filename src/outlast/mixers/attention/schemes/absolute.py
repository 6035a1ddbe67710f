"""`learned` and `sinusoidal`: a vector for each absolute position, added to attention's input.

Added at every attention sublayer rather than once to the token embedding (our choice: the
recurrent pathway of a hybrid must not see positions).

Path: torch's fused attention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outlast.errors import bad_value
from outlast.mixers.attention.schemes.base import Scheme
from outlast.registry import schemes


@schemes.register("learned")
class Learned(Scheme):
    """A learned vector for each position (Gehring et al., 1705.03122); it has a ceiling."""

    def __init__(self, width: int, heads: int, ceiling: int = 512) -> None:
        super().__init__(width, heads)
        if ceiling < 1:
            raise bad_value("ceiling", ceiling, "a whole number >= 1")
        self.ceiling = ceiling
        self.table = nn.Parameter(torch.randn(ceiling, width) * 0.02)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table[positions]


@schemes.register("sinusoidal")
class Sinusoidal(Scheme):
    """Sines and cosines of the position (Vaswani et al., 1706.03762)."""

    def __init__(self, width: int, heads: int, base: float = 10_000.0) -> None:
        super().__init__(width, heads)
        if base <= 1:
            raise bad_value("base", base, "a number > 1")
        self.base = base

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        half = torch.arange(0, self.width, 2, device=x.device)
        angle = positions[:, None] * self.base ** (-half / self.width)
        return x + torch.cat([angle.sin(), angle.cos()], -1)[:, : self.width].to(x.dtype)
