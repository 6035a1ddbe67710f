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


def forward(x: Tensor, scale: Tensor, shift: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """The normed rows, as `dtype`."""
    return stream_forward(x, (), None, scale, shift, eps, dtype)[1]


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
    return stream_forward(x, (y,) if z is None else (y, z), bias, scale, shift, eps, dtype)[:2]


def stream_forward(
    x: Tensor,
    added: Sequence[Tensor],
    bias: Tensor | None,
    scale: Tensor,
    shift: Tensor | None,
    eps: float,
    dtype: torch.dtype,
    kept: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """x + all that is added, the same normed, as `dtype`, and once more as `kept`, or empty.

    With a shift it is layer norm, without one RMS norm.
    """
    total = sum(added, x)
    if bias is not None:
        total = total + bias[:, None, None]
    standard, _ = _standard(total, eps, shift is not None)
    out = standard * scale[:, None, None]
    out = out if shift is None else out + shift[:, None, None]
    both = x.new_empty(len(x), 0) if kept is None else out.to(kept, copy=True)
    return total, out.to(dtype), both


def backward(
    dy: Tensor,
    dx: Tensor | None,
    x: Tensor,
    scale: Tensor,
    eps: float,
    narrow: torch.dtype | None = None,
    biased: bool = False,
    also: Tensor | None = None,
    centred: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, and of scale and shift (n, 2, d); that of x once more as `narrow`, or empty.

    `dx` is the gradient that reached x past the norm, which the result includes; `also` that of
    the norm as `kept`, if there is one beside `dy`. With `biased` the second has one more row, the
    gradient of a bias that was added to x; RMS norm, not `centred`, has none for a shift.
    """
    dy = dy if also is None else dy + also
    standard, inverse = _standard(x, eps, centred)
    g = dy * scale[:, None, None]
    through = g - standard * (g * standard).mean(-1, keepdim=True)
    through = inverse * (through - g.mean(-1, keepdim=True) if centred else through)
    out = through if dx is None else dx + through
    affine = [dy * standard, *([dy] if centred else []), *([out] if biased else [])]
    copy = x.new_empty(len(x), 0) if narrow is None else out.to(narrow, copy=True)
    return out, torch.stack([a.sum((1, 2)) for a in affine], 1), copy
