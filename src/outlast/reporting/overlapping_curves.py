"""Lines and marks of the arms in one panel, so that none hides another.

Where arms lie on each other they share one line, striped in their colours, and their marks are the
sectors of one disc. What is drawn is the data itself: nothing is moved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path
from matplotlib.transforms import Affine2D

from outlast.reporting.panels import StyledArm
from outlast.reporting.style import PAPER

STRIPE = 4.0  # points; the length of one arm's dash
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, eq=False)
class Curve:
    """An arm's line: how wide it is, and how large its marks are; none if 0."""

    arm: StyledArm
    points: Points
    width: float
    mark: float = 0


def draw_curves(ax: Axes, curves: Sequence[Curve], near: float, clip: bool = True) -> None:
    """Each curve in its arm's colour; those no more than ``near`` apart share lines and marks."""
    pieces = {curve: list(pairwise(curve.points)) for curve in curves}
    for curve, sharing in _sharing(pieces, near).items():
        start = 0
        for sharers, run in groupby(sharing):
            stop = start + len(list(run))
            _line(ax, curve, sharers, curve.points[start : stop + 1], clip)
            start = stop
    marked = {curve: [(point,) for point in curve.points] for curve in curves if curve.mark}
    for curve, sharing in _sharing(marked, near).items():
        for sharers in dict.fromkeys(sharing):
            points = [p for p, s in zip(curve.points, sharing, strict=True) if s == sharers]
            _marks(ax, curve, sharers, points, clip)


def _sharing(
    places: Mapping[Curve, Sequence[Points]], near: float
) -> dict[Curve, list[tuple[Curve, ...]]]:
    """For each of a curve's places, which are points or pieces of a line, the curves there."""
    seen: dict[tuple[float, ...], list[tuple[Points, list[Curve]]]] = {}
    found: dict[Curve, list[list[Curve]]] = {}
    for curve, own in places.items():
        found[curve] = []
        for place in own:
            there = seen.setdefault(tuple(x for x, _ in place), [])
            sharers = next((s for other, s in there if _close(place, other, near)), None)
            if sharers is None:
                there.append((place, sharers := []))
            sharers.append(curve)
            found[curve].append(sharers)
    return {curve: [tuple(sharers) for sharers in own] for curve, own in found.items()}


def _close(some: Points, others: Points, near: float) -> bool:
    return all(abs(a - b) <= near for (_, a), (_, b) in zip(some, others, strict=True))


def _line(ax: Axes, curve: Curve, sharers: Sequence[Curve], points: Points, clip: bool) -> None:
    """The curve's line, or its dashes, which leave room for the others'."""
    rank, count, width = sharers.index(curve), len(sharers), sharers[0].width
    dash = STRIPE / width  # in widths of the line
    ax.plot(
        *zip(*points, strict=True),
        color=curve.arm.colour,
        linewidth=width,
        linestyle="solid" if count == 1 else (-rank % count * dash, (dash, (count - 1) * dash)),
        zorder=4,
        clip_on=clip,
    )


def _marks(ax: Axes, curve: Curve, sharers: Sequence[Curve], points: Points, clip: bool) -> None:
    """The curve's own marks, or its sectors of the discs it shares."""
    rank, count = sharers.index(curve), len(sharers)
    disc = sharers[0].mark + 0.5 * (count - 1)
    layers: list[tuple[Any, str, float]] = [(_sector(rank, count), curve.arm.colour, disc)]
    if count == 1:
        layers = [(curve.arm.marker, curve.arm.colour, curve.mark)]
    elif rank == 0:
        layers.insert(0, ("o", PAPER, disc + 1))
    for marker, colour, size in layers:
        ax.plot(
            *zip(*points, strict=True),
            color=colour,
            linestyle="none",
            marker=marker,
            markersize=size,
            markeredgecolor=PAPER,
            markeredgewidth=0.8 if count == 1 else 0,
            zorder=4.5,
            clip_on=clip,
        )


def _sector(rank: int, count: int) -> MarkerStyle:
    """One of ``count`` equal parts of a disc, clockwise from the top."""
    turns = [(rank + step / 24) / count for step in range(25)]
    rim = [(math.sin(math.tau * turn), math.cos(math.tau * turn)) for turn in turns]
    size = max(abs(value) for point in rim for value in point)  # a mark is scaled to its extent
    return MarkerStyle(Path([(0, 0), *rim, (0, 0)], closed=True), transform=Affine2D().scale(size))
