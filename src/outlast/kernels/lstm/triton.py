"""The LSTM recurrence fused over time: one program for a seed and sixteen rows of its batch.

A program walks through the whole sequence by itself, so a step costs no launch, and dozens of
seeds run in the time of one. The state h passes from step to step through the output tensor
(written, then read again by the same program after a barrier), which lets the product with the
recurrent matrix run as an ordinary pipelined matrix product at any width; the cell c stays in
registers, in float32. The weight gradient is one large product afterwards, outside the loop.

Shapes are those of `reference`. Widths up to 256; a width that is no power of two is padded.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, MOST_UNITS = 16, 256


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2 / (1 + tl.exp(-2 * x)) - 1


@triton.jit
def _forward(
    projected,
    weight,
    h0,
    c0,
    hidden,
    cell,
    gates,
    steps,
    batch,
    weight_stride,
    D: tl.constexpr,
    UNITS: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    seed = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    units = tl.arange(0, UNITS)
    here = (rows < batch)[:, None] & (units < D)[None, :]
    tile = rows[:, None] * D + units[None, :]
    c = tl.load(c0 + seed * batch * D + tile, mask=here, other=0.0)
    before = h0 + seed * batch * D
    w = weight + seed * weight_stride
    for t in range(steps):
        at = seed * steps + t
        wide = projected + at * batch * 4 * D + rows[:, None] * 4 * D + units[None, :]
        zi = tl.load(wide, mask=here, other=0.0)
        zf = tl.load(wide + D, mask=here, other=0.0)
        zg = tl.load(wide + 2 * D, mask=here, other=0.0)
        zo = tl.load(wide + 3 * D, mask=here, other=0.0)
        for k in range(0, D, CHUNK):
            ks = k + tl.arange(0, CHUNK)
            some = (rows < batch)[:, None] & (ks < D)[None, :]
            h = tl.load(before + rows[:, None] * D + ks[None, :], mask=some, other=0.0)
            across = (ks < D)[:, None] & (units < D)[None, :]
            column = w + units[None, :] * D + ks[:, None]
            zi = tl.dot(h, tl.load(column, mask=across, other=0.0), zi, input_precision=PRECISION)
            zf = tl.dot(
                h, tl.load(column + D * D, mask=across, other=0.0), zf, input_precision=PRECISION
            )
            zg = tl.dot(
                h,
                tl.load(column + 2 * D * D, mask=across, other=0.0),
                zg,
                input_precision=PRECISION,
            )
            zo = tl.dot(
                h,
                tl.load(column + 3 * D * D, mask=across, other=0.0),
                zo,
                input_precision=PRECISION,
            )
        i, f, g, o = _sigmoid(zi), _sigmoid(zf), _tanh(zg), _sigmoid(zo)
        c = f * c + i * g
        save = gates + at * batch * 4 * D + rows[:, None] * 4 * D + units[None, :]
        tl.store(save, i, mask=here)
        tl.store(save + D, f, mask=here)
        tl.store(save + 2 * D, g, mask=here)
        tl.store(save + 3 * D, o, mask=here)
        tl.store(cell + at * batch * D + tile, c, mask=here)
        before = hidden + at * batch * D
        tl.store(before + tile, o * _tanh(c), mask=here)
        tl.debug_barrier()  # the next step reads h across threads


@triton.jit
def _backward(
    d_hidden,
    d_cell,
    weight,
    c0,
    cell,
    gates,
    d_gates,
    d_h0,
    d_c0,
    steps,
    batch,
    weight_stride,
    D: tl.constexpr,
    UNITS: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    seed = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    units = tl.arange(0, UNITS)
    here = (rows < batch)[:, None] & (units < D)[None, :]
    tile = rows[:, None] * D + units[None, :]
    w = weight + seed * weight_stride
    dh = tl.zeros((ROWS, UNITS), tl.float32)
    dc = tl.zeros((ROWS, UNITS), tl.float32)
    for back in range(steps):
        t = steps - 1 - back
        at = seed * steps + t
        wide = rows[:, None] * 4 * D + units[None, :]
        saved = gates + at * batch * 4 * D + wide
        i = tl.load(saved, mask=here, other=0.0)
        f = tl.load(saved + D, mask=here, other=0.0)
        g = tl.load(saved + 2 * D, mask=here, other=0.0)
        o = tl.load(saved + 3 * D, mask=here, other=0.0)
        squashed = _tanh(tl.load(cell + at * batch * D + tile, mask=here, other=0.0))
        earlier = tl.where(t > 0, cell + (at - 1) * batch * D, c0 + seed * batch * D)
        c_before = tl.load(earlier + tile, mask=here, other=0.0)
        dh += tl.load(d_hidden + at * batch * D + tile, mask=here, other=0.0)
        dc += tl.load(d_cell + at * batch * D + tile, mask=here, other=0.0)
        dc += dh * o * (1 - squashed * squashed)
        out = d_gates + at * batch * 4 * D
        tl.store(out + wide, dc * g * i * (1 - i), mask=here)
        tl.store(out + wide + D, dc * c_before * f * (1 - f), mask=here)
        tl.store(out + wide + 2 * D, dc * i * (1 - g * g), mask=here)
        tl.store(out + wide + 3 * D, dh * squashed * o * (1 - o), mask=here)
        dc = dc * f
        tl.debug_barrier()  # the product reads the gates' gradients across threads
        dh = tl.zeros((ROWS, UNITS), tl.float32)
        for k in range(0, 4 * D, CHUNK):
            ks = k + tl.arange(0, CHUNK)
            some = (rows < batch)[:, None] & (ks < 4 * D)[None, :]
            dz = tl.load(out + rows[:, None] * 4 * D + ks[None, :], mask=some, other=0.0)
            across = (ks < 4 * D)[:, None] & (units < D)[None, :]
            row = tl.load(w + ks[:, None] * D + units[None, :], mask=across, other=0.0)
            dh = tl.dot(dz, row, dh, input_precision=PRECISION)
    tl.store(d_h0 + seed * batch * D + tile, dh, mask=here)
    tl.store(d_c0 + seed * batch * D + tile, dc, mask=here)


def fits(projected: Tensor, weight: Tensor) -> bool:
    """Whether the fused kernel can take this: on a GPU, float32, not too wide."""
    return projected.is_cuda and projected.dtype == torch.float32 and weight.shape[-1] <= MOST_UNITS


def _options(weight: Tensor) -> dict[str, object]:
    d = weight.shape[-1]
    exact = torch.get_float32_matmul_precision() == "highest"
    units = max(16, triton.next_power_of_2(d))
    return {
        "D": d,
        "UNITS": units,
        "ROWS": ROWS,
        # four gates at width 256 fill the shared memory of a Hopper card at 32
        "CHUNK": min(32, units) if units <= 128 else 16,
        "PRECISION": "ieee" if exact else "tf32",
        "num_warps": 4 if units <= 128 else 8,
        "num_stages": 3,
    }


def _dense(weight: Tensor) -> Tensor:
    """The rows of one seed side by side; seeds may lie apart, as they do in a table of weights."""
    return weight if weight.stride()[1:] == (weight.shape[-1], 1) else weight.contiguous()


def forward(
    projected: Tensor, weight: Tensor, h0: Tensor, c0: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.forward`."""
    seeds, steps, batch, _ = projected.shape
    weight, projected = _dense(weight), projected.contiguous()
    hidden = projected.new_empty(seeds, steps, batch, weight.shape[-1])
    cell, gates = torch.empty_like(hidden), torch.empty_like(projected)
    _forward[(seeds, triton.cdiv(batch, ROWS))](
        projected,
        weight,
        h0.contiguous(),
        c0.contiguous(),
        hidden,
        cell,
        gates,
        steps,
        batch,
        weight.stride(0),
        **_options(weight),
    )
    return hidden, cell, gates


def backward(
    d_hidden: Tensor,
    d_cell: Tensor,
    weight: Tensor,
    h0: Tensor,
    c0: Tensor,
    hidden: Tensor,
    cell: Tensor,
    gates: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `reference.backward`."""
    seeds, steps, batch, _ = gates.shape
    weight = _dense(weight)
    d_gates, d_h0, d_c0 = torch.empty_like(gates), torch.empty_like(h0), torch.empty_like(c0)
    _backward[(seeds, triton.cdiv(batch, ROWS))](
        d_hidden.contiguous(),
        d_cell.contiguous(),
        weight,
        c0.contiguous(),
        cell,
        gates,
        d_gates,
        d_h0,
        d_c0,
        steps,
        batch,
        weight.stride(0),
        **_options(weight),
    )
    h_before = torch.cat([h0.unsqueeze(1), hidden[:, :-1]], 1)
    d_weight = torch.bmm(d_gates.flatten(1, 2).mT, h_before.flatten(1, 2))
    return d_gates, d_weight, d_h0, d_c0
