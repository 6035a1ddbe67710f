"""Learning curves: the loss of each part over the steps, and the quick probes at some lengths."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from outlast.reporting.accuracy_by_length import SAME, accuracy_axis
from outlast.reporting.formatting import times
from outlast.reporting.groups import Group, StyledArm, grouped
from outlast.reporting.hover import HoverFigure, HoverPoint, hover_figure
from outlast.reporting.hover_values import add_curves
from outlast.reporting.load import Run, Series
from outlast.reporting.overlapping_curves import Curve, draw_curves
from outlast.reporting.panels import Form, Key, panel_grid
from outlast.reporting.style import MUTED, drawing
from outlast.reporting.summary import ArmSummary
from outlast.runs.records import EventLine

POINTS = 160  # of one line; more cannot be told apart at a panel's width
Axis = Callable[[Axes], None]


@dataclass(frozen=True)
class Pick:
    """A measure over the steps: the title of its panels, its curves of a run, its vertical axis.

    Curves nearer than `near` are drawn striped.
    """

    title: str
    series: Callable[[Run], Series]
    axis: Axis
    near: float = 0


Panel = tuple[Group, str, Pick]


def loss_figure(arms: Sequence[ArmSummary], form: Form) -> HoverFigure | None:
    """Each part's loss over the steps, with a tick for each seed's switch."""
    runs = [arm.run for arm in arms if arm.run]
    parts = dict.fromkeys(part for run in runs for part in run.losses)
    return steps_figure(arms, [Pick(part, _loss_of(part), _loss_axis) for part in parts], form)


def probe_figure(arms: Sequence[ArmSummary], form: Form) -> HoverFigure | None:
    """The quick probes of joint accuracy over the steps, a panel for each length."""
    runs = [arm.run for arm in arms if arm.run]
    at = sorted({multiple for run in runs for multiple in run.probes})
    picks = [Pick(f"at {times(m)}", _probe_of(m), accuracy_axis, SAME) for m in at]
    return steps_figure(arms, picks, form)


def _loss_of(part: str) -> Callable[[Run], Series]:
    return lambda run: run.losses.get(part, {})


def _probe_of(multiple: float) -> Callable[[Run], Series]:
    return lambda run: run.probes.get(multiple, {})


def steps_figure(
    arms: Sequence[ArmSummary], picks: Sequence[Pick], form: Form
) -> HoverFigure | None:
    """A panel for each group of arms and each pick, over the steps. None if there is nothing."""
    panels = _panels(arms, picks)
    if not panels:
        return None
    switches = any(e.event == "switch" for arm in arms if arm.run for e in arm.run.events)
    grid = panel_grid(form, [group for group, *_ in panels], [_switch_key()] if switches else [])
    with drawing():
        for ax, (group, title, pick) in zip(grid.axes, panels, strict=True):
            runs = [(arm, arm.summary.run) for arm in group.arms if arm.summary.run]
            means = [_draw(ax, arm, run, pick.series(run)) for arm, run in runs]
            curves = {arm.summary.label: pick.series(run) for arm, run in runs}
            add_curves(ax, curves, "%" if pick.axis is accuracy_axis else "")
            draw_curves(ax, means, pick.near)
            grid.set_title(ax, title)
            pick.axis(ax)
            _step_axis(ax)
        return grid.finish("training step")


def _panels(arms: Sequence[ArmSummary], picks: Sequence[Pick]) -> list[Panel]:
    panels = []
    for group in grouped(arms):
        for pick in picks:
            drawn = tuple(a for a in group.arms if a.summary.run and pick.series(a.summary.run))
            if drawn:
                words = [word for word in (group.title, pick.title) if word]
                panels.append((Group(group.title, drawn), " · ".join(words), pick))
    return panels


def _draw(ax: Axes, arm: StyledArm, run: Run, series: Series) -> Curve:
    """The seeds' curves and their switches, drawn; their mean, to be drawn."""
    if len(series) > 1:
        thin = [_thinned(curve) for curve in series.values()]
        xs = [x for steps, _ in thin for x in [*steps, math.nan]]  # one line with gaps
        ys = [y for _, values in thin for y in [*values, math.nan]]
        ax.plot(xs, ys, color=arm.colour, linewidth=0.6, alpha=0.4, zorder=3)
    switches = [event for event in run.events if event.event == "switch"]
    failed = [event for event in switches if event.details.get("converged") is False]
    _ticks(ax, arm, [event.step for event in switches if event not in failed], "solid")
    _ticks(ax, arm, [event.step for event in failed], (0, (1, 1)))
    _add_switches(ax, arm, switches)
    mean = _mean(series)
    points = list(zip(*_thinned(mean), strict=True))
    return Curve(arm, points, 0.75 * arm.weight, 5 if len(mean) <= 12 else 0)


def _ticks(ax: Axes, arm: StyledArm, steps: list[int], style: Any) -> None:
    """A tick at the foot, and a hair-line to the top, at each of the steps."""
    if steps:
        foot = ax.get_xaxis_transform()
        ax.vlines(steps, 0, 0.08, arm.colour, style, linewidth=2, transform=foot, zorder=5)
        ax.vlines(steps, 0, 1, arm.colour, linewidth=0.5, alpha=0.25, transform=foot, zorder=2)


def _add_switches(ax: Axes, arm: StyledArm, switches: Sequence[EventLine]) -> None:
    """What the ticks at the foot say on hover."""
    points = hover_figure(ax).hover_points
    for event in switches:
        failed = event.details.get("converged") is False
        text = "switch to phase 2" + (", phase 1 not converged" if failed else "")
        label, place = arm.summary.label, f"step {event.step:,}"
        points.append(HoverPoint(ax, event.step, 0.04, label, event.seed, place, text, True))


def _mean(series: Series) -> dict[int, float]:
    """The mean over the seeds that have a finite value at a step."""
    steps = sorted({step for curve in series.values() for step in curve})
    means = {}
    for step in steps:
        known = [c[step] for c in series.values() if step in c and math.isfinite(c[step])]
        if known:
            means[step] = float(np.mean(known))
    return means


def _thinned(curve: dict[int, float]) -> tuple[list[float], list[float]]:
    """The curve in at most `POINTS` points, each the mean of its neighbours."""
    steps = sorted(curve)
    values = [curve[step] for step in steps]
    if len(steps) <= POINTS:
        return [float(step) for step in steps], values
    parts = np.array_split(np.arange(len(steps)), POINTS)
    xs, ys = np.asarray(steps, dtype=float), np.asarray(values)
    return [float(xs[part].mean()) for part in parts], [float(ys[part].mean()) for part in parts]


def _loss_axis(ax: Axes) -> None:
    ax.set_yscale("log", nonpositive="mask")
    low, high = ax.get_ylim()
    subs = (1.0,) if high > 30 * low else (1.0, 2.0, 5.0)
    ax.yaxis.set_major_locator(LogLocator(subs=subs, numticks=6))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.spines["left"].set_visible(False)


def _step_axis(ax: Axes) -> None:
    ax.set_xlim(left=0)
    ax.margins(x=0.01)
    ax.xaxis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 5, 10]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _switch_key() -> Key:
    tick = Line2D([], [], color=MUTED, marker="|", markersize=8, markeredgewidth=2, linewidth=0)
    return tick, "switch of one seed"
