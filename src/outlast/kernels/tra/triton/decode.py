"""One query against a long cache: the keys split over programs, then merged exactly.

A program takes one key head with all the query heads that share it, over one range of keys, and
leaves output, log-sum-exp and number of kept keys (`parts.Parts`). A second, small kernel moves
each part by what the parts to its right kept, and adds them up.

A model that generates calls this for each layer and each token, and waits for Python rather than
for the GPU. So what does not change from call to call is worked out once (`_plan`), all parts lie
in one tensor, and keys and values are read by pointers: a descriptor takes longer to make.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from outlast.kernels.tra.setting import Setting
from outlast.kernels.tra.triton.forward import _tile
from outlast.kernels.tra.triton.launch import Call, Options
from outlast.kernels.tra.triton.tile import slope_of, triangle

MOST_PARTS, FEWEST_KEYS, COLUMNS = 128, 1024, 64


@triton.jit
def _slope(gate, lowest, RAW: tl.constexpr):
    """As `slope_of`; `RAW`, of the gate's log σ."""
    if RAW:
        gate = gate.to(tl.float32)
        # log(1 + x) of a small x, which 1 + x has lost in part or wholly
        x = tl.math.exp(-tl.abs(gate))
        more = 1 + x
        lost = more == 1
        log = tl.where(lost, x, tl.math.log(more) * (x / tl.where(lost, 1.0, more - 1)))
        gate = tl.minimum(gate, 0.0) - log
    return slope_of(gate, lowest)


@triton.jit(do_not_specialize=["heads", "groups", "keys", "offset", "share"])
def _parts(
    q_tensor,
    k_tensor,
    v_tensor,
    gate,
    starts,
    stops,
    scratch,
    heads,
    groups,
    keys,
    offset,
    share,
    k_batch,
    k_head,
    k_row,
    v_batch,
    v_head,
    v_row,
    scale,
    level,
    lowest,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    RAW: tl.constexpr,
    PADDED: tl.constexpr,
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
    slope = _slope(tl.load(gate + row, mask=here, other=0.0), lowest, RAW)
    begin, end = 0, 2147483647
    if PADDED:
        begin = tl.load(starts + batch)
        if stops is not None:
            end = tl.load(stops + batch)
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
            (k_tensor, (k_batch, k_head, k_row), keys),
            (v_tensor, (v_batch, v_head, v_row), keys),
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
            D,
        )
    any_kept = total > 0
    safe = tl.where(any_kept, total, 1.0)
    at = row * tl.num_programs(1) + part
    pointers = scratch + at.to(tl.int64)[:, None] * D + column[None, :]
    tl.store(pointers, acc / safe[:, None], mask=inside)
    every = tl.num_programs(0) * groups * tl.num_programs(1)
    facts = scratch + every.to(tl.int64) * D + at
    tl.store(facts, tl.where(any_kept, peak + tl.math.log2(safe), float("-inf")), mask=here)
    tl.store(facts + every, carry + 1, mask=here)


