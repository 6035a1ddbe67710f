"""Curves of any measure over the length, a panel for each: the mean and the range of the seeds."""

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
#: by the multiple of the training length
Points = list[tuple[float, Measure]]


@dataclass(frozen=True)
class Pick:
    """A measure: the title of its panels, its points for an arm, and what a value is of."""

    title: str
    points: Callable[[ArmSummary], Points]
    unit: str = ""


def measure_figure(
    arms: Sequence[ArmSummary],
    picks: Sequence[Pick],
    form: Form,
    axis: str,
    keys: Sequence[Key] = (),
    decorate: Callable[[Axes, Group], None] = lambda ax, group: None,
) -> HoverFigure | None:
    """A panel for each group of arms and each measure. None if nothing was measured."""
    panels: list[tuple[Group, str, Pick]] = []
    for group in grouped(arms):
        for pick in picks:
            drawn = tuple(arm for arm in group.arms if pick.points(arm.summary))
            words = " · ".join(word for word in (group.title, pick.title) if word)
            if drawn:
                panels.append((Group(group.title, drawn), words, pick))
    if not panels:
        return None
    grid = panel_grid(form, [group for group, *_ in panels], [range_key(), *keys])
    multiples = sorted(
        {x for group, _, pick in panels for a in group.arms for x, _ in pick.points(a.summary)}
    )
    with drawing():
        for ax, (group, title, pick) in zip(grid.axes, panels, strict=True):
            _draw(ax, group, pick, multiples, len(panels) > 1 or form.columns == 1)
            decorate(ax, group)
            grid.set_title(ax, title)
        return grid.finish(f"{axis}, in multiples of the length trained on")


def _draw(ax: Axes, group: Group, pick: Pick, multiples: list[float], small: bool) -> None:
    tested = sorted({x for arm in group.arms for x, _ in pick.points(arm.summary)})
    length_axis(ax, multiples, tested, small)
    ax.spines["left"].set_visible(False)
    draw_curves(ax, [_curve(ax, arm, pick) for arm in group.arms], SAME)


def _curve(ax: Axes, arm: StyledArm, pick: Pick) -> Curve:
    """The mean over the seeds; the band from the worst to the best seed is drawn here."""
    points = pick.points(arm.summary)
    banded = [(x, m.summary.values) for x, m in points if m.summary.n > 1]
    if banded:
        low, high = [min(v) for _, v in banded], [max(v) for _, v in banded]
        xs = [x for x, _ in banded]
        ax.fill_between(xs, low, high, color=arm.colour, alpha=0.14, linewidth=0, zorder=2)
    hover = hover_figure(ax).hover_points
    for x, measure in points:
        label, place = arm.summary.label, times(round(x, 3))
        for seed, value in sorted(measure.seeds.items()):
            text = f"{value:.3f} {pick.unit}".rstrip()
            hover.append(HoverPoint(ax, x, value, label, seed, place, text))
    means = [(x, measure.summary.mean) for x, measure in points]
    return Curve(arm, means, arm.weight, 2.6 + 1.5 * arm.weight)
