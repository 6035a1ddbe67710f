"""What the figures' points say on hover: arm, seed, length, value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.axes import Axes

from outlast.reporting.formatting import interval, percent, times
from outlast.reporting.hover import HoverColumn, HoverPoint, hover_figure
from outlast.reporting.load import Series
from outlast.reporting.summary import ArmSummary, Rung

COLUMNS = 40  # of a panel of learning curves; a mouse can hardly hit narrower ones


@dataclass(frozen=True)
class AccuracyTexts:
    """One length and part of an arm in words: each seed's share, and their mean."""

    place: str
    seeds: dict[int, str]
    mean: str


def accuracy_texts(
    arm: ArmSummary, variant: str | None, rung: Rung, part: str = "joint"
) -> AccuracyTexts:
    """The texts of a length at which the part was tested."""
    measure = rung.exact[part]
    nan_shares = arm.run.nan_shares if arm.run else {}
    seeds = {}
    for seed, share in measure.seeds.items():
        nan = nan_shares.get((seed, variant, rung.multiple))
        note = f" ({percent(nan)} % of answers NaN)" if nan else ""
        seeds[seed] = f"{percent(share)} %{note}"
    words = [f"{times(rung.multiple)} (length {rung.length:g})", variant or ""]
    words.append(part if part != "joint" else "")
    mean = f"{percent(measure.summary.mean)} % {interval(measure.summary)}".strip()
    return AccuracyTexts(", ".join(filter(None, words)), seeds, mean)


def add_accuracies(
    ax: Axes,
    label: str,
    texts: AccuracyTexts,
    seeds: Sequence[tuple[int, float, float]],
    mean: tuple[float, float],
) -> None:
    """Put the texts at the places (seed, x, y) of the seeds and at that of their mean."""
    points = hover_figure(ax).hover_points
    if len(seeds) > 1:
        source = f"mean of {len(seeds)} seeds"
        points.append(HoverPoint(ax, *mean, label, source, texts.place, texts.mean))
    for seed, x, y in seeds:
        points.append(HoverPoint(ax, x, y, label, seed, texts.place, texts.seeds[seed]))


def add_curves(ax: Axes, curves: Mapping[str, Series], unit: str) -> None:
    """Put the values of learning curves over a panel, a column for some of the steps.

    Args:
        ax: The panel.
        curves: The values of each arm, by its label.
        unit: ``%`` for shares, nothing for losses.
    """
    steps = sorted({step for series in curves.values() for c in series.values() for step in c})
    count = min(COLUMNS, len(steps))
    shown = [steps[round((i + 0.5) * len(steps) / count - 0.5)] for i in range(count)]
    edges = [(a + b) / 2 for a, b in pairwise(shown)]
    columns = hover_figure(ax).hover_columns
    for step, left, right in zip(shown, [0, *edges], [*edges, math.inf], strict=True):
        lines = [_values(label, series, step, unit) for label, series in curves.items()]
        values = tuple(line for line in lines if line)
        columns.append(HoverColumn(ax, left, right, (f"step {step:,}", *values)))


def _values(label: str, series: Series, step: int, unit: str) -> str:
    """``label: mean 0.012, seed 0 0.011, seed 1 0.013``, of the seeds that have a value there."""
    seeds = {seed: curve[step] for seed, curve in sorted(series.items()) if step in curve}
    if not seeds:
        return ""
    finite = [value for value in seeds.values() if math.isfinite(value)]
    words = [f"seed {seed}: {_number(value, unit)}" for seed, value in seeds.items()]
    if len(finite) > 1:
        words.insert(0, f"mean {_number(math.fsum(finite) / len(finite), unit)}")
    return f"{label}: " + ", ".join(words)


def _number(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return "not finite"
    return f"{percent(value)} %" if unit else f"{value:.3g}"
