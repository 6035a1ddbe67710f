"""`sinusoidal`: sines and cosines of the absolute position (Vaswani et al., 1706.03762).

    attention of x_t + [sin(t ω); cos(t ω)],    ω_i = base^(-2i / width), i = 0 .. width/2 - 1.

Added at every attention sublayer rather than once to the token embedding (our choice: the
recurrent pathway of a hybrid must not see positions).

Path: torch's fused attention.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outlast.errors import require
from outlast.mixers.attention.schemes.base import Scheme
from outlast.registry import schemes


@schemes.register("sinusoidal")
class Sinusoidal(Scheme):
    """Sines and cosines of the position (Vaswani et al., 1706.03762).

    Args:
        base: The base of the wavelengths: a larger one makes the longest longer.
    """

    def __init__(self, width: int, heads: int, base: float = 10_000.0) -> None:
        super().__init__(width, heads)
        require(base > 1, "base", base, "a number > 1")
        self.base = base

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        half = torch.arange(0, self.width, 2, device=x.device)
        angle = positions[:, None] * self.base ** (-half / self.width)
        return x + torch.cat([angle.sin(), angle.cos()], -1)[:, : self.width].to(x.dtype)
