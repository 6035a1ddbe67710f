"""α-entmax with its gradient in closed form, so that no step of the search is kept.

Peters et al. (1905.05702) for τ by sorting (α = 1.5) or bisection and for the gradient in the
scores; Correia et al. (1909.00015) for the gradient in α. Plain torch operations: they run on any
device and under `torch.func.vmap`. Scores of -inf get the weight 0; each row needs a finite one.
A row with NaN, with +inf or without a finite score gives NaN and leaves other rows alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def entmax15(scores: Tensor) -> Tensor:
    """1.5-entmax over the last axis, exact."""
    weights: Tensor = _Entmax15.apply(scores)  # type: ignore[no-untyped-call]
    return weights


def entmax(scores: Tensor, alpha: Tensor) -> Tensor:
    """α-entmax over the last axis by bisection; `alpha` > 1 broadcasts against scores."""
    weights: Tensor = _Entmax.apply(scores, alpha)  # type: ignore[no-untyped-call]
    return weights


class _Entmax15(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor) -> Tensor:
        # a score more than 2 below the highest has no weight: what is lower need not be told apart
        z = ((scores - scores.amax(-1, keepdim=True)) / 2).clamp_min(-2)
        ordered = z.sort(-1, descending=True).values
        count = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
        mean = ordered.cumsum(-1) / count
        spread = ((ordered**2).cumsum(-1) / count - mean**2) * count
        taus = mean - ((1 - spread) / count).clamp_min(0).sqrt()
        # a row that is not finite has no support: it must stay a valid index all the same
        support = (taus <= ordered).sum(-1, keepdim=True).clamp_min(1)
        tau = taus.gather(-1, support - 1)
        return (z - tau).clamp_min(0) ** 2

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        return _to_scores(grad, weights.sqrt())


class _Entmax(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, alpha: Tensor) -> Tensor:
        z = (alpha - 1) * (scores - scores.amax(-1, keepdim=True))
        power = 1 / (alpha - 1)
        low = torch.full_like(z[..., :1], -1.0)
        width = torch.ones_like(low)
        # halved until what is left is below the precision
        for _ in range(54 if z.dtype == torch.float64 else 26):
            width = width / 2
            heavy = ((z - low - width).clamp_min(0) ** power).sum(-1, keepdim=True) >= 1
            low = torch.where(heavy, low + width, low)
        weights = (z - low).clamp_min(0) ** power
        return weights / weights.sum(-1, keepdim=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output, inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        weights, alpha = ctx.saved_tensors
        kept = weights > 0
        safe = torch.where(kept, weights, 1)
        slope = torch.where(kept, safe ** (2 - alpha), 0)
        entropy = -weights * safe.log()
        share = slope / slope.sum(-1, keepdim=True)
        drift = entropy - share * entropy.sum(-1, keepdim=True)
        by_alpha = (weights - share) / (alpha - 1) ** 2 + drift / (alpha - 1)
        return _to_scores(grad, slope), (grad * by_alpha).sum_to_size(alpha.shape)


def _to_scores(grad: Tensor, slope: Tensor) -> Tensor:
    """The gradient in the scores, from the slope w^(2-α) of each weight in its own score."""
    mean = (grad * slope).sum(-1, keepdim=True) / slope.sum(-1, keepdim=True)
    return slope * (grad - mean)
