"""Layer norm fused: forward one read and one write, backward two reads and one write.

What is added to the rows just before (forward), and the gradient that passes by (backward), is
one more read each instead of a pass of its own; so is one more write the gradient of what was
added, where that is narrower than the rows. A bias of what is added comes along for nothing, and
so does its gradient.

A program takes a span of one seed's rows, a tile at a time, whole rows in registers. Backward it
keeps the sums for scale and shift beside them and writes one row of each at its end; the rows of
all programs are added up afterwards, without atomics: the same every time. How the rows are
split does not depend on the seeds, so a seed alone is that seed among others, to rounding.

Shapes are those of `reference`; rows may lie in memory with their two axes either way.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDEST = 1024
TILE, SPAN = 2048, 128  # numbers in a tile, rows of a program


@triton.jit
def _standard(x, inside, D: tl.constexpr, eps):
    """Rows with mean 0 and spread 1, and the inverse of what they were divided by."""
    centred = tl.where(inside, x - tl.sum(x, 1)[:, None] / D, 0.0)
    inverse = 1 / tl.sqrt(tl.sum(centred * centred, 1) / D + eps)
    return centred * inverse[:, None], inverse


@triton.jit
def _read(tensor, row, inner, seed, by_seed, by_outer, by_inner, columns, inside):
    """A tile of a tensor whose axes lie any distance apart, in float32."""
    at = seed * by_seed + (row // inner) * by_outer + (row % inner) * by_inner
    tile = tl.load(tensor + at[:, None] + columns[None, :], mask=inside, other=0.0)
    return tile.to(tl.float32)


@triton.jit
def _forward(
    x,
    extra,
    other,
    bias,
    scale,
    shift,
    total,
    y,
    rows,
    inner,
    x_seed,
    x_outer,
    x_inner,
    extra_seed,
    extra_outer,
    extra_inner,
    other_seed,
    other_outer,
    other_inner,
    bias_stride,
    scale_stride,
    shift_stride,
    eps,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    TALL: tl.constexpr,
    SPAN: tl.constexpr,
    ADD: tl.constexpr,
    BIASED: tl.constexpr,
):
    seed = tl.program_id(1).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    s = tl.load(scale + seed * scale_stride + columns, mask=columns < D, other=0.0).to(tl.float32)
    b = tl.load(shift + seed * shift_stride + columns, mask=columns < D, other=0.0).to(tl.float32)
    if BIASED:
        more = tl.load(bias + seed * bias_stride + columns, mask=columns < D, other=0.0)
    for first in range(0, SPAN, TALL):
        row = tl.program_id(0).to(tl.int64) * SPAN + first + tl.arange(0, TALL)
        inside = (row < rows)[:, None] & (columns < D)[None, :]
        at = (seed * rows + row)[:, None] * D + columns[None, :]
        some = _read(x, row, inner, seed, x_seed, x_outer, x_inner, columns, inside)
        if ADD:
            some += _read(
                extra, row, inner, seed, extra_seed, extra_outer, extra_inner, columns, inside
            )
        if ADD > 1:
            some += _read(
                other, row, inner, seed, other_seed, other_outer, other_inner, columns, inside
            )
        if BIASED:
            some += tl.where(inside, more.to(tl.float32)[None, :], 0.0)
        if ADD:
            rounded = some.to(total.dtype.element_ty)
            tl.store(total + at, rounded, mask=inside)
            some = rounded.to(tl.float32)  # what the backward pass will read
        standard, _ = _standard(some, inside, D, eps)
        out = standard * s[None, :] + b[None, :]
        tl.store(y + at, out.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    dy,
    past,
    x,
    scale,
    dx,
    narrow,
    sums,
    rows,
    inner,
    dy_seed,
    dy_outer,
    dy_inner,
    past_seed,
    past_outer,
    past_inner,
    x_seed,
    x_outer,
    x_inner,
    scale_stride,
    eps,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    TALL: tl.constexpr,
    SPAN: tl.constexpr,
    ADD: tl.constexpr,
    NARROW: tl.constexpr,
    BIASED: tl.constexpr,
):
    seed = tl.program_id(1).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    s = tl.load(scale + seed * scale_stride + columns, mask=columns < D, other=0.0).to(tl.float32)
    d_scale = tl.zeros((TALL, WIDTH), tl.float32)
    d_shift = tl.zeros((TALL, WIDTH), tl.float32)
    d_bias = tl.zeros((TALL, WIDTH), tl.float32)
    for first in range(0, SPAN, TALL):
        row = tl.program_id(0).to(tl.int64) * SPAN + first + tl.arange(0, TALL)
        inside = (row < rows)[:, None] & (columns < D)[None, :]
        some = _read(x, row, inner, seed, x_seed, x_outer, x_inner, columns, inside)
        standard, inverse = _standard(some, inside, D, eps)
        d = _read(dy, row, inner, seed, dy_seed, dy_outer, dy_inner, columns, inside)
        d_scale += d * standard
        d_shift += d
        g = d * s[None, :]
        along = tl.sum(g * standard, 1) / D
        back = inverse[:, None] * (g - tl.sum(g, 1)[:, None] / D - standard * along[:, None])
        if ADD:
            back += _read(
                past, row, inner, seed, past_seed, past_outer, past_inner, columns, inside
            )
        if BIASED:
            d_bias += tl.where(inside, back, 0.0)
        at = (seed * rows + row)[:, None] * D + columns[None, :]
        tl.store(dx + at, back.to(dx.dtype.element_ty), mask=inside)
        if NARROW:
            tl.store(narrow + at, back.to(narrow.dtype.element_ty), mask=inside)
    # (seeds, programs, 2 or 3, D)
    own = (seed * tl.num_programs(0) + tl.program_id(0)) * (3 if BIASED else 2)
    out = sums + own * D + columns
    tl.store(out, tl.sum(d_scale, 0), mask=columns < D)
    tl.store(out + D, tl.sum(d_shift, 0), mask=columns < D)
    if BIASED:
        tl.store(out + 2 * D, tl.sum(d_bias, 0), mask=columns < D)


def fits(x: Tensor) -> bool:
    """Whether rows of this width fit into a program."""
    return x.shape[-1] <= WIDEST


def _options(d: int) -> dict[str, int]:
    width = triton.next_power_of_2(d)
    return {
        "D": d,
        "WIDTH": width,
        "TALL": max(1, min(SPAN, TILE // width)),
        "SPAN": SPAN,
        "num_warps": 4,
    }


def _dense(tensor: Tensor) -> Tensor:
    """The numbers of a row side by side; rows and seeds may lie apart."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _run_forward(
    x: Tensor,
    added: Sequence[Tensor],
    bias: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    seeds, outer, inner, d = x.shape
    x, scale, shift = _dense(x), _dense(scale), _dense(shift)
    # what is not there is not read
    extra, other = [*(_dense(a) for a in added), x, x][:2]
    more = scale if bias is None else _dense(bias)
    y = x.new_empty(x.shape, dtype=dtype)
    total = x.new_empty(x.shape) if added else x
    _forward[(triton.cdiv(outer * inner, SPAN), seeds)](
        x,
        extra,
        other,
        more,
        scale,
        shift,
        total,
        y,
        outer * inner,
        inner,
        *x.stride()[:3],
        *extra.stride()[:3],
        *other.stride()[:3],
        more.stride(0),
        scale.stride(0),
        shift.stride(0),
        eps,
        ADD=len(added),
        BIASED=bias is not None,
        **_options(d),
    )
    return total, y


