"""The LSTM recurrence with its weights on chip: one program for a seed and some rows of its batch.

A program loads the recurrent matrix once, into shared memory, and walks through the whole sequence
by itself: a step costs no launch and no traffic but its own gates. The matrix and the state are
rounded to float16 for the matmul alone (as many bits as tf32; |h| < 1), the sums and the cell are
float32. In the backward pass each row of gate gradients is scaled to its largest entry before it
is rounded, so that no gradient is lost to float16's range. The next step's numbers are loaded
while this one computes, and widened only when their turn has come.

What passes through memory may be half precision: `projected`, `hidden` and the gradients of both
in bfloat16, the gates in float16 (they lie between -1 and 1). The state itself stays float32, and
the last h is written in float32 beside the others.

Shapes are those of `reference`. Widths up to 128: beyond, the matrix does not fit (`streamed`).
"""

from __future__ import annotations

import triton
import triton.language as tl

MOST_UNITS = 128


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2 / (1 + tl.exp(-2 * x)) - 1


@triton.jit
def _block(weight, gate, units, D: tl.constexpr, TURNED: tl.constexpr):
    """One gate's square block of the recurrent matrix, [in, out] or, turned, [out, in]."""
    across = (units < D)[:, None] & (units < D)[None, :]
    at = units[:, None] * D + units[None, :] if TURNED else units[None, :] * D + units[:, None]
    return tl.load(weight + gate * D * D + at, mask=across, other=0.0).to(tl.float16)


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
):
    """All steps of some rows of one seed, from the first to the last."""
    seed = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    units = tl.arange(0, UNITS)
    here = (rows < batch)[:, None] & (units < D)[None, :]
    w = weight + seed * weight_stride
    wi, wf = _block(w, 0, units, D, False), _block(w, 1, units, D, False)
    wg, wo = _block(w, 2, units, D, False), _block(w, 3, units, D, False)
    b = bias + seed * bias_stride + units
    bi = tl.load(b, mask=units < D, other=0.0)[None, :]
    bf = tl.load(b + D, mask=units < D, other=0.0)[None, :]
    bg = tl.load(b + 2 * D, mask=units < D, other=0.0)[None, :]
    bo = tl.load(b + 3 * D, mask=units < D, other=0.0)[None, :]

    start = seed * batch * D + rows[:, None] * D + units[None, :]
    h = tl.load(h0 + start, mask=here, other=0.0)
    c = tl.load(c0 + start, mask=here, other=0.0)
    state_at = (seed * batch + rows[:, None]) * steps * D + units[None, :]
    gates_at = (seed * batch + rows[:, None]) * steps * 4 * D + units[None, :]
    pi = tl.load(projected + gates_at, mask=here, other=0.0)
    pf = tl.load(projected + gates_at + D, mask=here, other=0.0)
    pg = tl.load(projected + gates_at + 2 * D, mask=here, other=0.0)
    po = tl.load(projected + gates_at + 3 * D, mask=here, other=0.0)
    for t in range(steps):
        zi, zf = pi.to(tl.float32) + bi, pf.to(tl.float32) + bf
        zg, zo = pg.to(tl.float32) + bg, po.to(tl.float32) + bo
        ahead = projected + gates_at + 4 * D
        more = here & (t + 1 < steps)
        pi = tl.load(ahead, mask=more, other=0.0)
        pf = tl.load(ahead + D, mask=more, other=0.0)
        pg = tl.load(ahead + 2 * D, mask=more, other=0.0)
        po = tl.load(ahead + 3 * D, mask=more, other=0.0)
        half = h.to(tl.float16)
        i = _sigmoid(tl.dot(half, wi, zi))
        f = _sigmoid(tl.dot(half, wf, zf))
        g = _tanh(tl.dot(half, wg, zg))
        o = _sigmoid(tl.dot(half, wo, zo))
        c = f * c + i * g
        h = o * _tanh(c)
        kept = gates.dtype.element_ty
        tl.store(gates + gates_at, i.to(kept), mask=here)
        tl.store(gates + gates_at + D, f.to(kept), mask=here)
        tl.store(gates + gates_at + 2 * D, g.to(kept), mask=here)
        tl.store(gates + gates_at + 3 * D, o.to(kept), mask=here)
        tl.store(cell + state_at, c, mask=here)
        tl.store(hidden + state_at, h.to(hidden.dtype.element_ty), mask=here)
        gates_at += 4 * D
        state_at += D
    tl.store(last + start, h, mask=here)


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
):
    """The gradients of the gates and of the first state, from the last step to the first.

    `sums` (seeds, programs, 4D) are those of the gates' gradients: the bias's share.
    """
    seed = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    units = tl.arange(0, UNITS)
    here = (rows < batch)[:, None] & (units < D)[None, :]
    w = weight + seed * weight_stride
    wi, wf = _block(w, 0, units, D, True), _block(w, 1, units, D, True)
    wg, wo = _block(w, 2, units, D, True), _block(w, 3, units, D, True)

    start = seed * batch * D + rows[:, None] * D + units[None, :]
    state_at = ((seed * batch + rows[:, None]) * steps + steps - 1) * D + units[None, :]
    gates_at = ((seed * batch + rows[:, None]) * steps + steps - 1) * 4 * D + units[None, :]
    first = tl.load(c0 + start, mask=here, other=0.0)
    dc = tl.load(d_last + start, mask=here, other=0.0)
    dh = tl.zeros((ROWS, UNITS), tl.float32)
    c = tl.load(cell + state_at, mask=here, other=0.0)
    above = tl.load(d_hidden + state_at, mask=here, other=0.0)
    ti = tl.zeros((ROWS, UNITS), tl.float32)
    tf = tl.zeros((ROWS, UNITS), tl.float32)
    tg = tl.zeros((ROWS, UNITS), tl.float32)
    to = tl.zeros((ROWS, UNITS), tl.float32)
    for back in range(steps):
        earlier = here & (back + 1 < steps)
        before = tl.load(cell + state_at - D, mask=earlier, other=0.0)
        i = tl.load(gates + gates_at, mask=here, other=0.0).to(tl.float32)
        f = tl.load(gates + gates_at + D, mask=here, other=0.0).to(tl.float32)
        g = tl.load(gates + gates_at + 2 * D, mask=here, other=0.0).to(tl.float32)
        o = tl.load(gates + gates_at + 3 * D, mask=here, other=0.0).to(tl.float32)
        before = tl.where(back + 1 < steps, before, first)
        dh += above.to(tl.float32)
        above = tl.load(d_hidden + state_at - D, mask=earlier, other=0.0)
        squashed = _tanh(c)
        dc += dh * o * (1 - squashed * squashed)
        di = dc * g * i * (1 - i)
        df = dc * before * f * (1 - f)
        dg = dc * i * (1 - g * g)
        do = dh * squashed * o * (1 - o)
        dc = dc * f
        ti += di
        tf += df
        tg += dg
        to += do
        c = before
        kept = d_gates.dtype.element_ty
        tl.store(d_gates + gates_at, di.to(kept), mask=here)
        tl.store(d_gates + gates_at + D, df.to(kept), mask=here)
        tl.store(d_gates + gates_at + 2 * D, dg.to(kept), mask=here)
        tl.store(d_gates + gates_at + 3 * D, do.to(kept), mask=here)
        most = tl.maximum(tl.maximum(tl.abs(di), tl.abs(df)), tl.maximum(tl.abs(dg), tl.abs(do)))
        most = tl.maximum(tl.max(most, 1), 1e-30)[:, None]
        scale = 1 / most
        dh = tl.dot((di * scale).to(tl.float16), wi)
        dh = tl.dot((df * scale).to(tl.float16), wf, dh)
        dh = tl.dot((dg * scale).to(tl.float16), wg, dh)
        dh = tl.dot((do * scale).to(tl.float16), wo, dh)
        dh *= most
        gates_at -= 4 * D
        state_at -= D
    tl.store(d_h0 + start, dh, mask=here)
    tl.store(d_c0 + start, dc, mask=here)
    out = sums + (seed * tl.num_programs(1) + tl.program_id(1)) * 4 * D + units
    tl.store(out, tl.sum(ti, 0), mask=units < D)
    tl.store(out + D, tl.sum(tf, 0), mask=units < D)
    tl.store(out + 2 * D, tl.sum(tg, 0), mask=units < D)
    tl.store(out + 3 * D, tl.sum(to, 0), mask=units < D)
