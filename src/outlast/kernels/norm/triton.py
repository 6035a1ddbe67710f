"""Layer norm fused: forward one read and one write, backward two reads and one write.

A program takes a span of one seed's rows, a tile at a time, whole rows in registers. Backward it
keeps the sums for scale and shift beside them and writes one row of each at its end; the rows of
all programs are added up afterwards, always in the same order. How the rows are split does not
depend on the seeds, so a seed's numbers are the same alone and among others, to the bit.

Shapes are those of `reference`; x and dy may lie in memory with their row axes either way.
"""

from __future__ import annotations

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
def _forward(
    x,
    scale,
    shift,
    y,
    rows,
    inner,
    x_seed,
    x_outer,
    x_inner,
    scale_stride,
    shift_stride,
    eps,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    TALL: tl.constexpr,
    SPAN: tl.constexpr,
):
    seed = tl.program_id(1).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    s = tl.load(scale + seed * scale_stride + columns, mask=columns < D, other=0.0).to(tl.float32)
    b = tl.load(shift + seed * shift_stride + columns, mask=columns < D, other=0.0).to(tl.float32)
    for first in range(0, SPAN, TALL):
        row = tl.program_id(0).to(tl.int64) * SPAN + first + tl.arange(0, TALL)
        inside = (row < rows)[:, None] & (columns < D)[None, :]
        at = seed * x_seed + (row // inner) * x_outer + (row % inner) * x_inner
        some = tl.load(x + at[:, None] + columns[None, :], mask=inside, other=0.0)
        standard, _ = _standard(some.to(tl.float32), inside, D, eps)
        out = y + (seed * rows + row)[:, None] * D + columns[None, :]
        tl.store(out, (standard * s[None, :] + b[None, :]).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    dy,
    x,
    scale,
    dx,
    sums,
    rows,
    inner,
    dy_seed,
    dy_outer,
    dy_inner,
    x_seed,
    x_outer,
    x_inner,
    scale_stride,
    eps,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    TALL: tl.constexpr,
    SPAN: tl.constexpr,
):
    seed = tl.program_id(1).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    s = tl.load(scale + seed * scale_stride + columns, mask=columns < D, other=0.0).to(tl.float32)
    d_scale = tl.zeros((TALL, WIDTH), tl.float32)
    d_shift = tl.zeros((TALL, WIDTH), tl.float32)
    for first in range(0, SPAN, TALL):
        row = tl.program_id(0).to(tl.int64) * SPAN + first + tl.arange(0, TALL)
        inside = (row < rows)[:, None] & (columns < D)[None, :]
        at = seed * x_seed + (row // inner) * x_outer + (row % inner) * x_inner
        some = tl.load(x + at[:, None] + columns[None, :], mask=inside, other=0.0)
        standard, inverse = _standard(some.to(tl.float32), inside, D, eps)
        at = seed * dy_seed + (row // inner) * dy_outer + (row % inner) * dy_inner
        d = tl.load(dy + at[:, None] + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        d_scale += d * standard
        d_shift += d
        g = d * s[None, :]
        along = tl.sum(g * standard, 1) / D
        back = inverse[:, None] * (g - tl.sum(g, 1)[:, None] / D - standard * along[:, None])
        out = dx + (seed * rows + row)[:, None] * D + columns[None, :]
        tl.store(out, back.to(dx.dtype.element_ty), mask=inside)
    # (seeds, programs, 2, D)
    out = sums + (seed * tl.num_programs(0) + tl.program_id(0)) * 2 * D + columns
    tl.store(out, tl.sum(d_scale, 0), mask=columns < D)
    tl.store(out + D, tl.sum(d_shift, 0), mask=columns < D)


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


def forward(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """As `reference.forward`, in float32 whatever the type of x."""
    seeds, outer, inner, d = x.shape
    x, scale, shift = _dense(x), _dense(scale), _dense(shift)
    y = x.new_empty(x.shape)
    _forward[(triton.cdiv(outer * inner, SPAN), seeds)](
        x,
        scale,
        shift,
        y,
        outer * inner,
        inner,
        *x.stride()[:3],
        scale.stride(0),
        shift.stride(0),
        eps,
        **_options(d),
    )
    return y


def backward(dy: Tensor, x: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As `reference.backward`, in float32 whatever the type of x."""
    seeds, outer, inner, d = x.shape
    dy, x, scale = _dense(dy), _dense(x), _dense(scale)
    dx = x.new_empty(x.shape)
    programs = triton.cdiv(outer * inner, SPAN)
    sums = x.new_empty(seeds, programs, 2, d, dtype=torch.float32)
    _backward[(programs, seeds)](
        dy,
        x,
        scale,
        dx,
        sums,
        outer * inner,
        inner,
        *dy.stride()[:3],
        *x.stride()[:3],
        scale.stride(0),
        eps,
        **_options(d),
    )
    return dx, sums.sum(1).to(scale.dtype)
