"""One query against a long cache: the keys split over programs, then merged exactly.

A program takes one key head with all the query heads that share it, over one range of keys, and
leaves output, log-sum-exp and number of kept keys (`parts.Parts`). A second, small kernel moves
each part by what the parts to its right kept, and adds them up.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor, float32, int32

from outlast.kernels.tra.triton.forward import _tile
from outlast.kernels.tra.triton.launch import Call
from outlast.kernels.tra.triton.tile import slope_of, triangle

MOST_PARTS, FEWEST_KEYS, COLUMNS = 128, 1024, 64


@triton.jit(do_not_specialize=["heads", "groups", "keys", "offset", "share"])
def _parts(
    q_tensor,
    k_tensor,
    v_tensor,
    gate,
    starts,
    stops,
    out,
    lse,
    kept,
    heads,
    groups,
    keys,
    offset,
    share,
    scale,
    level,
    lowest,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PADDED: tl.constexpr,
    FIXED: tl.constexpr,
    LEVEL: tl.constexpr,
    SPARSE: tl.constexpr,
    PACKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    unit, part = tl.program_id(0), tl.program_id(1)  # of the second there may be 65,535 at most
    key_heads = heads // groups
    batch, key_head = unit // key_heads, unit % key_heads
    member = tl.arange(0, BLOCK_M)
    here = member < groups
    column = tl.arange(0, WIDTH)
    row = unit * groups + member
    inside = here[:, None] & (column < D)[None, :]
    q = tl.load(q_tensor + row[:, None] * D + column[None, :], mask=inside, other=0.0)
    slope = slope_of(tl.load(gate + row, mask=here, other=0.0), lowest)
    begin, end = 0, 2147483647
    if PADDED:
        begin, end = tl.load(starts + batch), tl.load(stops + batch)
    stop = tl.where(offset < end, tl.minimum(offset + 1, keys), 0)
    first, stop = tl.maximum(part * share, begin), tl.minimum((part + 1) * share, stop)
    last = tl.zeros_like(member) + stop - 1
    acc = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    carry = total - 1.0
    peak = total - 1.0e36
    ones = triangle(BLOCK_N, False)
    low = first // BLOCK_N
    tiles = tl.maximum(tl.cdiv(stop, BLOCK_N), low)
    for back in range(tiles - low):
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
            True,
            PADDED,
            False,
            LEVEL,
            SPARSE,
            PACKED,
            PRECISION,
        )
    any_kept = total > 0
    safe = tl.where(any_kept, total, 1.0)
    at = row * tl.num_programs(1) + part
    tl.store(lse + at, tl.where(any_kept, peak + tl.math.log2(safe), float("-inf")), mask=here)
    tl.store(kept + at, (carry + 1).to(tl.int32), mask=here)
    pointers = out + at.to(tl.int64)[:, None] * D + column[None, :]
    tl.store(pointers, acc / safe[:, None], mask=inside)


@triton.jit(do_not_specialize=["parts"])
def _merge(
    part_out,
    part_lse,
    part_kept,
    gate,
    out,
    lse,
    kept,
    parts,
    lowest,
    D: tl.constexpr,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0)
    part = tl.arange(0, PARTS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    here = part < parts
    at = row * parts + part
    number = tl.load(part_kept + at, mask=here, other=0)
    level = tl.load(part_lse + at, mask=here, other=float("-inf"))
    to_the_right = tl.cumsum(number, 0, reverse=True) - number
    level += to_the_right.to(tl.float32) * slope_of(tl.load(gate + row), lowest)
    peak = tl.maximum(tl.max(level, 0), -1.0e36)
    weight = tl.math.exp2(level - peak)
    total = tl.sum(weight, 0)
    safe = tl.where(total > 0, total, 1.0)
    inside = here[:, None] & (column < D)[None, :]
    pointers = part_out + at.to(tl.int64)[:, None] * D + column[None, :]
    values = tl.load(pointers, mask=inside, other=0.0)
    result = tl.sum(values * weight[:, None], 0) / safe
    tl.store(out + row * D + column, result.to(out.dtype.element_ty), mask=column < D)
    natural = (peak + tl.math.log2(safe)) * 0.6931471805599453
    tl.store(lse + row, tl.where(total > 0, natural, float("-inf")))
    tl.store(kept + row, tl.sum(number, 0))


def one_query(call: Call, out: Tensor, lse: Tensor, kept: Tensor) -> None:
    """Fill `out`, `lse` and `kept` of one query a head."""
    options = call.options("decode") | {"FIXED": 0}
    options["BLOCK_M"] = max(options["BLOCK_M"], triton.next_power_of_2(call.groups))
    share = max(FEWEST_KEYS, triton.next_power_of_2(-(-call.keys // MOST_PARTS)))
    parts = -(-call.keys // share)
    part_out = out.new_empty(call.rows, parts, out.shape[-1], dtype=float32)
    part_lse = out.new_empty(call.rows, parts, dtype=float32)
    part_kept = out.new_empty(call.rows, parts, dtype=int32)
    _parts[(call.rows // call.groups, parts)](
        call.q.contiguous(),
        call.tiled(call.k, options["BLOCK_N"]),
        call.tiled(call.v, options["BLOCK_N"]),
        call.gate,
        call.start,
        call.stop,
        part_out,
        part_lse,
        part_kept,
        call.heads,
        call.groups,
        call.keys,
        call.how.offset,
        share,
        call.scale,
        call.level,
        call.lowest,
        **options,
    )
    _merge[(call.rows, -(-out.shape[-1] // COLUMNS))](
        part_out,
        part_lse,
        part_kept,
        call.gate,
        out,
        lse,
        kept,
        parts,
        call.lowest,
        D=out.shape[-1],
        PARTS=triton.next_power_of_2(parts),
        COLUMNS=COLUMNS,
    )
