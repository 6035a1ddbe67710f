"""The fused forward pass: a program for a block of queries, keys from the diagonal leftwards.

`carry` counts the kept keys that were already read, less one, so that it and the inclusive count
inside a tile add up to a distance that starts at 0. With bounded scores (`FIXED`) the softmax is
taken around a fixed pivot; else around the running maximum.
"""

from __future__ import annotations

import triton
import triton.language as tl

from outlast.kernels.tra.triton.tile import (
    exponent,
    fetch,
    first_column,
    flags,
    program,
    read,
    slope_of,
    triangle,
)


@triton.jit
def _tile(
    acc,
    total,
    peak,
    carry,
    q,
    keys,
    values,
    ones,
    slope,
    last,
    batch,
    head,
    first,
    begin,
    scale,
    level,
    BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr,
    MASKED: tl.constexpr,
    PADDED: tl.constexpr,
    FIXED: tl.constexpr,
    LEVEL: tl.constexpr,
    SPARSE: tl.constexpr,
    PACKED: tl.constexpr,
    PRECISION: tl.constexpr,
    D: tl.constexpr = 0,
):
    """One tile of keys; `keys` and `values` are descriptors, or with `D` what `fetch` wants."""
    key = first + tl.arange(0, BLOCK_N)
    if D:
        k = fetch(keys[0], keys[1], batch, head, key, keys[2], D, WIDTH)
    else:
        k = read(keys, batch, head, first, BLOCK_N, WIDTH)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if MASKED:
        scores = tl.where(last[:, None] >= key[None, :], scores, float("-inf"))
    if PADDED:
        scores = tl.where((key >= begin)[None, :], scores, float("-inf"))
    above = scores - level if LEVEL else scores
    kept = above > 0
    counts = tl.dot(flags(above, PACKED), ones, out_dtype=tl.float16).to(tl.float32)
    kept_here = first_column(counts, BLOCK_N)
    if FIXED:
        z = exponent(scores, scale, counts, carry[:, None], slope[:, None], peak[:, None], True)
        p = tl.where(kept, tl.math.exp2(z), 0.0)
    else:
        z = exponent(scores, scale, counts, carry[:, None], slope[:, None], 0.0, False)
        z = tl.where(kept, z, -1.0e38)
        higher = tl.maximum(peak, tl.max(z, 1))
        p = tl.math.exp2(z - higher[:, None])
        shrink = tl.math.exp2(peak - higher)
        acc = acc * shrink[:, None]
        total = total * shrink
        peak = higher
    total += tl.sum(p, 1)
    carry += kept_here
    any_kept = True
    if SPARSE:
        any_kept = tl.max(kept_here, 0) > 0
    if any_kept:
        if D:
            v = fetch(values[0], values[1], batch, head, key, values[2], D, WIDTH)
        else:
            v = read(values, batch, head, first, BLOCK_N, WIDTH)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, total, peak, carry


@triton.jit(do_not_specialize=["heads", "groups", "queries", "keys", "offset", "together"])
def attend(
    q_tensor,
    k_tensor,
    v_tensor,
    gate,
    starts,
    stops,
    out,
    lse,
    kept,
    reach,
    heads,
    groups,
    queries,
    keys,
    offset,
    together,
    batch_stride,
    head_stride,
    row_stride,
    scale,
    level,
    bound,
    pivot,
    tolerance,
    lowest,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PADDED: tl.constexpr,
    FIXED: tl.constexpr,
    LEVEL: tl.constexpr,
    EARLY: tl.constexpr,
    SPARSE: tl.constexpr,
    PACKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    block, row = program(tl.cdiv(queries, BLOCK_M), together)
    batch, head = row // heads, row % heads
    key_head = head // groups
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    here = rows < queries
    at = row.to(tl.int64) * queries + rows
    begin, end = 0, 2147483647
    if PADDED:
        begin, end = tl.load(starts + batch), tl.load(stops + batch)
    nearest = offset + block * BLOCK_M  # the first query's own key
    place = offset + rows
    last = tl.minimum(place, keys - 1)
    q = read(q_tensor, batch, head, block * BLOCK_M, BLOCK_M, WIDTH)
    slope = slope_of(tl.load(gate + at, mask=here, other=0.0), lowest)
    acc = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    carry = tl.zeros([BLOCK_M], tl.float32) - 1.0
    # without a pivot: low, yet finite and far above what a dropped key gets
    peak = total + pivot if FIXED else total - 1.0e36
    ones = triangle(BLOCK_N, False)

    # tiles that the diagonal or the end of the keys cuts, then those that are seen whole
    stop = tl.where(end > nearest, tl.minimum(tl.minimum(nearest + BLOCK_M, end), keys), 0)
    tiles = tl.maximum(tl.cdiv(stop, BLOCK_N), 0)
    whole = tl.minimum(tl.minimum(tl.maximum(nearest + 1, 0), keys) // BLOCK_N, tiles)
    left = tl.minimum(begin // BLOCK_N, whole)
    # what is left can weigh at most 2**(bound + slope * count) / (1 - 2**slope)
    least = tolerance + bound - pivot - tl.math.log2(1 - tl.math.exp2(slope))
    more, most = True, tiles
    for PHASE in tl.static_range(2):
        low = left if PHASE else whole
        while (tiles > low) & more:
            until = low
            if EARLY and PHASE:  # the further, the fewer looks at whether the rest matters
                until = tl.maximum(tiles - tl.minimum((most - tiles + 8) // 4, EARLY), low)
            for back in range(tiles - until):
                acc, total, peak, carry = _tile(
                    acc,
                    total,
                    peak,
                    carry,
                    q,
                    k_tensor,
                    v_tensor,
                    ones,
                    slope,
                    last,
                    batch,
                    key_head,
                    (tiles - 1 - back) * BLOCK_N,
                    begin,
                    scale,
                    level,
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
            tiles = until
            if EARLY:
                over = least + slope * (carry + 1) < tl.math.log2(total)
                over = over | (place >= end) | ~here
                more = tl.min(over.to(tl.int32), 0) == 0
    any_kept = (total > 0) & (place < end)
    safe = tl.where(any_kept, total, 1.0)
    natural = (peak + tl.math.log2(safe)) * 0.6931471805599453
    tl.store(lse + at, tl.where(any_kept, natural, float("-inf")), mask=here)
    number = tl.where(place < end, carry + 1, 0.0)
    tl.store(kept + at, number.to(tl.int32), mask=here)
    tl.store(reach + at, tl.zeros_like(rows) + tiles * BLOCK_N, mask=here)
    result = acc * tl.where(any_kept, 1 / safe, 0.0)[:, None]
    column = tl.arange(0, WIDTH)
    start = batch.to(tl.int64) * batch_stride + head.to(tl.int64) * head_stride
    pointers = out + start + rows.to(tl.int64)[:, None] * row_stride + column[None, :]
    inside = here[:, None] & (column < D)[None, :]
    tl.store(pointers, result.to(out.dtype.element_ty), mask=inside)
