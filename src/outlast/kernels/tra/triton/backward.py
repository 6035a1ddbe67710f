"""The fused backward pass in two kernels, each the only writer of what it writes.

`of_queries` walks the keys from the diagonal leftwards as the forward pass does, gives the
gradients of q and gate, and notes for every tile of keys how many kept keys lie to its right.
`of_keys` takes a block of keys through all its queries, starting each tile from that note, and
gives the gradients of k and v. Nothing is added by two programs, so two runs agree to the bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from outlast.kernels.tra.triton.tile import (
    exponent,
    first_column,
    flags,
    noted,
    program,
    read,
    slope_of,
    triangle,
)


@triton.jit
def _query_tile(
    dq,
    d_gate,
    carry,
    q,
    above_out,
    keys,
    values,
    ones,
    slope,
    shift,
    delta,
    last,
    batch,
    head,
    first,
    begin,
    scale,
    level,
    notes,
    full,
    rows,
    padded,
    BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr,
    MASKED: tl.constexpr,
    PADDED: tl.constexpr,
    FIXED: tl.constexpr,
    LEVEL: tl.constexpr,
    SPARSE: tl.constexpr,
    PACKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    k = read(keys, batch, head, first, BLOCK_N, WIDTH)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    key = first + tl.arange(0, BLOCK_N)
    if MASKED:
        scores = tl.where(last[:, None] >= key[None, :], scores, float("-inf"))
    if PADDED:
        scores = tl.where((key >= begin)[None, :], scores, float("-inf"))
    above = scores - level if LEVEL else scores
    kept = above > 0
    counts = tl.dot(flags(above, PACKED), ones, out_dtype=tl.float16).to(tl.float32)
    kept_here = first_column(counts, BLOCK_N)
    note = notes + (first // BLOCK_N).to(tl.int64) * padded + rows
    tl.store(note, noted(carry, slope, shift, FIXED))
    z = exponent(scores, scale, counts, carry[:, None], slope[:, None], shift[:, None], FIXED)
    p = tl.where(kept, tl.math.exp2(z), 0.0)
    any_kept = True
    if SPARSE:
        any_kept = tl.max(kept_here, 0) > 0
        tl.store(full + first // BLOCK_N, any_kept.to(tl.int8))
    if any_kept:
        v = read(values, batch, head, first, BLOCK_N, WIDTH)
        dp = tl.dot(above_out, tl.trans(v), input_precision=PRECISION)
        dz = p * (dp - delta[:, None])
        d_gate += tl.sum(dz * (counts + carry[:, None]), 1)
        dq = tl.dot(dz.to(k.dtype), k, dq, input_precision=PRECISION)
    carry += kept_here
    return dq, d_gate, carry


@triton.jit(
    do_not_specialize=["heads", "groups", "queries", "keys", "offset", "together", "first_row"]
)
def of_queries(
    q_tensor,
    k_tensor,
    v_tensor,
    o_tensor,
    above_tensor,
    gate,
    starts,
    stops,
    lse,
    d_lse,
    reach,
    dq_out,
    d_gate_out,
    facts,
    notes,
    full,
    ends,
    padded,
    heads,
    groups,
    queries,
    keys,
    offset,
    together,
    first_row,
    batch_stride,
    head_stride,
    row_stride,
    scale,
    factor,
    level,
    lowest,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GIVEN: tl.constexpr,
    PADDED: tl.constexpr,
    FIXED: tl.constexpr,
    LEVEL: tl.constexpr,
    EARLY: tl.constexpr,
    SPARSE: tl.constexpr,
    PACKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    blocks = tl.cdiv(queries, BLOCK_M)
    block, local = program(blocks, together)
    row = first_row + local
    batch, head = row // heads, row % heads
    key_head = head // groups
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    here = rows < queries
    at = row.to(tl.int64) * queries + rows
    near = facts + local.to(tl.int64) * 3 * padded + rows
    begin, end = 0, 2147483647
    if PADDED:
        begin, end = tl.load(starts + batch), tl.load(stops + batch)
    nearest = offset + block * BLOCK_M
    last = tl.minimum(offset + rows, keys - 1)
    q = read(q_tensor, batch, head, block * BLOCK_M, BLOCK_M, WIDTH)
    above_out = read(above_tensor, batch, head, block * BLOCK_M, BLOCK_M, WIDTH)
    output = read(o_tensor, batch, head, block * BLOCK_M, BLOCK_M, WIDTH)
    delta = tl.sum(output.to(tl.float32) * above_out.to(tl.float32), 1)
    if GIVEN:
        delta -= tl.load(d_lse + at, mask=here, other=0.0)
    slope = slope_of(tl.load(gate + at, mask=here, other=0.0), lowest)
    natural = tl.load(lse + at, mask=here, other=float("-inf"))
    # a row without a kept key gets weights of 0
    shift = tl.where(natural == float("-inf"), 1.0e37, natural * 1.4426950408889634)
    tl.store(near, slope)
    tl.store(near + padded, delta)
    tl.store(near + 2 * padded, shift)
    dq = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    d_gate = tl.zeros([BLOCK_M], tl.float32)
    carry = tl.zeros([BLOCK_M], tl.float32) - 1.0
    ones = triangle(BLOCK_N, False)
    columns = tl.cdiv(keys, BLOCK_N)
    notes += local.to(tl.int64) * columns * padded
    full += (local.to(tl.int64) * blocks + block) * columns

    stop = tl.where(end > nearest, tl.minimum(tl.minimum(nearest + BLOCK_M, end), keys), 0)
    tiles = tl.maximum(tl.cdiv(stop, BLOCK_N), 0)
    whole = tl.minimum(tl.minimum(tl.maximum(nearest + 1, 0), keys) // BLOCK_N, tiles)
    left = tl.minimum(begin // BLOCK_N, whole)
    if EARLY:
        read_to = tl.min(tl.load(reach + at, mask=here, other=2147483647), 0)
        left = tl.minimum(tl.maximum(read_to // BLOCK_N, left), whole)
    tl.store(ends + local * blocks + block, left * BLOCK_N)
    for PHASE in tl.static_range(2):
        low = left if PHASE else whole
        for back in range(tiles - low):
            dq, d_gate, carry = _query_tile(
                dq,
                d_gate,
                carry,
                q,
                above_out,
                k_tensor,
                v_tensor,
                ones,
                slope,
                shift,
                delta,
                last,
                batch,
                key_head,
                (tiles - 1 - back) * BLOCK_N,
                begin,
                scale,
                level,
                notes,
                full,
                rows,
                padded,
                BLOCK_N,
                WIDTH,
                PHASE == 0,
                PADDED,
                FIXED,
                LEVEL,
                SPARSE,
                PACKED,
                PRECISION,
            )
        tiles = low
    tl.store(d_gate_out + at, d_gate.to(d_gate_out.dtype.element_ty), mask=here)
    column = tl.arange(0, WIDTH)
    start = batch.to(tl.int64) * batch_stride + head.to(tl.int64) * head_stride
    pointers = dq_out + start + rows.to(tl.int64)[:, None] * row_stride + column[None, :]
    inside = here[:, None] & (column < D)[None, :]
    tl.store(pointers, (dq * factor).to(dq_out.dtype.element_ty), mask=inside)
