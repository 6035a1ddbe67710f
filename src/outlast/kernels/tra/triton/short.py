"""The backward pass of short sequences: one program has a head, and makes every score once.

Keys are walked from the last block to the first, so how many kept keys lie to the right of a block
is known when it is reached: no notes, no second kernel, six matmuls a tile instead of nine. All
that belongs to a head is added up by one program in one order, so two runs agree to the bit.

`in_one` has all queries of a head in one tile: their gradients stay in registers, and those of a
block of keys are complete as soon as they are made. Its tensors are read by pointers: a program
has so little to do that its loads should all be under way at once. (More queries than a tile holds,
with their gradients waiting in memory, were slower on an H200 than the two kernels of `backward`.)
"""

from __future__ import annotations

import triton
import triton.language as tl

from outlast.kernels.tra.triton.tile import (
    exponent,
    fetch,
    first_column,
    flags,
    inside,
    slope_of,
    triangle,
)


@triton.jit
def keep(tensor, values, row, rows, size, D: tl.constexpr, WIDTH: tl.constexpr):
    """Store rows of head `row` of all, in a tensor without gaps."""
    start = row.to(tl.int64) * size * D
    places = rows[:, None] * D + tl.arange(0, WIDTH)[None, :]
    mask = inside(rows, size, D, WIDTH)
    tl.store(tensor + start + places, values.to(tensor.dtype.element_ty), mask=mask)


@triton.jit
def of_rows(gate, lse, d_lse, at, here, lowest, GIVEN: tl.constexpr):
    """Slope, shift, and what the gradient of the log-sum-exp adds to delta; one number a query."""
    slope = slope_of(tl.load(gate + at, mask=here, other=0.0), lowest)
    natural = tl.load(lse + at, mask=here, other=float("-inf"))
    # a row without a kept key gets weights of 0
    shift = tl.where(natural == float("-inf"), 1.0e37, natural * 1.4426950408889634)
    delta = tl.zeros_like(slope)
    if GIVEN:
        delta -= tl.load(d_lse + at, mask=here, other=0.0)
    return slope, shift, delta


@triton.jit
def _to_keys(weights, rows, total, FLIPPED: tl.constexpr, PRECISION: tl.constexpr):
    """Add what the queries send to the keys, (keys, width); `FLIPPED`, (width, keys)."""
    if FLIPPED:
        total = tl.dot(tl.trans(rows), weights, total, input_precision=PRECISION)
    else:
        total = tl.dot(tl.trans(weights), rows, total, input_precision=PRECISION)
    return total


@triton.jit
def for_keys(BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, FLIPPED: tl.constexpr):
    """Zeros for `_to_keys` to add to."""
    return tl.zeros([WIDTH if FLIPPED else BLOCK_N, BLOCK_N if FLIPPED else WIDTH], tl.float32)


@triton.jit
def keep_keys(
    tensor,
    values,
    row,
    key,
    keys,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    FLIPPED: tl.constexpr,
):
    """Store what `_to_keys` added up."""
    keep(tensor, tl.trans(values) if FLIPPED else values, row, key, keys, D, WIDTH)


