"""What a handful of seeds says about an accuracy, and where along the lengths it breaks.

Pure numpy. A missing value (``None`` or NaN: a seed not run, a length that cannot be tested) is
left out, never counted as a failure. A single seed has no interval.

    >>> summarise([1.0, 0.98, 0.4, 1.0]).success
    0.75
    >>> effective_length([10, 20, 30, 40], [1.0, 0.95, 0.3, 0.95], level=0.9)
    20

The interval is the 95 % interval of Learned-Miller and Thomas (arXiv 1905.06208) for the mean of
values between 0 and 1. The lower end counts one more seed, with accuracy 0. All seeds get random
shares of the whole, and every split is equally likely (a flat Dirichlet distribution). The lower
end is the 2.5 % quantile of the mean under these shares. The upper end is the same with one more
seed at 1.

It was chosen because it covers. Seeds are few, often all equal to 1, and sometimes one of them
fails. A bootstrap or a t interval over four good seeds does not know that a fifth may fail: with
four seeds of which each fails with a chance of 0.2, both miss the true mean more often than four
times in ten. No distribution on [0, 1] is known for which this interval covers less than 95 %
(`tests/evaluation/test_interval.py`). If all values are 0 or 1, it is the Clopper-Pearson interval.

The price is width. The interval says what the number of seeds allows to say about any next seed,
and four seeds do not allow much: with 4 of 4 at 1.0 it is [0.40, 1], with 10 of 10 [0.69, 1].
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.9
TOLERANCE = 1e-9  # a mean of exact 0.9s may come out a rounding error short of 0.9
#: the share of the distribution beyond each end of an interval
TAIL = 0.025
#: a quantile is searched on so many places at once, so many times
PLACES, ROUNDS = 65, 3


@dataclass(frozen=True)
class Summary:
    """One quantity over seeds; ``low`` and ``high`` are None where no interval can be had."""

    values: tuple[float, ...]
    mean: float
    iqm: float
    low: float | None
    high: float | None
    success: float
    level: float

    @property
    def n(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Cliff:
    """The largest fall between neighbouring lengths: ``size`` from ``before`` to ``after``."""

    size: float
    before: float
    after: float


def summarise(values: Iterable[float | None], level: float = LEVEL) -> Summary:
    """Mean, interquartile mean, 95 % interval and success rate (share >= ``level``) over seeds.

    Values are accuracies from 0 to 1. The interval is that of the mean of any seeds, of which
    these are a sample. With no value at all the numbers are NaN and ``n`` is 0.
    """
    kept = tuple(float(value) for value in values if present(value))
    if not kept:
        return Summary((), math.nan, math.nan, None, None, math.nan, level)
    array = np.asarray(kept, dtype=np.float64)
    low, high = _interval(tuple(sorted(kept)))
    success = float(np.mean(array >= level - TOLERANCE))
    return Summary(kept, float(array.mean()), interquartile_mean(kept), low, high, success, level)


def summarise_bits(values: Iterable[float]) -> Summary:
    """Mean and interquartile mean of numbers that have no upper end: no interval, no success."""
    kept = tuple(map(float, values))
    return Summary(
        kept, float(np.mean(kept)), interquartile_mean(kept), None, None, math.nan, math.nan
    )


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean without the lowest and the highest quarter (rounded down: as in rliable)."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def effective_length(
    lengths: Sequence[float], accuracies: Sequence[float | None], level: float = LEVEL
) -> float | None:
    """The longest tested length up to which accuracy never falls under ``level``.

    None where the shortest tested length is already under it. A later recovery does not count.
    """
    reached: float | None = None
    for length, accuracy in _ladder(lengths, accuracies):
        if accuracy < level - TOLERANCE:
            break
        reached = length
    return reached


def cliff(lengths: Sequence[float], accuracies: Sequence[float | None]) -> Cliff | None:
    """The largest fall between neighbouring lengths (the first of equals); None if none falls."""
    ladder = _ladder(lengths, accuracies)
    best: Cliff | None = None
    for (before, high), (after, low) in pairwise(ladder):
        size = high - low
        if size > TOLERANCE and (best is None or size > best.size + TOLERANCE):
            best = Cliff(size, before, after)
    return best


def present(value: float | None) -> TypeGuard[float]:
    """Whether there is a number here: neither None nor NaN."""
    return value is not None and not math.isnan(value)


def _ladder(
    lengths: Sequence[float], accuracies: Sequence[float | None]
) -> list[tuple[float, float]]:
    """The measured (length, accuracy) pairs, short to long; of one length the worst comes first."""
    pairs = zip(lengths, accuracies, strict=True)
    return sorted((length, value) for length, value in pairs if present(value))


@lru_cache(maxsize=1024)
def _interval(values: tuple[float, ...]) -> tuple[float | None, float | None]:
    """The interval over sorted values."""
    if len(values) < 2:
        return None, None
    upper = _lower_end(sorted(1 - value for value in values))
    return _lower_end(values), 1 - upper


def _lower_end(values: Sequence[float]) -> float:
    """The quantile of the mean under random shares, with one more seed at 0."""
    knots = np.asarray([0.0, *values])
    low, high = float(knots.min()), float(knots.max())
    for _ in range(ROUNDS):
        places = np.linspace(low, high, PLACES)
        under = int(np.count_nonzero(_chance_above(knots, places) > 1 - TAIL))
        low, high = float(places[max(under - 1, 0)]), float(places[min(under, PLACES - 1)])
    return low


def _chance_above(knots: NDArray[np.float64], places: NDArray[np.float64]) -> NDArray[np.float64]:
    """The chance that the mean of sorted ``knots`` under random shares is above each place.

    The density of that mean is a B-spline on these knots. This is de Boor's recurrence for the
    chance: only averages are taken, so it is exact to rounding, with equal knots, too.
    """
    chances = (knots[:, None] > places).astype(np.float64)
    for span in range(1, len(knots)):
        left, right = knots[:-span, None], knots[span:, None]
        width = np.where(right > left, right - left, 1.0)
        share = np.clip((places - left) / width, 0.0, 1.0)
        chances = (1 - share) * chances[1:] + share * chances[:-1]
    return chances[0]
