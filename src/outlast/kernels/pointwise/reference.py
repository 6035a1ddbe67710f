"""gelu(z + bias) and the gated linear unit, explicit and in any precision.

z (n, rows, d), bias (n, d). GELU is x Φ(x) with the exact normal distribution (Hendrycks & Gimpel,
arXiv 1606.08415). The gated unit has a value and a gate side by side in z + bias, and gives
value * silu(gate) (n, rows, d / 2) (Shazeer, arXiv 2002.05202).
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


def forward_glu(z: Tensor, bias: Tensor) -> Tensor:
    """The gated values."""
    value, gate = (z + bias[:, None]).chunk(2, -1)
    return value * gate * torch.sigmoid(gate)


def backward_glu(dy: Tensor, z: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of z and bias."""
    value, gate = (z + bias[:, None]).chunk(2, -1)
    share = torch.sigmoid(gate)
    dz = torch.cat([dy * gate * share, dy * value * share * (1 + gate * (1 - share))], -1)
    return dz, dz.sum(1)