def forward(x: Tensor, scale: Tensor, shift: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """As `reference.forward`, in float32 whatever the type of x."""
    return _run_forward(x, (), None, scale, shift, eps, dtype)[1]


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
    """As `reference.add_forward`; the sum has the type of x."""
    return _run_forward(x, (y,) if z is None else (y, z), bias, scale, shift, eps, dtype)


def backward(
    dy: Tensor,
    dx: Tensor | None,
    x: Tensor,
    scale: Tensor,
    eps: float,
    narrow: torch.dtype | None = None,
    biased: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.backward`, in float32 whatever the type of x."""
    seeds, outer, inner, d = x.shape
    dy, x, scale = _dense(dy), _dense(x), _dense(scale)
    past = dy if dx is None else _dense(dx)
    out = x.new_empty(x.shape)
    copy = x.new_empty(seeds, 0) if narrow is None else x.new_empty(x.shape, dtype=narrow)
    programs = triton.cdiv(outer * inner, SPAN)
    sums = x.new_empty(seeds, programs, 2 + biased, d, dtype=torch.float32)
    _backward[(programs, seeds)](
        dy,
        past,
        x,
        scale,
        out,
        out if narrow is None else copy,
        sums,
        outer * inner,
        inner,
        *dy.stride()[:3],
        *past.stride()[:3],
        *x.stride()[:3],
        scale.stride(0),
        eps,
        ADD=dx is not None,
        NARROW=narrow is not None,
        BIASED=biased,
        **_options(d),
    )
    return out, sums.sum(1).to(scale.dtype), copy
