"""Threshold Relative Attention (arXiv 2503.23174) with explicit scores: the truth.

A key is *kept* for a query if its score passes a hard threshold, and distance is counted over the
kept keys alone::

    s_ij = scale * q_i . k_j                for the keys j at or before query i
    kept_ij = s_ij > threshold              no gradient through the decision
    c_ij = number of kept l with j <= l <= i
    weights = softmax over the kept j of s_ij + gate_i * c_ij, exactly 0 elsewhere

Worked example: query 5 has the scores ``2 -1 3 -2 1`` over keys 1 to 5. Kept are 1, 3 and 5, with
the distances 3, 2 and 1, so the logits are ``2 + 3g, 3 + 2g, 1 + g`` for the gate g. With g = -1
they are ``-1, 1, 0`` and the weights 0.090, 0.665, 0.245. A query that keeps no key gives 0.

Distances are counted from 0 here (``c - 1``): a constant of the row changes no weight, and the
nearest kept key then stays finite under a gate of minus infinity, which gives it all the weight.

Shapes::

    q (b, h, tq, d); k, v (b, h / groups, tk, d); gate (b, h, tq), at most 0
    start, stop (b,)   the real keys of a row are start <= j < stop; None: all are
    out (b, h, tq, d); lse (b, h, tq), of the logits s + gate * (c - 1); kept (b, h, tq) int32

What is not finite reaches those alone that it concerns. A query that is not finite, or that sees
such a key, gives NaN. So does one that gives weight to such a value. All other queries, and the
gradients of keys and values that those queries do not see, are as if it were not there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outlast.kernels.tra.setting import Setting

Forward = tuple[Tensor, Tensor, Tensor, Tensor]
Backward = tuple[Tensor, Tensor, Tensor, Tensor]


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type that is computed in: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def visible(
    queries: int,
    keys: int,
    offset: int,
    start: Tensor | None,
    stop: Tensor | None,
    device: torch.device,
) -> Tensor:
    """Where a query may look, (1 or b, 1, tq, tk): real keys at or before it; none for padding."""
    place = torch.arange(queries, device=device)[:, None] + offset
    key = torch.arange(keys, device=device)
    allowed = (key <= place)[None, None]
    if start is not None and stop is not None:
        first, last = start.view(-1, 1, 1, 1), stop.view(-1, 1, 1, 1)
        allowed = allowed & (key >= first) & (place < last)
    return allowed


def weigh(weights: Tensor, rows: Tensor) -> Tensor:
    """weights @ rows, (..., m, n) by (..., n, d), in which a weight of 0 takes nothing of NaN.

    An entry that is not finite makes NaN of the results that give it a weight.
    """
    finite = rows.isfinite()
    spoiled = (weights != 0).to(rows.dtype) @ (~finite).to(rows.dtype) > 0
    return (weights @ rows.where(finite, 0.0)).masked_fill(spoiled, float("nan"))


def logits(
    q: Tensor,
    k: Tensor,
    gate: Tensor,
    start: Tensor | None,
    stop: Tensor | None,
    how: Setting,
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, which keys are kept, and their distances from 0; each (b, h, tq, tk).

    Logits are minus infinity for dropped keys. They are NaN where a query sees a score that is NaN.
    """
    computed = wide(q.dtype)
    queries, keys = q.to(computed), k.to(computed).repeat_interleave(q.shape[1] // k.shape[1], 1)
    # matmuls of finite numbers alone, so that their gradients are finite too
    scores = queries.where(queries.isfinite(), 0.0) @ keys.where(keys.isfinite(), 0.0).mT
    spoiled = ~queries.isfinite().all(-1)[..., None] | ~keys.isfinite().all(-1)[..., None, :]
    scores = (scores * how.scale).masked_fill(spoiled, float("nan"))
    allowed = visible(q.shape[-2], k.shape[-2], how.offset, start, stop, q.device)
    kept = (scores > how.threshold) & allowed
    distance = kept.flip(-1).cumsum(-1).flip(-1) - 1
    decay = torch.where(distance > 0, distance * gate.to(computed).unsqueeze(-1), 0.0)
    dropped = ~kept & ~(scores.isnan() & allowed)
    return (scores + decay).masked_fill(dropped, float("-inf")), kept, distance


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    start: Tensor | None,
    stop: Tensor | None,
    how: Setting,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, log-sum-exp and number of kept keys; autograd goes through it."""
    z, kept, _ = logits(q, k, gate, start, stop, how)
    dropped = z == float("-inf")
    empty = dropped.all(-1)
    z = z.masked_fill(empty.unsqueeze(-1), 0.0)
    weights = z.softmax(-1).masked_fill(dropped, 0.0)
    lse = z.logsumexp(-1).masked_fill(empty, float("-inf"))
    values = v.to(z.dtype).repeat_interleave(q.shape[1] // k.shape[1], 1)
    return weigh(weights, values).to(q.dtype), lse, kept.sum(-1, dtype=torch.int32)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    start: Tensor | None,
    stop: Tensor | None,
    how: Setting,
) -> Forward:
    """Output, log-sum-exp, kept keys, and how far left each row was read: to the first key."""
    out, lse, kept = attend(q, k, v, gate, start, stop, how)
    return out, lse, kept, torch.zeros_like(kept)


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
    """Gradients of q, k, v and gate, from the output and what the forward pass returned.

    `d_lse` is None where nothing depends on the log-sum-exp.
    """
    z, _, distance = logits(q, k, gate, start, stop, how)
    groups = q.shape[1] // k.shape[1]
    queries, keys, values, above, result = (t.to(z.dtype) for t in (q, k, v, d_out, out))
    keys, values = (t.repeat_interleave(groups, 1) for t in (keys, values))
    sums = lse.masked_fill(lse == float("-inf"), 0.0).unsqueeze(-1)
    weights = (z - sums).exp().masked_fill(z == float("-inf"), 0.0)
    through = above @ values.mT - (above * result).sum(-1, keepdim=True)
    if d_lse is not None:
        through = through + d_lse.unsqueeze(-1)
    d_logits = (weights * through).masked_fill(weights == 0, 0.0)
    dk, dv = (
        t.unflatten(1, (-1, groups)).sum(2)
        for t in (weigh(d_logits.mT, queries) * how.scale, weigh(weights.mT, above))
    )
    return (
        (weigh(d_logits, keys) * how.scale).to(q.dtype),
        dk.to(k.dtype),
        dv.to(v.dtype),
        (d_logits * distance).sum(-1).to(gate.dtype),
    )
