"""What every back end is told beside the tensors."""

from __future__ import annotations

from typing import NamedTuple

#: a gate below this (in nats) already gives all the weight to the nearest kept key where the
#: scores are bounded; a finite number keeps minus infinity out of the arithmetic
BOUNDED_GATE, LOWEST_GATE = -256.0, -1e30
#: with scores this large a fixed pivot would leave the range of the data type
WIDEST_PIVOT, WIDEST_PIVOT_HALF = 40.0, 16.0


class Setting(NamedTuple):
    """The numbers of one call.

    `offset` is the position of the first query among the keys; `bound` is the largest size a
    score can have, or 0 where that is not known; `tolerance` is the share of a row's weight that
    may be left out, 0 for none; `sparse` asks for a look at every tile before its value matmul;
    `split` asks for the keys to be split over programs, for one query without gradients.
    """

    threshold: float
    scale: float
    offset: int
    bound: float = 0.0
    tolerance: float = 0.0
    sparse: bool = False
    split: bool = False
