"""gelu(z + bias) and the gated unit fused: forward a read and a write, backward two and one.

A program takes a span of one seed's rows and a block of columns, a tile at a time. Backward it
keeps the bias's sums beside them and writes one row at its end; the rows of all programs are
added up afterwards, without atomics: the same every time. The gated unit's programs take a block
of values and the gates that belong to them, and write both gradients where they lie in z.

Shapes are those of `reference`, any width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS, TILE, SPAN = 128, 2048, 128  # columns of a tile, numbers in it, rows of a program


@triton.jit
def _normal(v):
    """The standard normal distribution's share below v, and its density there.

    By one exponential for both (Abramowitz and Stegun, 7.1.26): in float32 3e-7 off at most. The
    far tail keeps two or three digits, where 1 + erf would have none.
    """
    bell = tl.exp(-0.5 * v * v)
    t = 1 / (1 + 0.2316418883 * tl.abs(v))
    tail = -0.7265760135 + t * 0.5307027145
    tail = -0.142248368 + t * (0.7107068705 + t * tail)
    tail = t * (0.127414796 + t * tail) * bell
    return tl.where(v < 0, tail, 1 - tail), bell * 0.3989422804014327


@triton.jit
def _gelu_forward(
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
        below, _ = _normal(v)
        tl.store(y + at, (v * below).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _gelu_backward(
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
        below, density = _normal(v)
        d *= below + v * density
        total += d
        tl.store(dz + at, d.to(dz.dtype.element_ty), mask=inside)
    out = sums + (seed * tl.num_programs(0) + tl.program_id(0)) * width + columns
    tl.store(out, tl.sum(total, 0), mask=columns < width)


@triton.jit
def _glu_forward(
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
    bias_at = bias + seed * bias_stride + columns
    b = tl.load(bias_at, mask=columns < width, other=0.0).to(tl.float32)
    c = tl.load(bias_at + width, mask=columns < width, other=0.0).to(tl.float32)
    for first in range(0, SPAN, TALL):
        row = tl.program_id(0) * SPAN + first + tl.arange(0, TALL)
        inside = (row < rows)[:, None] & (columns < width)[None, :]
        at = (seed * rows + row)[:, None] * width + columns[None, :]
        here = z + at + ((seed * rows + row) * width)[:, None]
        value = tl.load(here, mask=inside, other=0.0).to(tl.float32) + b[None, :]
        gate = tl.load(here + width, mask=inside, other=0.0).to(tl.float32) + c[None, :]
        out = value * gate * tl.sigmoid(gate)
        tl.store(y + at, out.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _glu_backward(
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
    bias_at = bias + seed * bias_stride + columns
    b = tl.load(bias_at, mask=columns < width, other=0.0).to(tl.float32)
    c = tl.load(bias_at + width, mask=columns < width, other=0.0).to(tl.float32)
    of_values = tl.zeros((TALL, COLUMNS), tl.float32)
    of_gates = tl.zeros((TALL, COLUMNS), tl.float32)
    for first in range(0, SPAN, TALL):
        row = tl.program_id(0) * SPAN + first + tl.arange(0, TALL)
        inside = (row < rows)[:, None] & (columns < width)[None, :]
        at = (seed * rows + row)[:, None] * width + columns[None, :]
        z_at = at + ((seed * rows + row) * width)[:, None]
        value = tl.load(z + z_at, mask=inside, other=0.0).to(tl.float32) + b[None, :]
        gate = tl.load(z + z_at + width, mask=inside, other=0.0).to(tl.float32) + c[None, :]
        d = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        share = tl.sigmoid(gate)
        d_value = d * gate * share
        d_gate = d * value * share * (1 + gate * (1 - share))
        of_values += d_value
        of_gates += d_gate
        tl.store(dz + z_at, d_value.to(dz.dtype.element_ty), mask=inside)
        tl.store(dz + z_at + width, d_gate.to(dz.dtype.element_ty), mask=inside)
    out = sums + (seed * tl.num_programs(0) + tl.program_id(0)) * 2 * width + columns
    tl.store(out, tl.sum(of_values, 0), mask=columns < width)
    tl.store(out + width, tl.sum(of_gates, 0), mask=columns < width)


def _options(width: int) -> dict[str, int]:
    columns = min(COLUMNS, triton.next_power_of_2(width))
    return {
        "COLUMNS": columns,
        "TALL": min(SPAN, TILE // columns),
        "SPAN": SPAN,
        "num_warps": 8,
    }


def _grid(y: Tensor) -> tuple[int, int, int]:
    seeds, rows, width = y.shape
    columns = _options(width)["COLUMNS"]
    return triton.cdiv(rows, SPAN), triton.cdiv(width, columns), seeds


def _dense(bias: Tensor) -> Tensor:
    """The numbers of one seed side by side; seeds may lie apart, as they do in a table."""
    return bias if bias.stride(-1) == 1 else bias.contiguous()


def forward(z: Tensor, bias: Tensor) -> Tensor:
    """As `reference.forward`, in float32 whatever the type of z."""
    z, bias = z.contiguous(), _dense(bias)
    y = torch.empty_like(z)
    _gelu_forward[_grid(z)](z, bias, y, *z.shape[1:], bias.stride(0), **_options(z.shape[-1]))
    return y


def backward(dy: Tensor, z: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """As `reference.backward`, in float32 whatever the type of z."""
    dy, z, bias = dy.contiguous(), z.contiguous(), _dense(bias)
    dz = torch.empty_like(z)
    grid = _grid(z)
    seeds, rows, width = z.shape
    sums = z.new_empty(seeds, grid[0], width, dtype=torch.float32)
    _gelu_backward[grid](dy, z, bias, dz, sums, rows, width, bias.stride(0), **_options(width))
    return dz, sums.sum(1).to(bias.dtype)


def forward_glu(z: Tensor, bias: Tensor) -> Tensor:
    """As `reference.forward_glu`, in float32 whatever the type of z."""
    z, bias = z.contiguous(), _dense(bias)
    seeds, rows, both = z.shape
    y = z.new_empty(seeds, rows, both // 2)
    _glu_forward[_grid(y)](z, bias, y, *y.shape[1:], bias.stride(0), **_options(both // 2))
    return y


def backward_glu(dy: Tensor, z: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """As `reference.backward_glu`, in float32 whatever the type of z."""
    dy, z, bias = dy.contiguous(), z.contiguous(), _dense(bias)
    dz = torch.empty_like(z)
    grid = _grid(dy)
    seeds, rows, width = dy.shape
    sums = z.new_empty(seeds, grid[0], 2 * width, dtype=torch.float32)
    _glu_backward[grid](dy, z, bias, dz, sums, rows, width, bias.stride(0), **_options(width))
    return dz, sums.sum(1).to(bias.dtype)
