"""The second half of the backward pass: a program for a block of keys through all its queries.

Scores and masks stand transposed here (keys by queries), so that the weights feed the matmuls
for k and v from registers. See `backward` for what it is given.
"""

from __future__ import annotations

import triton
import triton.language as tl

from outlast.kernels.tra.triton.tile import flags, noted, program, read, triangle


@triton.jit
def _key_tile(
    dk,
    dv,
    k,
    v,
    queries_tensor,
    above_tensor,
    facts,
    notes,
    ends,
    ones,
    key,
    batch,
    head,
    local,
    right,
    first,
    block_end,
    offset,
    begin,
    keys,
    scale,
    level,
    BLOCK_M: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    MASKED: tl.constexpr,
    PADDED: tl.constexpr,
    FIXED: tl.constexpr,
    LEVEL: tl.constexpr,
    EARLY: tl.constexpr,
    PACKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    q = read(queries_tensor, batch, head, first, BLOCK_M, WIDTH)
    above_out = read(above_tensor, batch, head, first, BLOCK_M, WIDTH)
    if PRECISION == "tf32x3":  # its three matmuls are not the same the other way round
        scores = tl.trans(tl.dot(q, tl.trans(k), input_precision=PRECISION))
    else:
        scores = tl.dot(k, tl.trans(q), input_precision=PRECISION)
    last = tl.minimum(offset + first + tl.arange(0, BLOCK_M), keys - 1)
    if MASKED:
        scores = tl.where(last[None, :] >= key[:, None], scores, float("-inf"))
    if PADDED:
        scores = tl.where((key >= begin)[:, None], scores, float("-inf"))
    above = scores - level if LEVEL else scores
    kept = above > 0
    counts = tl.dot(ones, flags(above, PACKED), out_dtype=tl.float16).to(tl.float32)
    slope = facts.load([local, 0, first]).reshape(BLOCK_M)
    note = notes.load([local, right, first]).reshape(BLOCK_M)
    if MASKED or PADDED or EARLY or not FIXED:
        shift = facts.load([local, 2, first]).reshape(BLOCK_M)
        if MASKED:  # a query inside the block has nothing to its right, and left no note of that
            note = tl.where(last >= block_end, note, noted(-1.0, slope, shift, FIXED))
        if EARLY:  # a block of queries that stopped before these keys
            shift = tl.where(tl.load(ends + first // ROWS) < block_end, shift, 1.0e37)
        # a row without a kept key may have no note
        note = tl.where(shift < 1.0e36, note, noted(0.0, slope, shift, FIXED))
    if FIXED:
        z = scores * scale + (counts * slope[None, :] + note[None, :])
    else:
        z = scores * scale + ((counts + note[None, :]) * slope[None, :] - shift[None, :])
    p = tl.where(kept, tl.math.exp2(z), 0.0)
    dv = tl.dot(p.to(above_out.dtype), above_out, dv, input_precision=PRECISION)
    dp = tl.dot(v, tl.trans(above_out), input_precision=PRECISION)
    delta = facts.load([local, 1, first]).reshape(BLOCK_M)
    dz = p * (dp - delta[None, :])
    dk = tl.dot(dz.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit(
    do_not_specialize=["key_heads", "groups", "queries", "keys", "offset", "together", "first_row"]
)
def of_keys(
    q_tensor,
    k_tensor,
    v_tensor,
    above_tensor,
    starts,
    facts,
    notes,
    full,
    until,
    ends,
    dk_out,
    dv_out,
    key_heads,
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
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ROWS: tl.constexpr,
    NOTE: tl.constexpr,
    GROUPED: tl.constexpr,
    PADDED: tl.constexpr,
    FIXED: tl.constexpr,
    LEVEL: tl.constexpr,
    EARLY: tl.constexpr,
    SPARSE: tl.constexpr,
    PACKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    columns = tl.cdiv(keys, BLOCK_N)
    late, local = program(columns, together)
    block = columns - 1 - late  # early keys have the most queries
    row = first_row + local
    batch, key_head = row // key_heads, row % key_heads
    begin = tl.load(starts + batch) if PADDED else 0
    key = block * BLOCK_N + tl.arange(0, BLOCK_N)
    k = read(k_tensor, batch, key_head, block * BLOCK_N, BLOCK_N, WIDTH)
    v = read(v_tensor, batch, key_head, block * BLOCK_N, BLOCK_N, WIDTH)
    dk = tl.zeros([BLOCK_N, WIDTH], tl.float32)
    dv = tl.zeros([BLOCK_N, WIDTH], tl.float32)
    ones = triangle(BLOCK_N, True)
    blocks, tiles = tl.cdiv(queries, ROWS), tl.cdiv(queries, BLOCK_M)
    # notes were made for tiles of NOTE keys: the one for the right end of the block counts
    wide = tl.cdiv(keys, NOTE)
    right = tl.minimum((block + 1) * (BLOCK_N // NOTE), wide) - 1
    # queries from the first that sees a key of the block; those before `whole` see a part of it
    block_end = (block + 1) * BLOCK_N
    lowest = tl.minimum(tl.maximum(block * BLOCK_N - offset, 0) // BLOCK_M, tiles)
    whole = tl.minimum(tl.cdiv(tl.maximum(block_end - 1 - offset, 0), BLOCK_M), tiles)
    whole = tl.where(block_end > keys, tiles, whole)
    members = groups if GROUPED else 1
    for member in range(members):
        query_row = (local * members + member).to(tl.int64)
        highest = tiles
        if EARLY:
            of_all = first_row * members + query_row
            highest = tl.minimum(tl.load(until + of_all * columns + block) // BLOCK_M, tiles)
        for PHASE in tl.static_range(2):
            since = whole if PHASE else lowest
            for tile in range(since, highest if PHASE else whole):
                any_kept = True
                if SPARSE:
                    seen = (query_row * blocks + tile * BLOCK_M // ROWS) * wide
                    part = block * (BLOCK_N // NOTE) + tl.arange(0, BLOCK_N // NOTE)
                    marks = tl.load(full + seen + part, mask=part < wide, other=0)
                    any_kept = tl.max(marks.to(tl.int32), 0) != 0
                if any_kept:
                    dk, dv = _key_tile(
                        dk,
                        dv,
                        k,
                        v,
                        q_tensor,
                        above_tensor,
                        facts,
                        notes,
                        ends + query_row * blocks,
                        ones,
                        key,
                        batch,
                        key_head * members + member,
                        local * members + member,
                        right,
                        tile * BLOCK_M,
                        block_end,
                        offset,
                        begin,
                        keys,
                        scale,
                        level,
                        BLOCK_M,
                        WIDTH,
                        ROWS,
                        PHASE == 0,
                        PADDED,
                        FIXED,
                        LEVEL,
                        EARLY,
                        PACKED,
                        PRECISION,
                    )
    column = tl.arange(0, WIDTH)
    start = batch.to(tl.int64) * batch_stride + key_head.to(tl.int64) * head_stride
    offsets = start + key.to(tl.int64)[:, None] * row_stride + column[None, :]
    inside = (key < keys)[:, None] & (column < D)[None, :]
    tl.store(dk_out + offsets, (dk * factor).to(dk_out.dtype.element_ty), mask=inside)
    tl.store(dv_out + offsets, dv.to(dv_out.dtype.element_ty), mask=inside)
