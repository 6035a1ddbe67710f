"""Threshold Relative Attention fused on the GPU: FlashAttention's loops and one count a row.

No score leaves the chip. Between the passes only the output and one number a row are kept; the
backward pass notes the counts at the edges of its tiles, 4 n**2 / (keys of a tile) bytes a head
(n**2 / 16 in 16 bit up to width 128), for as many heads at a time as fit in `NOTES`, but one at
least: from 131k tokens on that is more than `NOTES`, and grows with the square of the length.
Nothing of it outlives the pass; short sequences need no notes, see `short`. Everything is
deterministic.

q, k, v and the gradient of the output are read by descriptors and may have any strides that are
multiples of 16 bytes with the width innermost, as a projection split into heads has; others are
copied. Shapes and meaning are those of `reference`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.kernels.tra.reference import Backward, Forward
from outlast.kernels.tra.setting import Setting
from outlast.kernels.tra.tables import Pass, made_for
from outlast.kernels.tra.triton.backward import of_queries
from outlast.kernels.tra.triton.backward_keys import of_keys
from outlast.kernels.tra.triton.decode import one_query
from outlast.kernels.tra.triton.forward import attend
from outlast.kernels.tra.triton.launch import Call, Options, capability, interpreted, rows_of
from outlast.kernels.tra.triton.short import in_one

#: bytes of counts that the backward pass holds at a time, unless one key head has more
NOTES = 1 << 30
#: the most tiles between two looks at whether the rest matters
LOOK = 8
#: queries and keys up to which one program has a head's whole backward pass, and up to which that
#: is one tile
SHORT, ONE_TILE = 128, 64
#: the head width from which what goes to the keys is added up transposed: a matmul's rows are 64
FEWEST_FLIPPED = 64
#: fewer keys than this are one program's work
FEWEST_TO_SPLIT = 1024
WIDTHS = (16, 256)
#: what has bfloat16 and room on chip for most tiles; they are chosen for Hopper, 9
FEWEST_CAPABLE = 8


def obstacle(q: Tensor) -> str | None:
    """Why the kernel cannot take this, or None."""
    width = q.shape[-1]
    if not (q.is_cuda or interpreted()):
        return "q is not on a GPU"
    if q.is_cuda and not interpreted():
        if torch.version.hip is not None:
            return "q is on an AMD GPU"
        if capability(q.device) < FEWEST_CAPABLE:
            return f"q is on a GPU of compute capability below {FEWEST_CAPABLE}"
    if q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"q is {q.dtype}, not float32, bfloat16 or float16"
    if q.dtype == torch.bfloat16 and interpreted():
        return "Triton's interpreter has no bfloat16"
    if not WIDTHS[0] <= width <= WIDTHS[1] or width % 8:
        return f"the head width {width} is no multiple of 8 from {WIDTHS[0]} to {WIDTHS[1]}"
    return None


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    start: Tensor | None,
    stop: Tensor | None,
    how: Setting,
) -> Forward:
    """As `reference.forward`."""
    lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
    kept = q.new_empty(q.shape[:-1], dtype=torch.int32)
    if how.split and k.shape[2] >= FEWEST_TO_SPLIT:
        out = one_query(q, k, v, gate, start, stop, how, how.offset, lse, kept)
        return out, lse, kept, torch.zeros_like(kept)
    call = Call.of(q, k, v, gate, start, stop, how)
    out = q.new_empty(q.transpose(1, 2).shape).transpose(1, 2)  # heads of a token side by side
    reach = torch.empty_like(kept)
    options = call.options("forward")
    rows, keys = options["BLOCK_M"], options["BLOCK_N"]
    blocks = -(-call.queries // rows)
    attend[(blocks * call.rows,)](
        call.tiled(call.q, rows),
        call.tiled(call.k, keys),
        call.tiled(call.v, keys),
        call.gate,
        call.start,
        call.stop,
        out,
        lse,
        kept,
        reach,
        call.heads,
        call.groups,
        call.queries,
        call.keys,
        how.offset,
        call.together(call.rows),
        *out.stride()[:3],
        call.scale,
        call.level,
        call.bound,
        call.pivot,
        call.tolerance,
        call.lowest,
        EARLY=LOOK if call.early else 0,
        **options,
    )
    return out, lse, kept, reach


def backward(
    d_out: Tensor,
    d_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    start: Tensor | None,
    stop: Tensor | None,
    out: Tensor,
    lse: Tensor,
    reach: Tensor,
    how: Setting,
) -> Backward:
    """As `reference.backward`, in the form that suits the length."""
    call = Call.of(q, k, v, gate, start, stop, how)
    dq, dk, dv, d_gate = (t.new_empty(t.shape) for t in (q, k, v, gate))
    gradients = dq, dk, dv, d_gate
    above, result = call.readable(d_out), call.readable(out)
    d_sums = None if d_lse is None else d_lse.contiguous()
    form = short_form(call)
    if form:
        _short(call, form, above, d_sums, result, lse, *gradients)
    else:
        _general(call, above, d_sums, result, lse, reach, *gradients)
    return gradients


def short_form(call: Call) -> Pass | None:
    """The form in which one program has the whole backward pass of a head, or None."""
    length = max(call.queries, call.keys)
    if call.groups > 1 or length > SHORT:
        return None
    form: Pass = "alone" if length <= ONE_TILE else "in_one"
    return form if made_for(form, call.arithmetic, call.width) else None


def _short(
    call: Call,
    form: Pass,
    above: Tensor,
    d_sums: Tensor | None,
    result: Tensor,
    lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    d_gate: Tensor,
) -> None:
    """Every head by one program."""
    options = call.options(form)
    del options["SPARSE"]  # a head's few tiles are not worth asking about
    options["GIVEN"] = int(d_sums is not None)
    options["FLIPPED"] = int(form != "alone" and call.width >= FEWEST_FLIPPED)
    in_one[(call.rows,)](
        call.q,
        call.k,
        call.v,
        result,
        above,
        call.gate,
        call.start,
        lse,
        lse if d_sums is None else d_sums,
        dq,
        dk,
        dv,
        d_gate,
        *(call.strides(t) for t in (call.q, call.k, call.v, result, above)),
        call.heads,
        call.queries,
        call.keys,
        call.how.offset,
        call.scale,
        call.how.scale,
        call.level,
        call.lowest,
        ALONE=int(form == "alone"),
        **options,
    )


def _general(
    call: Call,
    above: Tensor,
    d_sums: Tensor | None,
    result: Tensor,
    lse: Tensor,
    reach: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    d_gate: Tensor,
) -> None:
    """Blocks of queries, then blocks of keys, a few key heads at a time."""
    how = call.how
    first, second = call.options("of_queries"), call.options("of_keys")
    blocks, columns = -(-call.queries // first["BLOCK_M"]), -(-call.keys // first["BLOCK_N"])
    key_blocks = -(-call.keys // second["BLOCK_N"])
    padded = blocks * first["BLOCK_M"]
    note_bytes = columns * padded * call.groups * lse.element_size()
    every = call.rows // call.groups  # key heads of the whole batch
    runs = -(-every // max(1, NOTES // note_bytes))
    share = -(-every // runs)
    heads = share * call.groups
    facts = lse.new_empty(heads, 3, padded)  # slope, delta and shift of a row
    notes = lse.new_empty(heads, columns, padded)
    full = lse.new_zeros(heads, blocks, columns if how.sparse else 0, dtype=torch.int8)
    ends = lse.new_empty(heads, blocks, dtype=torch.int32)
    of_rows = [call.tiled(t, first["BLOCK_M"]) for t in (call.q, result, above)]
    tiles = [call.tiled(t, first["BLOCK_N"]) for t in (call.k, call.v)]
    of_blocks = [call.tiled(t, second["BLOCK_M"]) for t in (call.q, above)]
    key_tiles = [call.tiled(t, second["BLOCK_N"]) for t in (call.k, call.v)]
    until = _until(call, reach, first, second) if call.early else ends
    sizes = (call.groups, call.queries, call.keys, how.offset)
    for since in range(0, every, share):
        now = min(share, every - since)
        of_queries[(blocks * now * call.groups,)](
            of_rows[0],
            *tiles,
            *of_rows[1:],
            call.gate,
            call.start,
            call.stop,
            lse,
            lse if d_sums is None else d_sums,
            reach,
            dq,
            d_gate,
            facts,
            notes,
            full,
            ends,
            padded,
            call.heads,
            *sizes,
            call.together(now * call.groups),
            since * call.groups,
            *dq.stride()[:3],
            call.scale,
            how.scale,
            call.level,
            call.lowest,
            GIVEN=int(d_sums is not None),
            EARLY=int(call.early),
            **first,
        )
        of_keys[(key_blocks * now,)](
            of_blocks[0],
            *key_tiles,
            of_blocks[1],
            call.start,
            rows_of(facts, second["BLOCK_M"]),
            rows_of(notes, second["BLOCK_M"]),
            full,
            until,
            ends,
            dk,
            dv,
            call.heads // call.groups,
            *sizes,
            call.together(now),
            since,
            *dk.stride()[:3],
            call.scale,
            how.scale,
            call.level,
            ROWS=first["BLOCK_M"],
            NOTE=first["BLOCK_N"],
            GROUPED=int(call.groups > 1),
            EARLY=int(call.early),
            **second,
        )


def _until(call: Call, reach: Tensor, of_queries: Options, of_keys: Options) -> Tensor:
    """For every block of keys, the end of the last block of queries that read any of it."""
    rows, keys = of_queries["BLOCK_M"], of_keys["BLOCK_N"]
    blocks, key_blocks = -(-call.queries // rows), -(-call.keys // keys)
    missing = blocks * rows - call.queries
    read = F.pad(reach.flatten(0, 1), (0, missing), value=call.keys).unflatten(-1, (blocks, rows))
    first = torch.arange(blocks, device=reach.device, dtype=torch.int32) * rows
    left = torch.minimum(read.amin(-1), (call.how.offset + first).clamp_min(0))
    key_block = (left // keys).clamp_max(key_blocks - 1).long()
    last_queries = reach.new_zeros(call.rows, key_blocks)
    last_queries.scatter_reduce_(1, key_block, (first + rows).expand(call.rows, blocks), "amax")
    return last_queries.cummax(1).values.to(torch.int32)
