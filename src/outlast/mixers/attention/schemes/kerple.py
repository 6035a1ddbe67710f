"""`kerple`: a bias that falls with the log, or a power, of the distance (Chi et al., 2205.09921).

log:    -r1 log(1 + r2 (i-j)),    r1, r2 > 0
power:  -r1 (i-j)^r2,             r1 > 0, 0 < r2 <= 2

r1 and r2 are learned for each head, start as U(0, 2) and U(0, 1), and are kept at 0.01 or above,
as in the authors' code (checked for the log form); a gradient passes also where they are held.

Path: a bias of positions alone, so torch's fused attention while its table fits (`attention`).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from outlast.mixers.attention.schemes.base import Scheme, distances
from outlast.registry import schemes

_LEAST = 0.01


@schemes.register("kerple")
class Kerple(Scheme):
    """Kernelised relative positions: a learned logarithmic or power-law decay.

    Args:
        kernel: How the bias falls with distance: as a logarithm or as a power.
    """

    def __init__(self, width: int, heads: int, kernel: Literal["log", "power"] = "log") -> None:
        super().__init__(width, heads)
        self.kernel = kernel
        self.height = nn.Parameter(torch.rand(heads) * 2)  # vectors: not decayed
        self.shape = nn.Parameter(torch.rand(heads))

    def bias(self, positions: Tensor, keys: Tensor) -> Tensor:
        height = _held(self.height, float("inf"))[:, None, None]
        shape = _held(self.shape, float("inf") if self.kernel == "log" else 2.0)[:, None, None]
        distance = distances(positions, keys).clamp_min(0).to(shape.dtype)
        if self.kernel == "log":
            return (-height * (shape * distance).log1p()).unsqueeze(0)
        return (-height * distance**shape).unsqueeze(0)


def _held(x: Tensor, most: float) -> Tensor:
    """x clamped to its bounds, with the gradient of x."""
    return x + (x.clamp(_LEAST, most) - x).detach()
