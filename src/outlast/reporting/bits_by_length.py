"""Bits per byte by the length of the context, a panel for each part; and by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from outlast.reporting.groups import Group
from outlast.reporting.hover import HoverFigure
from outlast.reporting.measure_by_length import Pick, Points, lengths, measure_figure
from outlast.reporting.panels import Form, Key
from outlast.reporting.style import INK
from outlast.reporting.summary import ArmSummary
from outlast.runs.records import ALL

UNIT = "bits per byte"


def bits_figure(arms: Sequence[ArmSummary], parts: Sequence[str], form: Form) -> HoverFigure | None:
    """Bits per byte of some parts by length. None if nothing was measured."""
    picks = [Pick("" if part == ALL else part, _by_length(part), UNIT) for part in parts]
    return _with_zlib(arms, picks, form, "length of the context")


def position_figure(arms: Sequence[ArmSummary], form: Form) -> HoverFigure | None:
    """Bits per byte by position, in the longest test of each arm."""
    return _with_zlib(arms, [Pick("", _by_position, UNIT)], form, "tokens seen")


def _by_length(part: str) -> Callable[[ArmSummary], Points]:
    def points(arm: ArmSummary) -> Points:
        rungs = arm.ladders[0].rungs if arm.ladders else ()
        return [(rung.multiple, rung.bits[part]) for rung in rungs if part in rung.bits]

    return points


def _by_position(arm: ArmSummary) -> Points:
    rungs = [rung for ladder in arm.ladders[:1] for rung in ladder.rungs if rung.positions]
    length = arm.run.record.length if arm.run else 1
    longest = rungs[-1].positions if rungs else {}
    return [(int(last) / length, measure) for last, measure in longest.items() if int(last) >= 4]


def _with_zlib(
    arms: Sequence[ArmSummary], picks: Sequence[Pick], form: Form, axis: str
) -> HoverFigure | None:
    """The figure, and what zlib takes: that is known for all bytes together."""
    if any(pick.title for pick in picks):
        return measure_figure(arms, picks, form, lengths(axis))
    keys = [_zlib_key()] if any(arm.zlib for arm in arms) else []
    return measure_figure(arms, picks, form, lengths(axis), keys, _draw_zlib)


def _draw_zlib(ax: Axes, group: Group) -> None:
    for level in {level for arm in group.arms if (level := arm.summary.zlib) is not None}:
        ax.axhline(level, color=INK, linewidth=1, linestyle=(0, (1, 2)), zorder=1.5)


def _zlib_key() -> Key:
    return Line2D([], [], color=INK, linewidth=1, linestyle=(0, (1, 2))), "zlib"
