"""QK-norm out of a packed projection, fused: one pass forward and one back.

A program takes a tile of heads, those of a token side by side, and reads and writes queries, keys
and values of each. Backward it reads the gradients as attention leaves them, heads before tokens,
and writes them where they belong in the gradient of the projection.

Shapes are those of `reference`; everything is computed in float32.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

WIDEST = 1024
TILE = 2048  # numbers of one of the three in a program


@triton.jit
def _places(count, heads, tokens, TALL: tl.constexpr):
    """Of each row of this program's tile: its number, batch row, token and head; if it is there.

    Only what is the same for the whole program is divided as a long number.
    """
    first = tl.program_id(0).to(tl.int64) * TALL
    token = first // heads
    local = (first % heads).to(tl.int32) + tl.arange(0, TALL)
    later = (token % tokens).to(tl.int32) + local // heads
    row = first + tl.arange(0, TALL)
    return row, token // tokens + later // tokens, later % tokens, local % heads, row < count


@triton.jit
def _forward(
    packed,
    q,
    k,
    v,
    count,
    heads,
    tokens,
    eps,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    TALL: tl.constexpr,
):
    row, batch, token, head, real = _places(count, heads, tokens, TALL)
    columns = tl.arange(0, WIDTH)
    inside = real[:, None] & (columns < D)[None, :]
    own = ((batch * tokens + token) * 3 * heads + head) * D
    there = packed + own[:, None] + columns[None, :]
    at = row[:, None] * D + columns[None, :]
    for which in tl.static_range(2):
        x = tl.load(there + which * heads * D, mask=inside, other=0.0).to(tl.float32)
        x *= (1 / tl.sqrt(tl.sum(x * x, 1) / D + eps))[:, None]
        out = q if which == 0 else k
        tl.store(out + at, x.to(out.dtype.element_ty), mask=inside)
    tl.store(v + at, tl.load(there + 2 * heads * D, mask=inside), mask=inside)


@triton.jit
def _backward(
    dq,
    dk,
    dv,
    packed,
    out,
    count,
    heads,
    tokens,
    eps,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    TALL: tl.constexpr,
):
    _, batch, token, head, real = _places(count, heads, tokens, TALL)
    columns = tl.arange(0, WIDTH)
    inside = real[:, None] & (columns < D)[None, :]
    own = ((batch * tokens + token) * 3 * heads + head) * D
    there = own[:, None] + columns[None, :]
    at = (((batch * heads + head) * tokens + token) * D)[:, None] + columns[None, :]
    for which in tl.static_range(2):
        above = dq if which == 0 else dk
        x = tl.load(packed + there + which * heads * D, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(above + at, mask=inside, other=0.0).to(tl.float32)
        inverse = 1 / tl.sqrt(tl.sum(x * x, 1) / D + eps)
        x *= inverse[:, None]
        g = inverse[:, None] * (g - x * (tl.sum(g * x, 1) / D)[:, None])
        tl.store(out + there + which * heads * D, g.to(out.dtype.element_ty), mask=inside)
    g = tl.load(dv + at, mask=inside)
    tl.store(out + there + 2 * heads * D, g.to(out.dtype.element_ty), mask=inside)


def fits(packed: Tensor) -> bool:
    """Whether heads of this width fit into a program."""
    return packed.shape[-1] <= WIDEST


def _options(d: int) -> dict[str, Any]:
    width = triton.next_power_of_2(d)
    return {"D": d, "WIDTH": width, "TALL": max(1, TILE // width), "num_warps": 4}


def _sizes(packed: Tensor) -> tuple[int, int, int]:
    """How many heads there are in all, of a token, and how many tokens in a row."""
    b, t, _, h, _ = packed.shape
    return b * t * h, h, t


def forward(packed: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.forward`."""
    packed = packed.contiguous()
    b, t, _, h, d = packed.shape
    q, k, v = (packed.new_empty(b, t, h, d) for _ in range(3))
    options, sizes = _options(d), _sizes(packed)
    grid = (triton.cdiv(sizes[0], options["TALL"]),)
    _forward[grid](packed, q, k, v, *sizes, eps, **options)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def backward(dq: Tensor, dk: Tensor, dv: Tensor, packed: Tensor, eps: float) -> Tensor:
    """As `reference.backward`."""
    packed, dq, dk, dv = (t.contiguous() for t in (packed, dq, dk, dv))
    out = packed.new_empty(packed.shape)
    options, sizes = _options(packed.shape[-1]), _sizes(packed)
    grid = (triton.cdiv(sizes[0], options["TALL"]),)
    _backward[grid](dq, dk, dv, packed, out, *sizes, eps, **options)
    return out
