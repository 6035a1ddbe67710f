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

from outlast.arguments import shown
from outlast.errors import bad_value
from outlast.kernels.tra.checks import check_dense


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
    _check(left, right, gate)
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


def _check(left: object, right: object, gate: object) -> None:
    """Refuse what is no two results for the queries of this gate."""
    check_dense("gate", gate)
    if not isinstance(gate, Tensor) or gate.dim() != 3 or not gate.is_floating_point():
        raise bad_value("gate", shown(gate), "floats (b, h, tq) as a tensor")
    for name, side in (("left", left), ("right", right)):
        if not isinstance(side, Parts):
            raise bad_value(name, shown(side), "Parts(out, lse, kept)")
        for field, tensor in side._asdict().items():
            check_dense(f"{name}.{field}", tensor, gate.device)
            axes = 3 + (field == "out")
            if tensor.dim() != axes or tensor.shape[:3] != gate.shape:
                expected = f"(b, h, tq{', d' * (field == 'out')}) for a gate {tuple(gate.shape)}"
                raise bad_value(f"{name}.{field}", f"shape {tuple(tensor.shape)}", expected)
            if tensor.is_floating_point() != (field != "kept") or tensor.is_complex():
                expected = "whole numbers" if field == "kept" else "floats"
                raise bad_value(f"{name}.{field}", tensor.dtype, expected)
    if left.out.shape != right.out.shape:  # type: ignore[attr-defined]
        wide, narrow = (tuple(side.out.shape) for side in (left, right))  # type: ignore[attr-defined]
        raise bad_value("right.out", f"shape {narrow}", f"the shape of left.out, {wide}")
