"""gelu(z + bias) fused: forward one read and one write, backward two reads and one write.

A program takes a span of one seed's rows and a block of columns, a tile at a time. Backward it
keeps the bias's sums beside them and writes one row at its end; the rows of all programs are
added up afterwards, without atomics: the same every time.

Shapes are those of `reference`, any width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS, TILE, SPAN = 128, 2048, 128  # columns of a tile, numbers in it, rows of a program


@triton.jit
def _forward(
    z,
    bias,
    y,
    rows,
    width,
    bias_stride,
    COLUMNS: tl.constexpr,
    TALL: tl.constexpr,
    SPAN: tl.constexpr,
):
    seed = tl.program_id(2).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    b = tl.load(bias + seed * bias_stride + columns, mask=columns < width, other=0.0)
    b = b.to(tl.float32)
    for first in range(0, SPAN, TALL):
        row = tl.program_id(0) * SPAN + first + tl.arange(0, TALL)
        inside = (row < rows)[:, None] & (columns < width)[None, :]
        at = (seed * rows + row)[:, None] * width + columns[None, :]
        v = tl.load(z + at, mask=inside, other=0.0).to(tl.float32) + b[None, :]
        out = 0.5 * v * (1 + tl.erf(v * 0.7071067811865476))
        tl.store(y + at, out.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    dy,
    z,
    bias,
    dz,
    sums,
    rows,
    width,
    bias_stride,
    COLUMNS: tl.constexpr,
    TALL: tl.constexpr,
    SPAN: tl.constexpr,
):
    seed = tl.program_id(2).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    b = tl.load(bias + seed * bias_stride + columns, mask=columns < width, other=0.0)
    b = b.to(tl.float32)
    total = tl.zeros((TALL, COLUMNS), tl.float32)
    for first in range(0, SPAN, TALL):
        row = tl.program_id(0) * SPAN + first + tl.arange(0, TALL)
        inside = (row < rows)[:, None] & (columns < width)[None, :]
        at = (seed * rows + row)[:, None] * width + columns[None, :]
        v = tl.load(z + at, mask=inside, other=0.0).to(tl.float32) + b[None, :]
        d = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        density = tl.exp(-0.5 * v * v) * 0.3989422804014327
        d *= 0.5 * (1 + tl.erf(v * 0.7071067811865476)) + v * density
        total += d
        tl.store(dz + at, d.to(dz.dtype.element_ty), mask=inside)
    out = sums + (seed * tl.num_programs(0) + tl.program_id(0)) * width + columns
    tl.store(out, tl.sum(total, 0), mask=columns < width)


def _options(width: int) -> dict[str, int]:
    columns = min(COLUMNS, triton.next_power_of_2(width))
    return {
        "COLUMNS": columns,
        "TALL": min(SPAN, TILE // columns),
        "SPAN": SPAN,
        "num_warps": 4,
    }


def _grid(z: Tensor) -> tuple[int, int, int]:
    seeds, rows, width = z.shape
    columns = _options(width)["COLUMNS"]
    return triton.cdiv(rows, SPAN), triton.cdiv(width, columns), seeds


def _dense(bias: Tensor) -> Tensor:
    """The numbers of one seed side by side; seeds may lie apart, as they do in a table."""
    return bias if bias.stride(-1) == 1 else bias.contiguous()


def forward(z: Tensor, bias: Tensor) -> Tensor:
    """As `reference.forward`, in float32 whatever the type of z."""
    z, bias = z.contiguous(), _dense(bias)
    y = torch.empty_like(z)
    _forward[_grid(z)](z, bias, y, *z.shape[1:], bias.stride(0), **_options(z.shape[-1]))
    return y


def backward(dy: Tensor, z: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """As `reference.backward`, in float32 whatever the type of z."""
    dy, z, bias = dy.contiguous(), z.contiguous(), _dense(bias)
    dz = torch.empty_like(z)
    grid = _grid(z)
    seeds, rows, width = z.shape
    sums = z.new_empty(seeds, grid[0], width, dtype=torch.float32)
    _backward[grid](dy, z, bias, dz, sums, rows, width, bias.stride(0), **_options(width))
    return dz, sums.sum(1).to(bias.dtype)
