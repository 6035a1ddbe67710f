"""Statistics over seeds, against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from outlast.evaluation.statistics import (
    Cliff,
    cliff,
    effective_length,
    interquartile_mean,
    summarise,
)

NAN = math.nan


def test_summary_by_hand() -> None:
    summary = summarise([1.0, 0.8, 0.9, 0.1])
    assert summary.n == 4
    assert summary.mean == pytest.approx(0.7)
    assert summary.iqm == pytest.approx(0.85)  # 0.8 and 0.9: the lowest and highest are dropped
    assert summary.success == 0.5
    assert summary.low is not None
    assert summary.high is not None
    assert 0.1 <= summary.low < summary.mean < summary.high <= 1.0


def test_single_seed_has_no_interval() -> None:
    one = summarise([0.95])
    assert (one.mean, one.iqm, one.low, one.high, one.success) == (0.95, 0.95, None, None, 1.0)


def test_missing_values_are_left_out() -> None:
    summary = summarise([None, 0.5, NAN, 1.0])
    assert summary.values == (0.5, 1.0)
    assert summary.mean == 0.75
    empty = summarise([None, NAN])
    assert empty.n == 0
    assert math.isnan(empty.mean)
    assert empty.low is None


def test_value_at_the_level_is_a_success() -> None:
    assert summarise([0.9, 0.1 + 0.8, 0.8999], level=0.9).success == pytest.approx(2 / 3)
    assert summarise([0.5, 0.6], level=0.5).success == 1.0


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1, 2, 3], 2.0), ([1, 2, 3, 10], 2.5), ([0, 1, 2, 3, 4, 5, 6, 70], 3.5), ([7], 7.0)],
)
def test_interquartile_mean_drops_a_quarter_at_each_end(
    values: list[float], expected: float
) -> None:
    assert interquartile_mean(values) == expected


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([1.0, 0.95, 0.3, 0.95], 20),  # a recovery does not count
        ([0.8, 1.0, 1.0, 1.0], None),
        ([1.0, 1.0, 1.0, 0.9], 40),
        ([1.0, None, 0.95, 0.1], 30),
        ([NAN, NAN, None, None], None),
    ],
)
def test_effective_length_ends_at_the_first_fall(
    accuracies: list[float | None], expected: float | None
) -> None:
    assert effective_length([10, 20, 30, 40], accuracies, 0.9) == expected


def test_effective_length_needs_no_order_and_takes_the_worst_of_ties() -> None:
    assert effective_length([30, 10, 20], [0.2, 1.0, 1.0]) == 20
    assert effective_length([10, 20, 20], [1.0, 1.0, 0.2]) == 10


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([1.0, 0.9, 0.4, 0.3], Cliff(pytest.approx(0.5), 20, 30)),
        ([1.0, 0.5, 0.5, 0.0], Cliff(0.5, 10, 20)),  # of equals the first
        ([1.0, None, 0.25, NAN], Cliff(0.75, 10, 30)),
        ([0.5, 0.5, 0.6, 0.7], None),
        ([1.0, None, None, None], None),
    ],
)
def test_cliff_is_the_largest_fall(accuracies: list[float | None], expected: Cliff | None) -> None:
    assert cliff([10, 20, 30, 40], accuracies) == expected


def test_lengths_without_accuracies_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        effective_length([10, 20], [1.0])