@triton.jit
def tile(
    dk,
    dv,
    d_gate,
    carry,
    q,
    k,
    v,
    above_out,
    ones,
    slope,
    shift,
    delta,
    last,
    key,
    begin,
    scale,
    level,
    BLOCK_N: tl.constexpr,
    ALONE: tl.constexpr,
    FLIPPED: tl.constexpr,
    PADDED: tl.constexpr,
    FIXED: tl.constexpr,
    LEVEL: tl.constexpr,
    PACKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradient of a tile's logits, and what it adds to all but dq.

    `ALONE`: its queries have no other tile, so their delta can be had from it, without the output.
    """
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    dp = tl.dot(above_out, tl.trans(v), input_precision=PRECISION)
    scores = tl.where(last[:, None] >= key[None, :], scores, float("-inf"))
    if PADDED:
        scores = tl.where((key >= begin)[None, :], scores, float("-inf"))
    above = scores - level if LEVEL else scores
    kept = above > 0
    counts = tl.dot(flags(above, PACKED), ones, out_dtype=tl.float16).to(tl.float32)
    z = exponent(scores, scale, counts, carry[:, None], slope[:, None], shift[:, None], FIXED)
    p = tl.where(kept, tl.math.exp2(z), 0.0)
    if ALONE:  # under strong gates the sum of p is 1 only to four digits or five
        total = tl.sum(p, 1)
        delta += tl.sum(p * dp, 1) / tl.where(total > 0, total, 1.0)
    dz = p * (dp - delta[:, None])
    d_gate += tl.sum(dz * (counts + carry[:, None]), 1)
    if not ALONE:
        carry += first_column(counts, BLOCK_N)
    # float32 leaves here: matmuls last, when scores and counts have left the registers
    p, dz = p.to(q.dtype), dz.to(q.dtype)
    dv = _to_keys(p, above_out, dv, FLIPPED, PRECISION)
    dk = _to_keys(dz, q, dk, FLIPPED, PRECISION)
    return dz, dk, dv, d_gate, carry


@triton.jit(do_not_specialize=["heads", "queries", "keys", "offset"])
def in_one(
    q_tensor,
    k_tensor,
    v_tensor,
    o_tensor,
    above_tensor,
    gate,
    starts,
    lse,
    d_lse,
    dq_out,
    dk_out,
    dv_out,
    d_gate_out,
    q_strides,
    k_strides,
    v_strides,
    o_strides,
    above_strides,
    heads,
    queries,
    keys,
    offset,
    scale,
    factor,
    level,
    lowest,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ALONE: tl.constexpr,
    FLIPPED: tl.constexpr,
    GIVEN: tl.constexpr,
    PADDED: tl.constexpr,
    FIXED: tl.constexpr,
    LEVEL: tl.constexpr,
    PACKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    row = tl.program_id(0)
    batch, head = row // heads, row % heads
    rows = tl.arange(0, BLOCK_M)
    here = rows < queries
    at = row.to(tl.int64) * queries + rows
    q = fetch(q_tensor, q_strides, batch, head, rows, queries, D, WIDTH)
    above_out = fetch(above_tensor, above_strides, batch, head, rows, queries, D, WIDTH)
    slope, shift, delta = of_rows(gate, lse, d_lse, at, here, lowest, GIVEN)
    if not ALONE:
        output = fetch(o_tensor, o_strides, batch, head, rows, queries, D, WIDTH)
        delta += tl.sum(output.to(tl.float32) * above_out.to(tl.float32), 1)
    begin = tl.load(starts + batch) if PADDED else 0
    last = tl.minimum(offset + rows, keys - 1)
    ones = triangle(BLOCK_N, False)
    dq = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    d_gate = tl.zeros([BLOCK_M], tl.float32)
    carry = tl.zeros([BLOCK_M], tl.float32) - 1.0
    columns = 1 if ALONE else tl.cdiv(keys, BLOCK_N)
    for back in range(columns):
        key = (columns - 1 - back) * BLOCK_N + tl.arange(0, BLOCK_N)
        k = fetch(k_tensor, k_strides, batch, head, key, keys, D, WIDTH)
        v = fetch(v_tensor, v_strides, batch, head, key, keys, D, WIDTH)
        dz, dk, dv, d_gate, carry = tile(
            for_keys(BLOCK_N, WIDTH, FLIPPED),
            for_keys(BLOCK_N, WIDTH, FLIPPED),
            d_gate,
            carry,
            q,
            k,
            v,
            above_out,
            ones,
            slope,
            shift,
            delta,
            last,
            key,
            begin,
            scale,
            level,
            BLOCK_N,
            ALONE,
            FLIPPED,
            PADDED,
            FIXED,
            LEVEL,
            PACKED,
            PRECISION,
        )
        dq = tl.dot(dz, k, dq, input_precision=PRECISION)
        keep_keys(dv_out, dv, row, key, keys, D, WIDTH, FLIPPED)
        keep_keys(dk_out, dk * factor, row, key, keys, D, WIDTH, FLIPPED)
    tl.store(d_gate_out + at, d_gate.to(d_gate_out.dtype.element_ty), mask=here)
    keep(dq_out, dq * factor, row, rows, queries, D, WIDTH)
