"""The backward pass of short sequences with more queries than a tile holds.

As `short.in_one`, a program has a head to itself and walks its keys from right to left; but for
every block of keys it takes the queries block by block, and what it knows of the others waits in
memory of its own, which stays in the second-level cache. Programs are as many as run at a time,
and take one head after the other.
"""

from __future__ import annotations

import triton
import triton.language as tl

from outlast.kernels.tra.triton.short import fetch, for_keys, keep, keep_keys, of_rows, tile
from outlast.kernels.tra.triton.tile import read, triangle


@triton.jit
def _known(
    numbers,
    o_tensor,
    above_tensor,
    gate,
    lse,
    d_lse,
    dq_out,
    d_gate_out,
    o_strides,
    above_strides,
    row,
    batch,
    head,
    queries,
    room,
    unseeing,
    lowest,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    GIVEN: tl.constexpr,
):
    """Note slope, shift and delta of every query; zeros for blocks of them that see no key."""
    for block in tl.range(tl.cdiv(queries, BLOCK_M), num_stages=3):
        rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
        here = rows < queries
        at = row.to(tl.int64) * queries + rows
        slope, shift, delta = of_rows(gate, lse, d_lse, at, here, lowest, GIVEN)
        output = fetch(o_tensor, o_strides, batch, head, rows, queries, D, WIDTH)
        above_out = fetch(above_tensor, above_strides, batch, head, rows, queries, D, WIDTH)
        delta += tl.sum(output.to(tl.float32) * above_out.to(tl.float32), 1)
        tl.store(numbers + rows, slope)
        tl.store(numbers + room + rows, shift)
        tl.store(numbers + 2 * room + rows, delta)
    for block in range(unseeing):
        rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
        at = row.to(tl.int64) * queries + rows
        nothing = tl.zeros([BLOCK_M], d_gate_out.dtype.element_ty)
        tl.store(d_gate_out + at, nothing, mask=rows < queries)
        keep(dq_out, tl.zeros([BLOCK_M, WIDTH], tl.float32), row, rows, queries, D, WIDTH)


@triton.jit(do_not_specialize=["heads", "total", "queries", "keys", "offset"])
def in_turns(
    q_tiles,
    above_tiles,
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
    scratch,
    numbers,
    k_strides,
    v_strides,
    o_strides,
    above_strides,
    heads,
    total,
    queries,
    keys,
    offset,
    room,
    scale,
    factor,
    level,
    lowest,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FLIPPED: tl.constexpr,
    GIVEN: tl.constexpr,
    PADDED: tl.constexpr,
    FIXED: tl.constexpr,
    LEVEL: tl.constexpr,
    PACKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Heads i, i + programs, ...; `scratch` (programs, room, WIDTH), `numbers` (programs, 5, room).

    The numbers of a query: slope, shift, delta, kept keys so far less one, gate's gradient so far.
    """
    column = tl.arange(0, WIDTH)
    tiles, columns = tl.cdiv(queries, BLOCK_M), tl.cdiv(keys, BLOCK_N)
    ones = triangle(BLOCK_N, False)
    numbers += tl.program_id(0) * 5 * room
    scratch += tl.program_id(0) * room * WIDTH
    unseeing = tl.minimum(tl.maximum(-offset, 0) // BLOCK_M, tiles)
    for turn in range(tl.cdiv(total - tl.program_id(0), tl.num_programs(0))):
        row = tl.program_id(0) + turn * tl.num_programs(0)
        batch, head = row // heads, row % heads
        begin = tl.load(starts + batch) if PADDED else 0
        tl.debug_barrier()  # the head before this one has been read
        _known(
            numbers,
            o_tensor,
            above_tensor,
            gate,
            lse,
            d_lse,
            dq_out,
            d_gate_out,
            o_strides,
            above_strides,
            row,
            batch,
            head,
            queries,
            room,
            unseeing,
            lowest,
            D,
            WIDTH,
            BLOCK_M,
            GIVEN,
        )
        # the first block of keys comes last, and gives out what the others leave in scratch
        for PHASE in tl.static_range(2):
            for back in range(columns - 1 if PHASE else 0, columns - 1 + PHASE):
                tl.debug_barrier()  # what other threads have stored
                block = columns - 1 - back
                key = block * BLOCK_N + tl.arange(0, BLOCK_N)
                k = fetch(k_tensor, k_strides, batch, head, key, keys, D, WIDTH)
                v = fetch(v_tensor, v_strides, batch, head, key, keys, D, WIDTH)
                dk = for_keys(BLOCK_N, WIDTH, FLIPPED)
                dv = for_keys(BLOCK_N, WIDTH, FLIPPED)
                since = tl.minimum(tl.maximum(block * BLOCK_N - offset, 0) // BLOCK_M, tiles)
                # queries from here on have met the block to the right
                met = tl.maximum((block + 1) * BLOCK_N - offset, 0) // BLOCK_M * BLOCK_M
                met = tl.where(back == 0, room, met)
                for at in range(since, tiles):
                    rows = at * BLOCK_M + tl.arange(0, BLOCK_M)
                    q = read(q_tiles, batch, head, at * BLOCK_M, BLOCK_M, WIDTH)
                    above_out = read(above_tiles, batch, head, at * BLOCK_M, BLOCK_M, WIDTH)
                    old = rows >= met
                    slope = tl.load(numbers + rows)
                    shift = tl.load(numbers + room + rows)
                    delta = tl.load(numbers + 2 * room + rows)
                    carry = tl.load(numbers + 3 * room + rows, mask=old, other=-1.0)
                    d_gate = tl.load(numbers + 4 * room + rows, mask=old, other=0.0)
                    dz, dk, dv, d_gate, carry = tile(
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
                        tl.minimum(offset + rows, keys - 1),
                        key,
                        begin,
                        scale,
                        level,
                        BLOCK_N,
                        False,
                        FLIPPED,
                        PADDED,
                        FIXED,
                        LEVEL,
                        PACKED,
                        PRECISION,
                    )
                    waiting = scratch + rows[:, None] * WIDTH + column[None, :]
                    dq = tl.dot(dz, k, input_precision=PRECISION)
                    dq += tl.load(waiting, mask=old[:, None], other=0.0)
                    if PHASE == 0:
                        tl.store(waiting, dq)
                        tl.store(numbers + 3 * room + rows, carry)
                        tl.store(numbers + 4 * room + rows, d_gate)
                    else:
                        result = d_gate.to(d_gate_out.dtype.element_ty)
                        place = d_gate_out + row.to(tl.int64) * queries + rows
                        tl.store(place, result, mask=rows < queries)
                        keep(dq_out, dq * factor, row, rows, queries, D, WIDTH)
                keep_keys(dv_out, dv, row, key, keys, D, WIDTH, FLIPPED)
                keep_keys(dk_out, dk * factor, row, key, keys, D, WIDTH, FLIPPED)
