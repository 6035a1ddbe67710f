"""Threshold Relative Attention in blocks of queries, in plain torch: memory linear in length.

A block of queries sees all its keys at once, so the softmax is exact and needs no running maximum;
the keys to the right of the block are never touched. Counting from the right is two short steps
rather than a scan over the row: inside leaves of 32 keys it is one matmul with a triangle of
ones, and the leaves' totals are summed from the right. The backward pass does the same again and
keeps nothing but the log-sum-exp. Short sequences go many heads at a time.

Written for the CPU, but it serves wherever the fused kernel cannot. Shapes and meaning are those of
`reference`, with one exception. On a GPU a value that is not finite reaches all queries of its
block, because to look at the result would wait for the GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from outlast.kernels.tra.reference import Backward, Forward, weigh, wide
from outlast.kernels.tra.setting import LOWEST_GATE, Setting

LEAF = 32
#: scores that are worked on at a time: a few megabytes, so that they stay near the processor
AT_ONCE = 1 << 18
FEWEST_QUERIES, MOST_QUERIES = 16, 128
#: a logit, relative to the row's log-sum-exp or peak, below which a weight is as good as 0
LEAST = -80.0


class Rows(NamedTuple):
    """The inputs with batch and heads in one axis, each query head with keys of its own."""

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor
    start: Tensor | None
    stop: Tensor | None


def _blank(rows: Tensor, first: int, start: Tensor | None, stop: Tensor | None) -> Tensor:
    """Rows (b, h, n, ...) with 0 in place of padding, which may hold anything.

    `first` is the place of row 0. Rows before `start` and from `stop` on are padding.
    """
    place = torch.arange(first, first + rows.shape[2], device=rows.device)
    for bound, outside in ((start, torch.lt), (stop, torch.ge)):
        if bound is not None:
            padding = outside(place, bound[:, None])[:, None]
            rows = rows.masked_fill(padding if rows.dim() == 3 else padding[..., None], 0.0)
    return rows


def _rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    start: Tensor | None,
    stop: Tensor | None,
    how: Setting,
) -> Rows:
    heads, groups, computed = q.shape[1], q.shape[1] // k.shape[1], wide(q.dtype)
    q, gate = (_blank(t, how.offset, None, stop) for t in (q, gate))
    k, v = (_blank(t, 0, start, stop) for t in (k, v))
    keys, values = (t.to(computed) for t in (k, v))
    if groups > 1:
        keys, values = (t.repeat_interleave(groups, 1) for t in (keys, values))
    return Rows(
        q.to(computed).flatten(0, 1),
        keys.flatten(0, 1),
        values.flatten(0, 1),
        gate.to(computed).clamp(min=LOWEST_GATE).flatten(0, 1).unsqueeze(-1),
        None if start is None else start.repeat_interleave(heads).view(-1, 1, 1),
        None if stop is None else stop.repeat_interleave(heads).view(-1, 1, 1),
    )


def _blocks(rows: int, queries: int, keys: int, offset: int) -> Iterator[tuple[slice, slice, int]]:
    """Which heads and queries go together, and how many keys those queries can see."""
    block = max(FEWEST_QUERIES, min(MOST_QUERIES, AT_ONCE // max(keys, 1)))
    for first in range(0, queries, block):
        last = min(first + block, queries)
        seen = max(0, min(offset + last, keys))
        together = max(1, AT_ONCE // max(1, (last - first) * seen))
        for row in range(0, rows, together):
            yield slice(row, row + together), slice(first, last), seen


def _score(
    rows: Rows, chunk: slice, queries: slice, seen: int, how: Setting, triangle: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores, 1 for the kept ones, and each one's distance over the kept keys, counted from 0.

    The last result is where a query would look ahead, (queries, n) for the last n of the keys: the
    keys before them are seen by the whole block.
    """
    scores = rows.q[chunk, queries] @ rows.k[chunk, :seen].mT
    scores *= how.scale
    kept = scores > how.threshold
    place = torch.arange(queries.start, queries.stop, device=scores.device)[:, None] + how.offset
    key = torch.arange(seen, device=scores.device)
    kept &= key <= place
    if rows.start is not None and rows.stop is not None:
        kept &= (key >= rows.start[chunk]) & (place < rows.stop[chunk])
        # a query that is padding is 0 here; 0 times a key that is not finite would be NaN
        scores.masked_fill_(place >= rows.stop[chunk], 0.0)
    padded = -(-seen // LEAF) * LEAF
    ones = scores.new_zeros(*scores.shape[:-1], padded)
    ones[..., :seen] = kept
    distance = ones.unflatten(-1, (-1, LEAF)) @ triangle
    totals = distance[..., 0]
    to_the_right = totals.flip(-1).cumsum(-1).flip(-1) - totals
    distance += (to_the_right - 1).unsqueeze(-1)
    ahead = key[max(0, how.offset + queries.start + 1) :] > place
    return scores, ones[..., :seen], distance.flatten(-2)[..., :seen], ahead


def _hide(table: Tensor, ahead: Tensor) -> Tensor:
    """The table of a block with 0, not NaN, for the keys that lie ahead of a query."""
    table[..., table.shape[-1] - ahead.shape[-1] :].masked_fill_(ahead, 0.0)
    return table


def _weigh(weights: Tensor, rows: Tensor) -> Tensor:
    """As `reference.weigh`; it looks at the result first, which is finite as a rule."""
    result = weights @ rows
    return result if result.is_cuda or math.isfinite(result.sum()) else weigh(weights, rows)


def _exp(logits: Tensor, kept: Tensor) -> Tensor:
    """Weights in place of logits; 0 where `kept` is.

    On many CPUs exp takes up to a hundred times as long where its result is 0 or next to it. So
    what would be that small is raised to e**-80, of which not even thousands would be seen.
    """
    return logits.clamp_(LEAST, -LEAST).exp_().mul_(kept)


def _triangle(like: Tensor) -> Tensor:
    return like.new_ones(LEAF, LEAF).tril()


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
    rows = _rows(q, k, v, gate, start, stop, how)
    out = torch.empty_like(rows.q)
    lse = rows.q.new_empty(rows.q.shape[:-1])
    kept = lse.new_zeros(lse.shape, dtype=torch.int32)
    triangle = _triangle(rows.q)
    for chunk, queries, seen in _blocks(len(rows.q), q.shape[-2], k.shape[-2], how.offset):
        if seen == 0:
            out[chunk, queries], lse[chunk, queries] = 0.0, float("-inf")
            continue
        logits, ones, distance, ahead = _score(rows, chunk, queries, seen, how, triangle)
        kept[chunk, queries] = (distance[..., 0] + 1).to(torch.int32)
        logits.addcmul_(distance, rows.gate[chunk, queries])
        peak = torch.where(ones > 0, logits, float("-inf")).amax(-1, keepdim=True)
        peak.masked_fill_(peak == float("-inf"), 0.0)
        weights = _hide(_exp(logits.sub_(peak), ones), ahead)
        total = weights.sum(-1, keepdim=True)
        lse[chunk, queries] = (total.log() + peak).squeeze(-1)
        weighed = _weigh(weights, rows.v[chunk, :seen])
        out[chunk, queries] = weighed.div_(total.masked_fill_(total == 0, 1.0))
    shape = q.shape[:-1]
    kept = kept.view(shape)
    return out.view(q.shape).to(q.dtype), lse.view(shape), kept, torch.zeros_like(kept)


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
    """As `reference.backward`."""
    rows = _rows(q, k, v, gate, start, stop, how)
    above = _blank(d_out, how.offset, None, stop).to(rows.q.dtype).flatten(0, 1)
    # what the softmax takes off every entry of a row: sum_j p_ij dp_ij, less the lse's own share
    offset = (above * out.to(above.dtype).flatten(0, 1)).sum(-1, keepdim=True)
    if d_lse is not None:
        d_sums = _blank(d_lse, how.offset, None, stop)
        offset -= d_sums.to(above.dtype).flatten(0, 1).unsqueeze(-1)
    sums = lse.to(above.dtype).flatten(0, 1).unsqueeze(-1)
    sums = sums.masked_fill(sums == float("-inf"), 0.0)  # of a row without a kept key: all is 0
    dq, d_gate = torch.zeros_like(rows.q), torch.zeros_like(rows.gate)
    dk, dv = torch.zeros_like(rows.k), torch.zeros_like(rows.v)
    # a kept value that is not finite has made NaN of `out`, and so of `offset`
    values = rows.v.nan_to_num(0.0, 0.0, 0.0)
    triangle = _triangle(rows.q)
    for chunk, queries, seen in _blocks(len(rows.q), q.shape[-2], k.shape[-2], how.offset):
        if seen == 0:
            continue
        logits, ones, distance, ahead = _score(rows, chunk, queries, seen, how, triangle)
        logits.addcmul_(distance, rows.gate[chunk, queries]).sub_(sums[chunk, queries])
        weights = _hide(_exp(logits, ones), ahead)
        below = above[chunk, queries]
        dv[chunk, :seen] += _weigh(weights.mT, below)
        d_logits = below @ values[chunk, :seen].mT
        _hide(d_logits.sub_(offset[chunk, queries]).mul_(weights), ahead)
        d_gate[chunk, queries] = (d_logits * distance).sum(-1, keepdim=True)
        dq[chunk, queries] = _weigh(d_logits, rows.k[chunk, :seen])
        dk[chunk, :seen] += _weigh(d_logits.mT, rows.q[chunk, queries])
    heads, groups = q.shape[:2], q.shape[1] // k.shape[1]
    dk, dv = (t.unflatten(0, (*k.shape[:2], groups)).sum(2) for t in (dk.mul_(how.scale), dv))
    return (
        dq.mul_(how.scale).unflatten(0, heads).to(q.dtype),
        dk.to(k.dtype),
        dv.to(v.dtype),
        d_gate.view(gate.shape).to(gate.dtype),
    )
