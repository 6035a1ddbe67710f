"""gelu(z + bias), explicit and in any precision: z (n, rows, d), bias (n, d).

GELU is x Φ(x) with the exact normal distribution (Hendrycks & Gimpel, arXiv 1606.08415).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def forward(z: Tensor, bias: Tensor) -> Tensor:
    """The activations."""
    v = z + bias[:, None]
    return v * (1 + torch.erf(v * math.sqrt(0.5))) / 2


def backward(dy: Tensor, z: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of z and bias."""
    v = z + bias[:, None]
    below = (1 + torch.erf(v * math.sqrt(0.5))) / 2
    density = torch.exp(-v * v / 2) / math.sqrt(2 * math.pi)
    dz = dy * (below + v * density)
    return dz, dz.sum(1)
