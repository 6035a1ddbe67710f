"""QK-norm (Henry et al., arXiv 2010.04245, with the root mean square) and rotation: the truth.

Shapes (b rows of a batch, t tokens, h heads, each d wide)::

    packed     (b, t, 3, h, d)    queries, keys and values side by side, as one matmul made them
    q, k, v    (b, h, t, d)       lying in memory as (b, t, h, d)

    cos, sin   (g, t, d / 2)      of each pair's angle, the same for b / g rows

q and k of each head and token are divided by their root mean square, or their pairs (i, i + d/2)
rotated; v is as it was.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rms(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x over its root mean square, in float32 or wider."""
    wide = x if x.dtype.itemsize >= 4 else x.float()
    return (wide * (wide**2).mean(-1, keepdim=True).add(eps).rsqrt()).to(x.dtype)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The pairs (i, i + half) of x (..., tokens, d) rotated, in float32 or wider.

    cos and sin (..., tokens, d / 2).
    """
    wide = x if x.dtype.itemsize >= 4 else x.float()
    a, b = wide.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)


def for_rows(table: Tensor, rows: int) -> Tensor:
    """A table (g, t, n) for every row of the batch, all heads the same: (b or 1, 1, t, n)."""
    each = table if len(table) == 1 else table.repeat_interleave(rows // len(table), 0)
    return each.unsqueeze(1)


def plain(packed: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """In torch's own operations, differentiable as often as one likes; v is a view."""
    q, k, v = packed.permute(2, 0, 3, 1, 4).unbind()
    return rms(q, eps), rms(k, eps), v


def forward(packed: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """q and k normalised, and v, all memory of their own."""
    q, k, v = packed.unbind(2)
    whole = torch.contiguous_format
    q, k, v = (t.clone(memory_format=whole) for t in (rms(q, eps), rms(k, eps), v))
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def backward(dq: Tensor, dk: Tensor, dv: Tensor, packed: Tensor, eps: float) -> Tensor:
    """The gradient of `packed`, of those of q, k and v."""
    parts = []
    for x, dy in zip(packed.unbind(2), (dq, dk), strict=False):
        wide, g = (t if t.dtype.itemsize >= 4 else t.float() for t in (x, dy.transpose(1, 2)))
        inverse = (wide**2).mean(-1, keepdim=True).add(eps).rsqrt()
        standard = wide * inverse
        along = (g * standard).mean(-1, keepdim=True)
        parts.append((inverse * (g - standard * along)).to(x.dtype))
    return torch.stack([*parts, dv.transpose(1, 2)], 2)


def plain_turned(packed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As `plain`, with q and k rotated."""
    q, k, v = packed.permute(2, 0, 3, 1, 4).unbind()
    cos, sin = (for_rows(t, len(packed)) for t in (cos, sin))
    return turn(q, cos, sin), turn(k, cos, sin), v


def turned_forward(packed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q and k rotated, and v, all memory of their own."""
    heads = plain_turned(packed, cos, sin)
    q, k, v = (t.transpose(1, 2).clone(memory_format=torch.contiguous_format) for t in heads)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def turned_backward(dq: Tensor, dk: Tensor, dv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The gradient of `packed`: q's and k's rotated back."""
    cos, sin = (for_rows(t, len(dq)) for t in (cos, sin))
    parts = turn(dq, cos, -sin), turn(dk, cos, -sin), dv
    return torch.stack([t.transpose(1, 2) for t in parts], 2)
