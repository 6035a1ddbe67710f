"""Curves of any measure over the length or another number: the mean and the range of the seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from outlast.reporting.accuracy_by_length import length_axis
from outlast.reporting.formatting import times
from outlast.reporting.groups import Group, StyledArm, grouped
from outlast.reporting.hover import HoverFigure, HoverPoint, hover_figure
from outlast.reporting.overlapping_curves import Curve, draw_curves
from outlast.reporting.panels import Form, Key, panel_grid, range_key
from outlast.reporting.style import drawing
from outlast.reporting.summary import ArmSummary, Measure

SAME = 0.004  # of the measure, which cannot be told apart in a panel
DASHED = (0, (3, 2))
#: by the multiple of the training length, or by what else goes from left to right
Points = list[tuple[float, Measure]]


@dataclass(frozen=True)
class Pick:
    """A measure: the title of its panels, its points for an arm, and what a value is of.

    The means of what is `beside` it are drawn dashed.
    """

    title: str
    points: Callable[[ArmSummary], Points]
    unit: str = ""
    beside: Callable[[ArmSummary], Points] | None = None


@dataclass(frozen=True)
class Across:
    """What goes from left to right: its words, its axis, a place in words, entries of the key.

    `axis` gets the panel, the places of all panels, those of this panel, and whether it is small.
    """

    words: str
    axis: Callable[[Axes, list[float], list[float], bool], None]
    place: Callable[[float], str]
    keys: tuple[Key, ...] = ()


def lengths(words: str) -> Across:
    """Multiples of the training length; `words` say of what."""
    label = f"{words}, in multiples of the length trained on"
    return Across(label, length_axis, lambda multiple: times(round(multiple, 3)), (range_key(),))


def measure_figure(
    arms: Sequence[ArmSummary],
    picks: Sequence[Pick],
    form: Form,
    across: Across,
    keys: Sequence[Key] = (),
    decorate: Callable[[Axes, Group], None] = lambda ax, group: None,
) -> HoverFigure | None:
    """A panel for each group of arms and each measure. None if nothing was measured."""
    panels = [
        panel for group in grouped(arms) for pick in picks if (panel := _panel(group, pick)).points
    ]
    if not panels:
        return None
    grid = panel_grid(form, [panel.group for panel in panels], [*across.keys, *keys])
    places = sorted({x for panel in panels for x in panel.places})
    with drawing():
        for ax, panel in zip(grid.axes, panels, strict=True):
            across.axis(ax, places, panel.places, len(panels) > 1 or form.columns == 1)
            ax.spines["left"].set_visible(False)
            for arm in panel.group.arms:
                _draw_beside(ax, arm, panel.pick)
            curves = [
                _curve(ax, arm, points, panel.pick.unit, across)
                for arm, points in zip(panel.group.arms, panel.points, strict=True)
            ]
            draw_curves(ax, curves, SAME)
            decorate(ax, panel.group)
            grid.set_title(ax, panel.title)
        return grid.finish(across.words)


@dataclass(frozen=True)
class _Panel:
    """A measure of the arms of a group that have it; their points are read once."""

    group: Group
    pick: Pick
    points: tuple[Points, ...]

    @property
    def title(self) -> str:
        return " · ".join(word for word in (self.group.title, self.pick.title) if word)

    @property
    def places(self) -> list[float]:
        return sorted({x for points in self.points for x, _ in points})


def _panel(group: Group, pick: Pick) -> _Panel:
    measured = [(arm, points) for arm in group.arms if (points := pick.points(arm.summary))]
    arms = tuple(arm for arm, _ in measured)
    return _Panel(Group(group.title, arms), pick, tuple(points for _, points in measured))


def _draw_beside(ax: Axes, arm: StyledArm, pick: Pick) -> None:
    points = pick.beside(arm.summary) if pick.beside else []
    means = [(x, measure.summary.mean) for x, measure in points]
    if means:
        xs, ys = zip(*means, strict=True)
        ax.plot(xs, ys, color=arm.colour, linewidth=1.2, linestyle=DASHED, zorder=3)


def _curve(ax: Axes, arm: StyledArm, points: Points, unit: str, across: Across) -> Curve:
    """The mean over the seeds; the band from the worst to the best seed is drawn here."""
    banded = [(x, m.summary.values) for x, m in points if m.summary.n > 1]
    if banded:
        low, high = [min(v) for _, v in banded], [max(v) for _, v in banded]
        xs = [x for x, _ in banded]
        ax.fill_between(xs, low, high, color=arm.colour, alpha=0.14, linewidth=0, zorder=2)
    hover = hover_figure(ax).hover_points
    for x, measure in points:
        label, place = arm.summary.label, across.place(x)
        for seed, value in sorted(measure.seeds.items()):
            text = f"{value:.3f} {unit}".rstrip()
            hover.append(HoverPoint(ax, x, value, label, seed, place, text))
    means = [(x, measure.summary.mean) for x, measure in points]
    return Curve(arm, means, arm.weight, 2.6 + 1.5 * arm.weight)
