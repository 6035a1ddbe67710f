"""Values on hover: SVG titles over a figure's points. They need no script.

A drawing function says what stands at each point. When the figure is saved, invisible shapes with
titles are put over it. Points that lie on each other share a shape, and its title names them all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from outlast.reporting.formatting import numbered

REACH = 3.5  # points: the radius of a shape
NEAR = 2.5  # points nearer to each other than this share a shape
# "#" too: colours and references of the SVG are rewritten on the page, titles are not
ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "#": "&#35;"})


@dataclass(frozen=True)
class HoverPoint:
    """A value at a place of a panel. ``source`` is a seed, or words such as ``mean of 4 seeds``."""

    ax: Axes
    x: float
    y: float
    arm: str
    source: int | str
    place: str
    value: str
    #: whether y is a share of the panel's height
    y_in_panel: bool = False


@dataclass(frozen=True)
class HoverColumn:
    """The values of all lines of a panel between two x: a column of the panel's height."""

    ax: Axes
    left: float
    right: float
    lines: tuple[str, ...]


class HoverFigure(Figure):
    """A figure that knows which values stand where in its panels."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hover_points: list[HoverPoint] = []
        self.hover_columns: list[HoverColumn] = []

    def titles(self) -> str:
        """The shapes with their titles, as SVG. Points lie over columns."""
        shapes = [*(self._column(column) for column in self.hover_columns), *self._circles()]
        if not shapes:
            return ""
        body = "\n".join(shapes)
        return f'<g class="values" fill="none" pointer-events="all">\n{body}\n</g>\n'

    def _circles(self) -> list[str]:
        clusters: dict[Axes, list[tuple[float, float, list[HoverPoint]]]] = {}
        for point in self.hover_points:
            x, y = self._position(point)
            if not (math.isfinite(x) and math.isfinite(y)):
                continue
            of_panel = clusters.setdefault(point.ax, [])
            near = (c for c in of_panel if math.hypot(c[0] - x, c[1] - y) < NEAR)
            cluster = next(near, None)
            if cluster is None:
                of_panel.append(cluster := (x, y, []))
            cluster[2].append(point)
        return [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{REACH}">{_title(_lines(points))}</circle>'
            for of_panel in clusters.values()
            for x, y, points in of_panel
        ]

    def _column(self, column: HoverColumn) -> str:
        box = column.ax.get_window_extent()
        left, right = (
            column.ax.transData.transform((x, column.ax.get_ylim()[1]))[0]
            for x in (column.left, column.right)
        )
        x0, y0 = self._points_from_top(max(left, box.x0), box.y1)
        x1, y1 = self._points_from_top(min(right, box.x1), box.y0)
        size = f'width="{x1 - x0:.1f}" height="{y1 - y0:.1f}"'
        return f'<rect x="{x0:.1f}" y="{y0:.1f}" {size}>{_title(column.lines)}</rect>'

    def _position(self, point: HoverPoint) -> tuple[float, float]:
        ax = point.ax
        transform = ax.get_xaxis_transform() if point.y_in_panel else ax.transData
        return self._points_from_top(*transform.transform((point.x, point.y)))

    def _points_from_top(self, x: float, y: float) -> tuple[float, float]:
        """Pixels from the bottom as the SVG's points from the top."""
        scale = 72 / self.dpi
        return x * scale, (self.bbox.height - y) * scale


def hover_figure(ax: Axes) -> HoverFigure:
    """The figure of a panel."""
    figure = ax.get_figure(root=True)
    assert isinstance(figure, HoverFigure)
    return figure


def _lines(points: Sequence[HoverPoint]) -> list[str]:
    """A line for each value. Seeds of one arm that have the same value share it."""
    sources: dict[tuple[str, str, str, str], list[int]] = {}
    for p in points:
        words = p.source if isinstance(p.source, str) else ""
        seeds = sources.setdefault((p.arm, p.place, p.value, words), [])
        if isinstance(p.source, int):
            seeds.append(p.source)
    return [
        f"{arm}, {words or _seeds(seeds)}, {place}: {value}"
        for (arm, place, value, words), seeds in sources.items()
    ]


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) != 1)} {numbered(seeds)}"


def _title(lines: Sequence[str]) -> str:
    text = "\n".join(line.translate(ESCAPES) for line in lines)
    return f"<title>{text}</title>"
