"""QK-norm, or rotation, out of a packed projection, fused: one pass forward and one back.

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
def _tile(
    count,
    heads,
    tokens,
    D: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    TALL: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
):
    """Where the heads of this program lie, and the first `COLUMNS` numbers of each.

    Of each head its batch row and token; of each number its place in the packed projection, where
    keys are `heads * D` after queries and values as much again, its place in a table of one of the
    three, with tokens or heads first, and whether it is there at all. Only what is the same for the
    whole program is divided as a long number.
    """
    first = tl.program_id(0).to(tl.int64) * TALL
    before = first // heads
    local = (first % heads).to(tl.int32) + tl.arange(0, TALL)
    later = (before % tokens).to(tl.int32) + local // heads
    row = first + tl.arange(0, TALL)
    batch, token, head = before // tokens + later // tokens, later % tokens, local % heads
    columns = tl.arange(0, WIDTH)[None, :]
    inside = (row < count)[:, None] & (columns < COLUMNS)
    packed = ((batch * tokens + token) * 3 * heads + head)[:, None] * D + columns
    alone = (batch * heads + head) * tokens + token if HEADS_FIRST else row
    return batch, token, packed, alone[:, None] * D + columns, inside


@triton.jit
def _heads_forward(
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
    _, _, packed_at, at, inside = _tile(count, heads, tokens, D, D, WIDTH, TALL, False)
    for which in tl.static_range(2):
        x = tl.load(packed + packed_at + which * heads * D, mask=inside, other=0.0).to(tl.float32)
        x *= (1 / tl.sqrt(tl.sum(x * x, 1) / D + eps))[:, None]
        out = q if which == 0 else k
        tl.store(out + at, x.to(out.dtype.element_ty), mask=inside)
    tl.store(v + at, tl.load(packed + packed_at + 2 * heads * D, mask=inside), mask=inside)


@triton.jit
def _heads_backward(
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
    _, _, packed_at, at, inside = _tile(count, heads, tokens, D, D, WIDTH, TALL, True)
    for which in tl.static_range(2):
        above = dq if which == 0 else dk
        x = tl.load(packed + packed_at + which * heads * D, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(above + at, mask=inside, other=0.0).to(tl.float32)
        inverse = 1 / tl.sqrt(tl.sum(x * x, 1) / D + eps)
        x *= inverse[:, None]
        g = inverse[:, None] * (g - x * (tl.sum(g * x, 1) / D)[:, None])
        tl.store(out + packed_at + which * heads * D, g.to(out.dtype.element_ty), mask=inside)
    g = tl.load(dv + at, mask=inside)
    tl.store(out + packed_at + 2 * heads * D, g.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _angles(cos, sin, batch, token, tokens, rows, inside, HALF: tl.constexpr, WIDTH: tl.constexpr):
    """Cosine and sine of each pair of a tile; `rows` rows of the batch share a table."""
    at = ((batch // rows) * tokens + token)[:, None] * HALF + tl.arange(0, WIDTH)[None, :]
    return tl.load(cos + at, mask=inside, other=0.0), tl.load(sin + at, mask=inside, other=0.0)


@triton.jit
def _heads_turned_forward(
    packed,
    cos,
    sin,
    q,
    k,
    v,
    count,
    heads,
    tokens,
    rows,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    TALL: tl.constexpr,
):
    batch, token, packed_at, at, inside = _tile(
        count, heads, tokens, 2 * HALF, HALF, WIDTH, TALL, False
    )
    c, s = _angles(cos, sin, batch, token, tokens, rows, inside, HALF, WIDTH)
    for which in tl.static_range(2):
        here = packed + packed_at + which * heads * 2 * HALF
        a = tl.load(here, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(here + HALF, mask=inside, other=0.0).to(tl.float32)
        out = (q if which == 0 else k) + at
        tl.store(out, (a * c - b * s).to(q.dtype.element_ty), mask=inside)
        tl.store(out + HALF, (a * s + b * c).to(q.dtype.element_ty), mask=inside)
    here = packed + packed_at + 4 * heads * HALF
    tl.store(v + at, tl.load(here, mask=inside), mask=inside)
    tl.store(v + at + HALF, tl.load(here + HALF, mask=inside), mask=inside)


@triton.jit
def _heads_turned_backward(
    dq,
    dk,
    dv,
    cos,
    sin,
    out,
    count,
    heads,
    tokens,
    rows,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    TALL: tl.constexpr,
):
    batch, token, packed_at, at, inside = _tile(
        count, heads, tokens, 2 * HALF, HALF, WIDTH, TALL, True
    )
    c, s = _angles(cos, sin, batch, token, tokens, rows, inside, HALF, WIDTH)
    for which in tl.static_range(2):
        above = (dq if which == 0 else dk) + at
        a = tl.load(above, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(above + HALF, mask=inside, other=0.0).to(tl.float32)
        here = out + packed_at + which * heads * 2 * HALF
        tl.store(here, (a * c + b * s).to(out.dtype.element_ty), mask=inside)
        tl.store(here + HALF, (b * c - a * s).to(out.dtype.element_ty), mask=inside)
    here = out + packed_at + 4 * heads * HALF
    tl.store(here, tl.load(dv + at, mask=inside), mask=inside)
    tl.store(here + HALF, tl.load(dv + at + HALF, mask=inside), mask=inside)


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
    _heads_forward[grid](packed, q, k, v, *sizes, eps, **options)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def backward(dq: Tensor, dk: Tensor, dv: Tensor, packed: Tensor, eps: float) -> Tensor:
    """As `reference.backward`."""
    packed, dq, dk, dv = (t.contiguous() for t in (packed, dq, dk, dv))
    out = packed.new_empty(packed.shape)
    options, sizes = _options(packed.shape[-1]), _sizes(packed)
    grid = (triton.cdiv(sizes[0], options["TALL"]),)
    _heads_backward[grid](dq, dk, dv, packed, out, *sizes, eps, **options)
    return out


def _turning(packed: Tensor, cos: Tensor) -> tuple[tuple[int, int, int, int], dict[str, Any]]:
    """Sizes, with the rows of the batch that share a table of angles, and compile-time choices."""
    b, t, _, h, d = packed.shape
    width = triton.next_power_of_2(d // 2)
    sizes = (b * t * h, h, t, b // len(cos))
    tall = max(1, TILE // 2 // width)
    return sizes, {"HALF": d // 2, "WIDTH": width, "TALL": tall, "num_warps": 4}


def turned_forward(packed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.turned_forward`."""
    packed, cos, sin = (t.contiguous() for t in (packed, cos.float(), sin.float()))
    b, t, _, h, d = packed.shape
    q, k, v = (packed.new_empty(b, t, h, d) for _ in range(3))
    sizes, options = _turning(packed, cos)
    grid = (triton.cdiv(sizes[0], options["TALL"]),)
    _heads_turned_forward[grid](packed, cos, sin, q, k, v, *sizes, **options)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def turned_backward(dq: Tensor, dk: Tensor, dv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As `reference.turned_backward`."""
    dq, dk, dv, cos, sin = (t.contiguous() for t in (dq, dk, dv, cos.float(), sin.float()))
    b, h, t, d = dq.shape
    out = dq.new_empty(b, t, 3, h, d)
    sizes, options = _turning(out, cos)
    grid = (triton.cdiv(sizes[0], options["TALL"]),)
    _heads_turned_backward[grid](dq, dk, dv, cos, sin, out, *sizes, **options)
    return out
