"""Results over a range of keys, and how two of them become one.

The distance of a key in the left range grows by all that the right range keeps, so the left part's
log-sum-exp moves by ``gate * kept`` of the right part and the two then merge as softmax parts
always do. The merge is exact and associative: a cache split over programs, a sequence split over
devices, or a chunk at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Parts(NamedTuple):
    """Output (b, h, tq, d), log-sum-exp and number of kept keys (b, h, tq) over some keys.

    The log-sum-exp is of ``s + gate * (c - 1)``: the nearest kept key counts 0, so that it is
    finite for any gate; minus infinity where no key was kept.
    """

    out: Tensor
    lse: Tensor
    kept: Tensor


def merge(left: Parts, right: Parts, gate: Tensor) -> Parts:
    """The result over two neighbouring ranges of keys from the results over each.

    `gate` (b, h, tq) is that of the queries, which must be the same for both. An empty range is
    the neutral element: ``out`` 0, ``lse`` minus infinity, ``kept`` 0.
    """
    decay = torch.where(right.kept > 0, gate.to(left.lse.dtype) * right.kept, 0.0)
    moved = left.lse + decay
    nothing = float("-inf")
    empty = (moved == nothing) & (right.lse == nothing)
    # where neither range keeps a key the gradient of logaddexp is NaN: it does not see those rows
    pivot = torch.logaddexp(*(part.masked_fill(empty, 0.0) for part in (moved, right.lse)))
    lse = pivot.masked_fill(empty, nothing)
    shares = [(part - pivot).exp().unsqueeze(-1) for part in (moved, right.lse)]
    out = shares[0] * left.out.to(lse.dtype) + shares[1] * right.out.to(lse.dtype)
    return Parts(out.to(left.out.dtype), lse, left.kept + right.kept)
