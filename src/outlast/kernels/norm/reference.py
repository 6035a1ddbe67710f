"""Layer norm with scale and shift (Ba et al., arXiv 1607.06450), explicit and in any precision.

Shapes (n seeds, a x b rows, d wide)::

    x, y, z      (n, a, b, d)    two axes of rows, so that batch and time may lie either way
    scale, shift, bias (n, d)

The backward pass computes mean and spread again from x, which it reads anyway.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def plain(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """One seed's norm in torch's own operations, differentiable as often as one likes.

    Scale and shift are one pass under vmap instead of two.
    """
    return torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], eps=eps), scale)


def _standard(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x with mean 0 and spread 1, and what it was divided by (inverted)."""
    centred = x - x.mean(-1, keepdim=True)
    inverse = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
    return centred * inverse, inverse


def forward(x: Tensor, scale: Tensor, shift: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """The normed rows, as `dtype`."""
    standard, _ = _standard(x, eps)
    return (standard * scale[:, None, None] + shift[:, None, None]).to(dtype)


def add_forward(
    x: Tensor,
    y: Tensor,
    z: Tensor | None,
    bias: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """x + y (+ z) (+ bias), and the same normed, as `dtype`."""
    total = x + y if z is None else x + y + z
    if bias is not None:
        total = total + bias[:, None, None]
    return total, forward(total, scale, shift, eps, dtype)


def backward(
    dy: Tensor,
    dx: Tensor | None,
    x: Tensor,
    scale: Tensor,
    eps: float,
    narrow: torch.dtype | None = None,
    biased: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, and of scale and shift (n, 2, d); that of x once more as `narrow`, or empty.

    `dx` is the gradient that reached x past the norm, which the result includes. With `biased` the
    second has a third row (n, 3, d), the gradient of a bias that was added to x.
    """
    standard, inverse = _standard(x, eps)
    g = dy * scale[:, None, None]
    along = (g * standard).mean(-1, keepdim=True)
    through = inverse * (g - g.mean(-1, keepdim=True) - standard * along)
    out = through if dx is None else dx + through
    affine = [(dy * standard).sum((1, 2)), dy.sum((1, 2)), *([out.sum((1, 2))] if biased else [])]
    copy = x.new_empty(len(x), 0) if narrow is None else out.to(narrow, copy=True)
    return out, torch.stack(affine, 1), copy
