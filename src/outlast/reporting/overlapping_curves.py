"""Lines and marks of the arms in one panel, drawn so that no arm hides another.

Arms that lie on each other share one line, striped in their colours. Their marks are the sectors of
one disc. Nothing is moved: every line stays at its data.
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

from outlast.reporting.groups import StyledArm
from outlast.reporting.style import PAPER

STRIPE = 4.0  # points; the length of one arm's dash
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, eq=False)
class Curve:
    """An arm's line, its width and the size of its marks (0: no marks)."""

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
    """For each place of a curve (a point, or a piece of its line): the curves that lie there."""
    clusters: dict[tuple[float, ...], list[tuple[Points, list[Curve]]]] = {}
    sharing: dict[Curve, list[list[Curve]]] = {}
    for curve, curve_places in places.items():
        sharing[curve] = []
        for place in curve_places:
            same_xs = clusters.setdefault(tuple(x for x, _ in place), [])
            sharers = next((s for other, s in same_xs if _close(place, other, near)), None)
            if sharers is None:
                same_xs.append((place, sharers := []))
            sharers.append(curve)
            sharing[curve].append(sharers)
    return {curve: [tuple(sharers) for sharers in lists] for curve, lists in sharing.items()}


def _close(one: Points, other: Points, near: float) -> bool:
    return all(abs(a - b) <= near for (_, a), (_, b) in zip(one, other, strict=True))


def _line(ax: Axes, curve: Curve, sharers: Sequence[Curve], points: Points, clip: bool) -> None:
    """The curve's line. If it is shared: its dashes, with gaps for those of the others."""
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
    """The curve's marks. If they are shared: its sectors of the discs."""
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
