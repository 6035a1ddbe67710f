"""Layer norm (Ba et al., arXiv 1607.06450) and RMS norm (Zhang & Sennrich, arXiv 1910.07467).

Explicit and in any precision. Layer norm has a scale and a shift, RMS norm a scale alone and no
mean taken off.

Shapes (n seeds, a x b rows, d wide)::

    x, y, z      (n, a, b, d)    two axes of rows, so that batch and time may lie either way
    scale, shift, bias (n, d)

The backward pass computes mean and spread again from x, which it reads anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def plain(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """One seed's norm in torch's own operations, differentiable as often as one likes.

    Scale and shift are one pass under vmap instead of two.
    """
    return torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], eps=eps), scale)


def plain_rms(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """One seed's RMS norm, as `plain`."""
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * scale


def _standard(x: Tensor, eps: float, centred: bool = True) -> tuple[Tensor, Tensor]:
    """x with mean 0, if `centred`, and mean square 1; what it was divided by (inverted)."""
    x = x - x.mean(-1, keepdim=True) if centred else x
    inverse = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    return x * inverse, inverse


def forward(
    x: Tensor,
    added: Sequence[Tensor],
    bias: Tensor | None,
    scale: Tensor,
    shift: Tensor | None,
    eps: float,
    dtype: torch.dtype,
    kept_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """x + all that is added; its norm as `dtype`; its norm as `kept_dtype`, or empty without one.

    With a shift it is layer norm, without one RMS norm.
    """
    total = sum(added, x)
    if bias is not None:
        total = total + bias[:, None, None]
    standard, _ = _standard(total, eps, shift is not None)
    out = standard * scale[:, None, None]
    out = out if shift is None else out + shift[:, None, None]
    kept = x.new_empty(len(x), 0) if kept_dtype is None else out.to(kept_dtype, copy=True)
    return total, out.to(dtype), kept


def backward(
    dy: Tensor,
    dx: Tensor | None,
    x: Tensor,
    scale: Tensor,
    eps: float,
    copy_dtype: torch.dtype | None = None,
    biased: bool = False,
    d_kept: Tensor | None = None,
    centred: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of x; those of scale, shift and bias; the gradient of x again as `copy_dtype`.

    Args:
        dy: The gradient of the norm.
        dx: The gradient that reaches x past the norm, if any; the result includes it.
        x: The rows that were normed.
        scale: As in `forward`.
        eps: As in `forward`.
        copy_dtype: The dtype of the third result; without one it is empty.
        biased: Whether a bias was added to x.
        d_kept: The gradient of the norm as `kept_dtype`, if any.
        centred: Whether it is layer norm.

    Returns:
        The second result is [n, 1 to 3, d]: scale, then shift if `centred`, then bias if `biased`.
    """
    dy = dy if d_kept is None else dy + d_kept
    standard, inverse = _standard(x, eps, centred)
    g = dy * scale[:, None, None]
    through = g - standard * (g * standard).mean(-1, keepdim=True)
    through = inverse * (through - g.mean(-1, keepdim=True) if centred else through)
    out = through if dx is None else dx + through
    weights = [dy * standard, *([dy] if centred else []), *([out] if biased else [])]
    copy = x.new_empty(len(x), 0) if copy_dtype is None else out.to(copy_dtype, copy=True)
    return out, torch.stack([w.sum((1, 2)) for w in weights], 1), copy
