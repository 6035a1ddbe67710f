"""What a handful of seeds says about an accuracy, and where along the lengths it breaks.

Pure numpy. A missing value (``None`` or NaN: a seed not run, a length that cannot be tested) is
left out, never counted as a failure. A single seed has no interval.

    >>> summarise([1.0, 0.98, 0.4, 1.0]).success
    0.75
    >>> effective_length([10, 20, 30, 40], [1.0, 0.95, 0.3, 0.95], level=0.9)
    20
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


def summarise(
    values: Iterable[float | None], level: float = LEVEL, n_boot: int = 10_000, seed: int = 0
) -> Summary:
    """Mean, interquartile mean, 95 % interval and success rate (share >= ``level``) over seeds.

    The interval is the percentile bootstrap of the mean over seeds; the same values always give
    the same interval. With no value at all the numbers are NaN and ``n`` is 0.
    """
    kept = tuple(float(value) for value in values if present(value))
    if not kept:
        return Summary((), math.nan, math.nan, None, None, math.nan, level)
    array = np.asarray(kept, dtype=np.float64)
    low, high = _interval(array, n_boot, seed)
    success = float(np.mean(array >= level - TOLERANCE))
    return Summary(kept, float(array.mean()), interquartile_mean(kept), low, high, success, level)


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


def _interval(
    values: NDArray[np.float64], n_boot: int, seed: int
) -> tuple[float | None, float | None]:
    if len(values) < 2:
        return None, None
    if np.all(values == values[0]):
        return float(values[0]), float(values[0])
    means = values[_resamples(len(values), n_boot, seed)].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


@lru_cache(maxsize=4)
def _resamples(n: int, n_boot: int, seed: int) -> NDArray[np.int64]:
    """Which seeds each resample draws; shared by every summary over the same number of seeds."""
    return np.random.default_rng(seed).integers(n, size=(n_boot, n))
