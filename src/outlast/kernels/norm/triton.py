"""Layer and RMS norm fused: forward one read and one write, backward two reads and one write.

What is added to the rows before the norm (forward), and the gradient that passes by the norm
(backward), cost one more read each instead of a pass of their own. Where what was added has
another dtype than the rows, its gradient costs one more write. A bias of what is added comes along
for nothing, and so does its gradient. Where the stream continues as the norm, in a wider dtype
than that of the matmuls that follow, the norm is written in both dtypes; the gradients of the two
are added as they are read.

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
#: numbers in a tile, rows of a program, its warps; measured at width 128 on an H200
FORWARD, BACKWARD = (2048, 32, 4), (1024, 64, 2)


@triton.jit
def _standard(x, inside, D: tl.constexpr, eps, CENTRED: tl.constexpr):
    """Rows with mean 0, if `CENTRED`, and mean square 1; the inverse of what they were divided by.

    Numbers outside are 0.
    """
    if CENTRED:
        x = tl.where(inside, x - tl.sum(x, 1)[:, None] / D, 0.0)
    inverse = 1 / tl.sqrt(tl.sum(x * x, 1) / D + eps)
    return x * inverse[:, None], inverse


@triton.jit
def _read(
    tensor, row, inner, seed, by_seed, by_outer, by_inner, columns, inside, EVEN: tl.constexpr
):
    """A tile of a tensor whose axes lie any distance apart, or all rows evenly, in float32."""
    if EVEN:
        at = seed * by_seed + row * by_inner
    else:
        at = seed * by_seed + (row // inner) * by_outer + (row % inner) * by_inner
    tile = tl.load(tensor + at[:, None] + columns[None, :], mask=inside, other=0.0)
    return tile.to(tl.float32)


@triton.jit
def _norm_forward(
    x,
    extra,
    other,
    bias,
    scale,
    shift,
    total,
    y,
    kept,
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
    EVEN: tl.constexpr,
    CENTRED: tl.constexpr,
    ADD: tl.constexpr,
    BIASED: tl.constexpr,
    KEEP: tl.constexpr,
):
    seed = tl.program_id(1).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    s = tl.load(scale + seed * scale_stride + columns, mask=columns < D, other=0.0).to(tl.float32)
    if CENTRED:
        b = tl.load(shift + seed * shift_stride + columns, mask=columns < D, other=0.0)
        b = b.to(tl.float32)
    if BIASED:
        more = tl.load(bias + seed * bias_stride + columns, mask=columns < D, other=0.0)
    for first in range(0, SPAN, TALL):
        row = tl.program_id(0).to(tl.int64) * SPAN + first + tl.arange(0, TALL)
        inside = (row < rows)[:, None] & (columns < D)[None, :]
        at = (seed * rows + row)[:, None] * D + columns[None, :]
        tile = _read(x, row, inner, seed, x_seed, x_outer, x_inner, columns, inside, EVEN)
        if ADD:
            tile += _read(
                extra, row, inner, seed, extra_seed, extra_outer, extra_inner, columns, inside, EVEN
            )
        if ADD > 1:
            tile += _read(
                other, row, inner, seed, other_seed, other_outer, other_inner, columns, inside, EVEN
            )
        if BIASED:
            tile += tl.where(inside, more.to(tl.float32)[None, :], 0.0)
        if ADD:
            rounded = tile.to(total.dtype.element_ty)
            tl.store(total + at, rounded, mask=inside)
            tile = rounded.to(tl.float32)  # what the backward pass will read
        standard, _ = _standard(tile, inside, D, eps, CENTRED)
        out = standard * s[None, :]
        if CENTRED:
            out += b[None, :]
        tl.store(y + at, out.to(y.dtype.element_ty), mask=inside)
        if KEEP:
            tl.store(kept + at, out.to(kept.dtype.element_ty), mask=inside)


@triton.jit
def _norm_backward(
    dy,
    d_kept,
    past,
    x,
    scale,
    dx,
    copy,
    sums,
    rows,
    inner,
    dy_seed,
    dy_outer,
    dy_inner,
    d_kept_seed,
    d_kept_outer,
    d_kept_inner,
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
    EVEN: tl.constexpr,
    CENTRED: tl.constexpr,
    KEPT: tl.constexpr,
    ADD: tl.constexpr,
    COPY: tl.constexpr,
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
        tile = _read(x, row, inner, seed, x_seed, x_outer, x_inner, columns, inside, EVEN)
        standard, inverse = _standard(tile, inside, D, eps, CENTRED)
        d = _read(dy, row, inner, seed, dy_seed, dy_outer, dy_inner, columns, inside, EVEN)
        if KEPT:
            d += _read(
                d_kept,
                row,
                inner,
                seed,
                d_kept_seed,
                d_kept_outer,
                d_kept_inner,
                columns,
                inside,
                EVEN,
            )
        d_scale += d * standard
        g = d * s[None, :]
        back = g - standard * (tl.sum(g * standard, 1) / D)[:, None]
        if CENTRED:
            d_shift += d
            back -= tl.sum(g, 1)[:, None] / D
        back *= inverse[:, None]
        if ADD:
            back += _read(
                past, row, inner, seed, past_seed, past_outer, past_inner, columns, inside, EVEN
            )
        if BIASED:
            d_bias += tl.where(inside, back, 0.0)
        at = (seed * rows + row)[:, None] * D + columns[None, :]
        tl.store(dx + at, back.to(dx.dtype.element_ty), mask=inside)
        if COPY:
            tl.store(copy + at, back.to(copy.dtype.element_ty), mask=inside)
    # (seeds, programs, 1 and one more each for a shift and a bias, D)
    program = (seed * tl.num_programs(0) + tl.program_id(0)) * (1 + CENTRED + BIASED)
    out = sums + program * D + columns
    tl.store(out, tl.sum(d_scale, 0), mask=columns < D)
    if CENTRED:
        tl.store(out + D, tl.sum(d_shift, 0), mask=columns < D)
    if BIASED:
        tl.store(out + (1 + CENTRED) * D, tl.sum(d_bias, 0), mask=columns < D)


def fits(x: Tensor) -> bool:
    """Whether rows of this width fit into a program."""
    return x.shape[-1] <= WIDEST


def _options(d: int, tile: int, span: int, warps: int) -> dict[str, int]:
    width = triton.next_power_of_2(d)
    tall = max(1, min(span, tile // width))
    return {"D": d, "WIDTH": width, "TALL": tall, "SPAN": span, "num_warps": warps}


def _dense(tensor: Tensor) -> Tensor:
    """The numbers of a row side by side; rows and seeds may lie apart."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _even(*tensors: Tensor) -> bool:
    """Whether all rows of a seed are equally far apart, in each of the tensors."""
    return all(t.stride(1) == t.shape[2] * t.stride(2) for t in tensors)


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
    """As `reference.forward`, in float32 whatever the types; the sum has the type of x."""
    seeds, outer, inner, d = x.shape
    x, scale = _dense(x), _dense(scale)
    # what is not there is not read
    extra, other = [*(_dense(a) for a in added), x, x][:2]
    more = scale if bias is None else _dense(bias)
    moved = scale if shift is None else _dense(shift)
    y = x.new_empty(x.shape, dtype=dtype)
    total = x.new_empty(x.shape) if added else x
    kept = x.new_empty(seeds, 0) if kept_dtype is None else x.new_empty(x.shape, dtype=kept_dtype)
    options = _options(d, *FORWARD)
    _norm_forward[(triton.cdiv(outer * inner, options["SPAN"]), seeds)](
        x,
        extra,
        other,
        more,
        scale,
        moved,
        total,
        y,
        y if kept_dtype is None else kept,
        outer * inner,
        inner,
        *x.stride()[:3],
        *extra.stride()[:3],
        *other.stride()[:3],
        more.stride(0),
        scale.stride(0),
        moved.stride(0),
        eps,
        EVEN=_even(x, extra, other),
        CENTRED=shift is not None,
        ADD=len(added),
        BIASED=bias is not None,
        KEEP=kept_dtype is not None,
        **options,
    )
    return total, y, kept


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
    """As `reference.backward`, in float32 whatever the type of x."""
    seeds, outer, inner, d = x.shape
    dy, x, scale = _dense(dy), _dense(x), _dense(scale)
    past = dy if dx is None else _dense(dx)
    more = dy if d_kept is None else _dense(d_kept)
    out = x.new_empty(x.shape)
    copy = x.new_empty(seeds, 0) if copy_dtype is None else x.new_empty(x.shape, dtype=copy_dtype)
    options = _options(d, *BACKWARD)
    programs = triton.cdiv(outer * inner, options["SPAN"])
    sums = x.new_empty(seeds, programs, 1 + centred + biased, d, dtype=torch.float32)
    _norm_backward[(programs, seeds)](
        dy,
        more,
        past,
        x,
        scale,
        out,
        out if copy_dtype is None else copy,
        sums,
        outer * inner,
        inner,
        *dy.stride()[:3],
        *more.stride()[:3],
        *past.stride()[:3],
        *x.stride()[:3],
        scale.stride(0),
        eps,
        EVEN=_even(dy, more, past, x),
        CENTRED=centred,
        KEPT=d_kept is not None,
        ADD=dx is not None,
        COPY=copy_dtype is not None,
        BIASED=biased,
        **options,
    )
    return out, sums.sum(1).to(scale.dtype), copy