@triton.jit(do_not_specialize=["parts"])
def _merge(
    scratch,
    gate,
    out,
    lse,
    kept,
    parts,
    lowest,
    D: tl.constexpr,
    RAW: tl.constexpr,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0)
    part = tl.arange(0, PARTS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    here = part < parts
    at = row * parts + part
    every = tl.num_programs(0) * parts
    facts = scratch + every.to(tl.int64) * D + at
    level = tl.load(facts, mask=here, other=float("-inf"))
    number = tl.load(facts + every, mask=here, other=0.0).to(tl.int32)
    to_the_right = tl.cumsum(number, 0, reverse=True) - number
    level += to_the_right.to(tl.float32) * _slope(tl.load(gate + row), lowest, RAW)
    peak = tl.maximum(tl.max(level, 0), -1.0e36)
    weight = tl.math.exp2(level - peak)
    total = tl.sum(weight, 0)
    safe = tl.where(total > 0, total, 1.0)
    inside = here[:, None] & (column < D)[None, :]
    pointers = scratch + at.to(tl.int64)[:, None] * D + column[None, :]
    values = tl.load(pointers, mask=inside, other=0.0)
    result = tl.sum(values * weight[:, None], 0) / safe
    tl.store(out + row * D + column, result.to(out.dtype.element_ty), mask=column < D)
    if lse is not None:
        natural = (peak + tl.math.log2(safe)) * 0.6931471805599453
        tl.store(lse + row, tl.where(total > 0, natural, float("-inf")))
        tl.store(kept + row, tl.sum(number, 0))


class Plan(NamedTuple):
    """What a call takes from its setting and its types alone, in the units of the kernels."""

    scale: float
    level: float
    lowest: float
    options: Options


@lru_cache(maxsize=256)
def _plan(
    device: torch.device,
    dtype: torch.dtype,
    groups: int,
    width: int,
    padded: bool,
    threshold: float,
    scale: float,
    bound: float,
    sparse: bool,
    precision: str,
) -> Plan:
    """For `groups` heads of this width; `precision` is torch's own setting, which `Call` reads."""
    q = torch.empty(1, groups, 1, width, dtype=dtype, device=device)
    how = Setting(threshold, scale, 0, bound, sparse=sparse)
    call = Call(q, q[:, :1], q[:, :1], q, q, q, padded, how)
    options = call.options("decode")
    del options["FIXED"]  # around the running maximum
    options["BLOCK_M"] = max(options["BLOCK_M"], _power_of_2(groups))
    return Plan(call.scale, call.level, call.lowest, options)


def _power_of_2(number: int) -> int:
    """The next one; triton's own function is slow to call."""
    return 1 << (number - 1).bit_length()


def one_query(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    start: Tensor | None,
    stop: Tensor | None,
    how: Setting,
    offset: int,
    lse: Tensor | None = None,
    kept: Tensor | None = None,
    raw: bool = False,
) -> Tensor:
    """The output of one query a head; fills `lse` and `kept` if they are there.

    `offset` is in the place of that of `how`, which a model keeps from one token to the next.
    `stop` may be None where a row has a `start`: it then has no padding after its keys. `raw`: the
    gate is log σ of `gate`.
    """
    batch, heads, _, width = q.shape
    key_heads, keys = k.shape[1:3]
    groups, rows = heads // key_heads, batch * heads
    plan = _plan(
        q.device,
        q.dtype,
        groups,
        width,
        start is not None,
        how.threshold,
        how.scale,
        how.bound,
        how.sparse,
        torch.get_float32_matmul_precision(),
    )
    q, gate = q.contiguous(), gate.contiguous()
    k_strides, v_strides = k.stride(), v.stride()
    if not k_strides[3] == v_strides[3] == 1:
        k, v = k.contiguous(), v.contiguous()
        k_strides, v_strides = k.stride(), v.stride()
    out = q.new_empty(batch, 1, heads, width).transpose(1, 2)
    share = max(FEWEST_KEYS, _power_of_2(-(-keys // MOST_PARTS)))
    parts = -(-keys // share)
    # outputs, then log-sum-exps, then how many keys were kept
    scratch = q.new_empty(rows * parts * (width + 2), dtype=torch.float32)
    _parts[(batch * key_heads, parts)](
        q,
        k,
        v,
        gate,
        start,
        stop,
        scratch,
        heads,
        groups,
        keys,
        offset,
        share,
        *k_strides[:3],
        *v_strides[:3],
        plan.scale,
        plan.level,
        plan.lowest,
        RAW=raw,
        **plan.options,
    )
    _merge[(rows, -(-width // COLUMNS))](
        scratch,
        gate,
        out,
        lse,
        kept,
        parts,
        plan.lowest,
        D=width,
        RAW=raw,
        PARTS=_power_of_2(parts),
        COLUMNS=COLUMNS,
    )
    return out
