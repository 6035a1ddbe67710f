"""The 95 % interval over few seeds: values known exactly, and how often it covers the mean."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from outlast.evaluation.statistics import summarise

Values = NDArray[np.float64]
Ends = tuple[float, float]
#: how many samples of seeds are drawn from each distribution; 95 % of them is known to within 0.03
SAMPLES = 250
FEW = (3, 4, 5, 10)


def ends(values: Values) -> Ends:
    summary = summarise(values.tolist())
    assert summary.low is not None
    assert summary.high is not None
    return summary.low, summary.high


def percentile_bootstrap(values: Values) -> Ends:
    """What it was before: it covers too rarely, and the tests below must see that."""
    chosen = np.random.default_rng(0).integers(len(values), size=(1000, len(values)))
    low, high = np.percentile(values[chosen].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


# ---- values known exactly ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        # the Clopper-Pearson interval, from a table
        ([0.0, 1.0] * 5, 0.187086, 0.812914),
        ([1.0] * 9 + [0.0], 0.554984, 0.997471),
        # all right: the chance of that is p ** n
        ([1.0] * 4, 0.025 ** (1 / 4), 1.0),
        ([1.0] * 10, 0.025 ** (1 / 10), 1.0),
        ([0.0] * 4, 0.0, 1 - 0.025 ** (1 / 4)),
        # equal seeds, and one more at 0 or at 1
        ([0.3] * 3, 0.3 * 0.025 ** (1 / 3), 1 - 0.7 * 0.025 ** (1 / 3)),
    ],
)
def test_interval_is_the_one_known_exactly(values: list[float], low: float, high: float) -> None:
    assert ends(np.array(values)) == (pytest.approx(low, abs=1e-5), pytest.approx(high, abs=1e-5))


def test_interval_is_the_quantile_of_random_shares() -> None:
    """Against draws from the definition."""
    values = np.array([0.2, 0.55, 0.55, 0.9, 0.97])
    shares = np.random.default_rng(0).dirichlet(np.ones(6), 400_000)
    means = shares[:, :5] @ values
    expected = np.quantile(means, 0.025), np.quantile(means + shares[:, 5], 0.975)
    assert ends(values) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("n", [2, 3, 7, 40])
def test_interval_holds_the_mean_and_ignores_the_order(n: int) -> None:
    values = np.random.default_rng(n).random(n)
    low, high = ends(values)
    assert 0 < low < values.mean() < high < 1
    assert ends(values[::-1]) == (low, high)
    assert ends(1 - values) == pytest.approx((1 - high, 1 - low), abs=1e-5)


# ---- how often it covers -------------------------------------------------------------------------

Draw = Callable[[np.random.Generator, tuple[int, int]], Values]


def some_fail(low: float, success: float, jitter: float = 0.0) -> Draw:
    """Seeds that are right, apart from those that fail and have `low`."""

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Values:
        values = np.where(rng.random(shape) < success, 1.0, low)
        return np.clip(values - jitter * np.abs(rng.normal(size=shape)), 0, 1)

    return draw


DISTRIBUTIONS: dict[str, Draw] = {
    "about .9": lambda rng, shape: np.clip(rng.normal(0.9, 0.03, shape), 0, 1),
    "about .9, wide": lambda rng, shape: np.clip(rng.normal(0.9, 0.1, shape), 0, 1),
    "beta(20, 2)": lambda rng, shape: rng.beta(20, 2, shape),
    "beta(1, 5)": lambda rng, shape: rng.beta(1, 5, shape),
    "uniform": lambda rng, shape: rng.random(shape),
    "one of five fails": some_fail(0.3, 0.8),
    "one of five fails, the others differ": some_fail(0.3, 0.8, 0.02),
    "one of twenty fails": some_fail(0.3, 0.95),
}


def coverage(draw: Draw, n: int, interval: Callable[[Values], Ends]) -> float:
    """The share of samples of n seeds whose interval holds the mean of the distribution."""
    rng = np.random.default_rng(n)
    mean = float(draw(rng, (200_000, 1)).mean())
    intervals = [interval(values) for values in draw(rng, (SAMPLES, n))]
    return float(np.mean([low <= mean <= high for low, high in intervals]))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_interval_covers_the_mean(name: str) -> None:
    covered = {n: coverage(DISTRIBUTIONS[name], n, ends) for n in FEW}
    assert min(covered.values()) >= 0.93, covered


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_percentile_bootstrap_would_not_pass(name: str) -> None:
    assert coverage(DISTRIBUTIONS[name], 4, percentile_bootstrap) < 0.93


def exact_coverage(n: int, low: float, success: float) -> float:
    """The coverage if a seed is right with chance `success` and else has `low`: no draws."""
    mean, total = success + (1 - success) * low, 0.0
    for right in range(n + 1):
        bottom, top = ends(np.array([low] * (n - right) + [1.0] * right))
        if bottom <= mean <= top:
            total += math.comb(n, right) * success**right * (1 - success) ** (n - right)
    return total


@pytest.mark.parametrize("low", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_interval_covers_whatever_share_of_seeds_fails(n: int, low: float) -> None:
    covered = {p / 40: exact_coverage(n, low, p / 40) for p in range(1, 40)}
    assert min(covered.values()) >= 0.95, covered
