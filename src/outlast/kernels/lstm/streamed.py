"""The LSTM recurrence with its weights read at every step: any width up to 256, and full float32.

One program for a seed and some rows of its batch walks through the whole sequence by itself. The
state h passes from step to step through the output tensor (written, then read again by the same
program after a barrier), which lets the matmul with the recurrent matrix run as an ordinary
pipelined one; the cell c stays in registers, in float32.

Shapes are those of `reference`; a width that is no power of two is padded.
"""

from __future__ import annotations

import triton
import triton.language as tl

from outlast.kernels.lstm.resident import _sigmoid, _tanh

MOST_UNITS = 256


@triton.jit
def lstm_forward(
    projected,
    bias,
    weight,
    h0,
    c0,
    hidden,
    last,
    cell,
    gates,
    steps,
    batch,
    bias_stride,
    weight_stride,
    D: tl.constexpr,
    UNITS: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """All steps of some rows of one seed, from the first to the last."""
    seed = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    units = tl.arange(0, UNITS)
    here = (rows < batch)[:, None] & (units < D)[None, :]
    w = weight + seed * weight_stride
    b = bias + seed * bias_stride + units
    bi = tl.load(b, mask=units < D, other=0.0)[None, :]
    bf = tl.load(b + D, mask=units < D, other=0.0)[None, :]
    bg = tl.load(b + 2 * D, mask=units < D, other=0.0)[None, :]
    bo = tl.load(b + 3 * D, mask=units < D, other=0.0)[None, :]
    start = seed * batch + rows[:, None]
    c = tl.load(c0 + start * D + units[None, :], mask=here, other=0.0)
    before = h0 + start * D
    for t in range(steps):
        at = start * steps + t
        gates_at = at * 4 * D + units[None, :]
        zi = tl.load(projected + gates_at, mask=here, other=0.0) + bi
        zf = tl.load(projected + gates_at + D, mask=here, other=0.0) + bf
        zg = tl.load(projected + gates_at + 2 * D, mask=here, other=0.0) + bg
        zo = tl.load(projected + gates_at + 3 * D, mask=here, other=0.0) + bo
        for k in range(0, D, CHUNK):
            ks = k + tl.arange(0, CHUNK)
            column_mask = (rows < batch)[:, None] & (ks < D)[None, :]
            h = tl.load(before + ks[None, :], mask=column_mask, other=0.0)
            across = (ks < D)[:, None] & (units < D)[None, :]
            column = w + units[None, :] * D + ks[:, None]
            wi = tl.load(column, mask=across, other=0.0)
            wf = tl.load(column + D * D, mask=across, other=0.0)
            wg = tl.load(column + 2 * D * D, mask=across, other=0.0)
            wo = tl.load(column + 3 * D * D, mask=across, other=0.0)
            zi = tl.dot(h, wi, zi, input_precision=PRECISION)
            zf = tl.dot(h, wf, zf, input_precision=PRECISION)
            zg = tl.dot(h, wg, zg, input_precision=PRECISION)
            zo = tl.dot(h, wo, zo, input_precision=PRECISION)
        i, f, g, o = _sigmoid(zi), _sigmoid(zf), _tanh(zg), _sigmoid(zo)
        c = f * c + i * g
        tl.store(gates + gates_at, i, mask=here)
        tl.store(gates + gates_at + D, f, mask=here)
        tl.store(gates + gates_at + 2 * D, g, mask=here)
        tl.store(gates + gates_at + 3 * D, o, mask=here)
        tl.store(cell + at * D + units[None, :], c, mask=here)
        before = hidden + at * D
        h = o * _tanh(c)
        tl.store(before + units[None, :], h, mask=here)
        if t == steps - 1:
            tl.store(last + start * D + units[None, :], h, mask=here)
        tl.debug_barrier()  # the next step reads h across threads


@triton.jit
def lstm_backward(
    d_hidden,
    d_last,
    weight,
    c0,
    cell,
    gates,
    d_gates,
    sums,
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
    """The gradients of the gates and of the first state, from the last step to the first.

    `sums` is not written here: it would not fit beside the rest.
    """
    seed = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    units = tl.arange(0, UNITS)
    here = (rows < batch)[:, None] & (units < D)[None, :]
    w = weight + seed * weight_stride
    start = seed * batch + rows[:, None]
    dh = tl.zeros((ROWS, UNITS), tl.float32)
    dc = tl.load(d_last + start * D + units[None, :], mask=here, other=0.0)
    for back in range(steps):
        t = steps - 1 - back
        at = start * steps + t
        state_at = at * D + units[None, :]
        gates_at = at * 4 * D + units[None, :]
        i = tl.load(gates + gates_at, mask=here, other=0.0)
        f = tl.load(gates + gates_at + D, mask=here, other=0.0)
        g = tl.load(gates + gates_at + 2 * D, mask=here, other=0.0)
        o = tl.load(gates + gates_at + 3 * D, mask=here, other=0.0)
        squashed = _tanh(tl.load(cell + state_at, mask=here, other=0.0))
        earlier = tl.where(t > 0, cell + state_at - D, c0 + start * D + units[None, :])
        before = tl.load(earlier, mask=here, other=0.0)
        dh += tl.load(d_hidden + state_at, mask=here, other=0.0)
        dc += dh * o * (1 - squashed * squashed)
        tl.store(d_gates + gates_at, dc * g * i * (1 - i), mask=here)
        tl.store(d_gates + gates_at + D, dc * before * f * (1 - f), mask=here)
        tl.store(d_gates + gates_at + 2 * D, dc * i * (1 - g * g), mask=here)
        tl.store(d_gates + gates_at + 3 * D, dh * squashed * o * (1 - o), mask=here)
        dc = dc * f
        tl.debug_barrier()  # the matmul reads the gates' gradients across threads
        dh = tl.zeros((ROWS, UNITS), tl.float32)
        for k in range(0, 4 * D, CHUNK):
            ks = k + tl.arange(0, CHUNK)
            column_mask = (rows < batch)[:, None] & (ks < 4 * D)[None, :]
            dz = tl.load(d_gates + at * 4 * D + ks[None, :], mask=column_mask, other=0.0)
            across = (ks < 4 * D)[:, None] & (units < D)[None, :]
            row = tl.load(w + ks[:, None] * D + units[None, :], mask=across, other=0.0)
            dh = tl.dot(dz, row, dh, input_precision=PRECISION)
    tl.store(d_h0 + start * D + units[None, :], dh, mask=here)
    tl.store(d_c0 + start * D + units[None, :], dc, mask=here)
