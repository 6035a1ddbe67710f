"""Bits per byte by the length of the context, a panel for each part; and by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from outlast.reporting.accuracy_by_length import length_axis
from outlast.reporting.formatting import times
from outlast.reporting.groups import Group, StyledArm, grouped
from outlast.reporting.hover import HoverFigure, HoverPoint, hover_figure
from outlast.reporting.overlapping_curves import Curve, draw_curves
from outlast.reporting.panels import Form, Key, panel_grid, range_key
from outlast.reporting.style import INK, drawing
from outlast.reporting.summary import ArmSummary, Measure
from outlast.runs.records import ALL

SAME = 0.004  # bits that cannot be told apart in a panel
#: by the multiple of the training length
Points = list[tuple[float, Measure]]
Pick = Callable[[ArmSummary], Points]


def bits_figure(arms: Sequence[ArmSummary], parts: Sequence[str], form: Form) -> HoverFigure | None:
    """Bits per byte of some parts by length. None if nothing was measured."""
    picks = [("" if part == ALL else part, _by_length(part)) for part in parts]
    return _figure(arms, picks, form, "length of the context")


def position_figure(arms: Sequence[ArmSummary], form: Form) -> HoverFigure | None:
    """Bits per byte by position, in the longest test of each arm."""
    return _figure(arms, [("", _by_position)], form, "tokens seen")


def _by_length(part: str) -> Pick:
    def pick(arm: ArmSummary) -> Points:
        rungs = arm.ladders[0].rungs if arm.ladders else ()
        return [(rung.multiple, rung.bits[part]) for rung in rungs if part in rung.bits]

    return pick


def _by_position(arm: ArmSummary) -> Points:
    rungs = [rung for ladder in arm.ladders[:1] for rung in ladder.rungs if rung.positions]
    length = arm.run.record.length if arm.run else 1
    longest = rungs[-1].positions if rungs else {}
    return [(int(last) / length, measure) for last, measure in longest.items() if int(last) >= 4]


def _figure(
    arms: Sequence[ArmSummary], picks: Sequence[tuple[str, Pick]], form: Form, axis: str
) -> HoverFigure | None:
    panels: list[tuple[Group, str, Pick]] = []
    for group in grouped(arms):
        for title, pick in picks:
            drawn = tuple(arm for arm in group.arms if pick(arm.summary))
            words = " · ".join(word for word in (group.title, title) if word)
            if drawn:
                panels.append((Group(group.title, drawn), words, pick))
    if not panels:
        return None
    whole = all(title == "" for title, _ in picks)  # zlib is known for all bytes together
    zlib = [_zlib_key()] if whole and any(arm.zlib for arm in arms) else []
    grid = panel_grid(form, [group for group, *_ in panels], [range_key(), *zlib])
    multiples = sorted(
        {x for group, _, pick in panels for a in group.arms for x, _ in pick(a.summary)}
    )
    with drawing():
        for ax, (group, title, pick) in zip(grid.axes, panels, strict=True):
            _draw(ax, group, pick, multiples, len(panels) > 1 or form.columns == 1)
            if whole:
                _draw_zlib(ax, group)
            grid.set_title(ax, title)
        return grid.finish(f"{axis}, in multiples of the length trained on")


def _draw(ax: Axes, group: Group, pick: Pick, multiples: list[float], small: bool) -> None:
    tested = sorted({x for arm in group.arms for x, _ in pick(arm.summary)})
    length_axis(ax, multiples, tested, small)
    ax.spines["left"].set_visible(False)
    draw_curves(ax, [_curve(ax, arm, pick(arm.summary)) for arm in group.arms], SAME)


def _draw_zlib(ax: Axes, group: Group) -> None:
    for level in {level for arm in group.arms if (level := arm.summary.zlib) is not None}:
        ax.axhline(level, color=INK, linewidth=1, linestyle=(0, (1, 2)), zorder=1.5)


def _curve(ax: Axes, arm: StyledArm, points: Points) -> Curve:
    """The mean over the seeds; the band from the worst to the best seed is drawn here."""
    banded = [(x, m.summary.values) for x, m in points if m.summary.n > 1]
    if banded:
        low, high = [min(v) for _, v in banded], [max(v) for _, v in banded]
        xs = [x for x, _ in banded]
        ax.fill_between(xs, low, high, color=arm.colour, alpha=0.14, linewidth=0, zorder=2)
    hover = hover_figure(ax).hover_points
    for x, measure in points:
        label, place = arm.summary.label, times(round(x, 3))
        for seed, value in sorted(measure.seeds.items()):
            text = f"{value:.3f} bits per byte"
            hover.append(HoverPoint(ax, x, value, label, seed, place, text))
    means = [(x, measure.summary.mean) for x, measure in points]
    return Curve(arm, means, arm.weight, 2.6 + 1.5 * arm.weight)


def _zlib_key() -> Key:
    return Line2D([], [], color=INK, linewidth=1, linestyle=(0, (1, 2))), "zlib"
