"""α-entmax by its definition, one step of a search at a time, in any precision: the truth."""

from __future__ import annotations

import torch
from torch import Tensor


def entmax(scores: Tensor, alpha: Tensor | float) -> Tensor:
    """[(α-1) s - τ]_+^(1/(α-1)) with τ such that the last axis adds up to 1.

    τ is found without gradient; one Newton step from it, with gradient, makes the whole
    differentiable in scores and α to first order (the implicit function theorem).
    """
    # far below all others is as good as -inf, and has a gradient in α
    floor = scores.detach().amax(-1, keepdim=True) - 1e6
    scores = torch.where(scores.isneginf(), floor, scores)
    alpha = torch.as_tensor(alpha, dtype=scores.dtype, device=scores.device)
    z, power = (alpha - 1) * scores, 1 / (alpha - 1)
    with torch.no_grad():
        high = z.amax(-1, keepdim=True)
        low = high - 1
        for _ in range(200):
            middle = (low + high) / 2
            heavy = ((z - middle).clamp_min(0) ** power).sum(-1, keepdim=True) >= 1
            low, high = torch.where(heavy, middle, low), torch.where(heavy, high, middle)
        slope = (power * _lifted(z - low) ** (power - 1) * (z > low)).sum(-1, keepdim=True)
    inside = z > low
    total = torch.where(inside, _lifted(z - low) ** power, 0).sum(-1, keepdim=True)
    tau = low + (total - 1) / slope
    return torch.where(inside, _lifted(z - tau) ** power, 0)


def _lifted(x: Tensor) -> Tensor:
    """x where it is above 0, else 1, so that no power of it has a gradient that is not finite."""
    return torch.where(x > 0, x, 1)
