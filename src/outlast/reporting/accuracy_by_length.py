"""Accuracy by length: the figure at the top of the page, and one panel for each part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from outlast.reporting.formatting import in_rows, percent, times
from outlast.reporting.groups import Group, StyledArm, grouped
from outlast.reporting.hover import HoverFigure
from outlast.reporting.hover_values import accuracy_texts, add_accuracies
from outlast.reporting.overlapping_curves import Curve, draw_curves
from outlast.reporting.panels import Form, Key, chance_key, panel_grid, range_key
from outlast.reporting.style import INK, MUTED, SHADE, drawing
from outlast.reporting.summary import ArmSummary, Ladder, multiples_of, variants_of

SAME = 0.004  # accuracies that cannot be told apart in a panel
NAME_GAP = 0.048  # of the axis: what a row of a name takes
FEW = 4  # arms whose names may have four rows each beside a panel


@dataclass(frozen=True)
class Panel:
    """One version of the test and one part of it, with the arms that were measured there."""

    group: Group
    variant: str | None
    part: str
    title: str

    @property
    def ladders(self) -> list[tuple[StyledArm, Ladder]]:
        pairs = [(arm, arm.summary.ladder(self.variant)) for arm in self.group.arms]
        return [(arm, ladder) for arm, ladder in pairs if ladder]

    @property
    def lengths(self) -> set[float]:
        """The longest length that each arm was trained on."""
        return {arm.summary.run.record.length for arm in self.group.arms if arm.summary.run}

    @property
    def chances(self) -> list[float]:
        """What guessing gives at the longest length trained on.

        It is known only for the version of the test that was trained on.
        """
        if self.variant is not None:
            return []
        runs = [arm.summary.run for arm in self.group.arms]
        levels = [run.record.chance for run in runs if run]
        return sorted({chance[self.part] for chance in levels if self.part in chance})


def accuracy_figure(
    arms: Sequence[ArmSummary], parts: Sequence[str], form: Form
) -> HoverFigure | None:
    """Exact accuracy of ``parts`` by length, with every seed. None if nothing was tested."""
    panels = _panels(arms, parts)
    if not panels:
        return None
    extra: list[Key] = [range_key()]
    if any(panel.chances for panel in panels):
        extra.append(chance_key())
    grid = panel_grid(form, [panel.group for panel in panels], extra, direct=True)
    small = len(panels) > 1 or form.columns == 1
    with drawing():
        for ax, panel in zip(grid.axes, panels, strict=True):
            _draw(ax, panel, multiples_of(arms), small)
            _add_values(ax, panel)
            grid.set_title(ax, panel.title)
            if grid.direct:
                _name_arms(ax, panel, form.letters)
                _annotate(ax, panel)
        lengths = {length for panel in panels for length in panel.lengths}
        trained = f" ({lengths.pop():g})" if len(lengths) == 1 else ""
        return grid.finish(f"test length, in multiples of the longest trained{trained}")


def _panels(arms: Sequence[ArmSummary], parts: Sequence[str]) -> list[Panel]:
    variants = variants_of(arms)
    panels: list[Panel] = []
    for group in grouped(arms):
        for variant in variants:
            for part in parts:
                drawn = tuple(a for a in group.arms if _measured(a.summary, variant, part))
                words = [group.title, variant or ("plain" if len(variants) > 1 else "")]
                words.append(_part_title(group, part) if parts != ["joint"] else "")
                if drawn:
                    title = " · ".join(word for word in words if word)
                    panels.append(Panel(Group(group.title, drawn), variant, part, title))
    return panels


def _measured(arm: ArmSummary, variant: str | None, part: str) -> bool:
    ladder = arm.ladder(variant)
    return ladder is not None and any(mean is not None for mean in ladder.means(part))


def _part_title(group: Group, part: str) -> str:
    runs = [arm.summary.run for arm in group.arms]
    auxiliary = any(run and part in run.record.auxiliary for run in runs)
    return f"{part} (auxiliary)" if auxiliary else part


def _draw(ax: Axes, panel: Panel, multiples: list[float], small: bool) -> None:
    """One panel. ``multiples`` are the lengths of all panels: they share a scale."""
    rungs = [rung for _, ladder in panel.ladders for rung in ladder.rungs]
    tested = sorted({rung.multiple for rung in rungs if panel.part in rung.exact})
    length_axis(ax, multiples, tested, small)
    accuracy_axis(ax)
    trained = (ax.get_xlim()[0], 1.0)
    for chance in panel.chances:  # a longer sequence may ask for more answers
        ax.plot(trained, [chance] * 2, color=INK, linewidth=1, linestyle=(0, (1, 2)), zorder=1.5)
    for arm, ladder in panel.ladders:
        _draw_seeds(ax, arm, ladder, panel.part)
    means = [_mean(ax, arm, ladder, panel.part) for arm, ladder in panel.ladders]
    draw_curves(ax, means, SAME, clip=False)


def _add_values(ax: Axes, panel: Panel) -> None:
    """What each point says on hover."""
    for arm, ladder in panel.ladders:
        for rung in ladder.rungs:
            if measure := rung.exact.get(panel.part):
                x = rung.multiple
                texts = accuracy_texts(arm.summary, panel.variant, rung, panel.part)
                places = [(seed, x, share) for seed, share in sorted(measure.seeds.items())]
                mean = (x, measure.summary.mean)
                add_accuracies(ax, arm.summary.label, texts, places, mean)


def _draw_seeds(ax: Axes, arm: StyledArm, ladder: Ladder, part: str) -> None:
    xs = [rung.multiple for rung in ladder.rungs]
    seeds = sorted({s for r in ladder.rungs if part in r.exact for s in r.exact[part].seeds})
    if len(seeds) < 2:  # the mean is the seed
        return
    ys: list[float] = []
    for seed in seeds:  # one line with gaps for all of them: far fewer things to draw
        ys += [math.nan if y is None else y for y in ladder.of_seed(seed, part)] + [math.nan]
    ax.plot(
        [*xs, math.nan] * len(seeds),
        ys,
        color=arm.colour,
        linewidth=0.7,
        alpha=0.5,
        marker=".",
        markersize=3,
        zorder=3,
    )


def _mean(ax: Axes, arm: StyledArm, ladder: Ladder, part: str) -> Curve:
    """The mean over the seeds. The band from the worst to the best seed is drawn here.

    The 95 % interval of the mean is in the tables alone. Over few seeds it is so wide that bands
    of several arms would hide each other.
    """
    known = [(r.multiple, r.exact[part].summary) for r in ladder.rungs if part in r.exact]
    banded = [(x, min(s.values), max(s.values)) for x, s in known if s.n > 1]
    if banded:
        xs, low, high = zip(*banded, strict=True)
        ax.fill_between(xs, low, high, color=arm.colour, alpha=0.14, linewidth=0, zorder=2)
    means = [(x, summary.mean) for x, summary in known]
    return Curve(arm, means, arm.weight, 2.6 + 1.5 * arm.weight)


def _name_arms(ax: Axes, panel: Panel, letters: int) -> None:
    """Each arm's name at the end of its line, after a line and a mark of the arm's colour.

    Names of lines that end together are pushed apart. They are in ink: some of the colours are too
    pale for text.
    """
    ends = []
    for arm, ladder in panel.ladders:
        last = [rung for rung in ladder.rungs if panel.part in rung.exact][-1]
        early = last.multiple < ax.get_xlim()[1] / 1.1
        limit = f" (to {times(last.multiple)})" if early else ""
        ends.append((last.exact[panel.part].summary.mean, arm, limit))
    ends.sort(key=lambda end: end[0])
    names = in_rows([arm.label for _, arm, _ in ends], letters, 4 if len(ends) <= FEW else 2)
    rows = max(name.count("\n") + 1 for name in names)
    heights = _spread([end for end, *_ in ends], NAME_GAP * rows)
    beside = ax.get_yaxis_transform()  # x in widths of the panel
    for (end, arm, limit), name, height in zip(ends, names, heights, strict=True):
        leader = [1.012, 1.035], [end, height]
        ax.plot(
            *leader,
            color=arm.colour,
            linewidth=0.8,
            marker=arm.marker,
            markersize=4.5,
            markevery=[1],
            clip_on=False,
            transform=beside,
        )
        ax.text(
            1.046,
            height,
            name + limit,
            color=INK,
            va="center",
            fontsize=8.0,
            fontweight="bold",
            transform=beside,
        )


def _spread(values: Sequence[float], gap: float) -> list[float]:
    """Ascending values moved as little as need be to stand ``gap`` apart within 0 and 1."""
    heights = list(values)
    for _ in range(200):
        heights[0], heights[-1] = max(heights[0], 0.0), min(heights[-1], 1.0)
        for i in range(len(heights) - 1):
            short_by = gap - (heights[i + 1] - heights[i])
            if short_by > 1e-9:
                heights[i] -= short_by / 2
                heights[i + 1] += short_by / 2
    return heights


def _annotate(ax: Axes, panel: Panel) -> None:
    """Words on the plot itself: the training range and chance."""
    look: dict[str, Any] = {"textcoords": "offset points", "color": MUTED, "fontsize": 7.5}
    lengths = panel.lengths
    trained = f"trained up to {lengths.pop():g}" if len(lengths) == 1 else "trained lengths"
    ax.annotate(trained, (1, 1), (-4, 3), ax.get_xaxis_transform(), ha="right", **look)
    for chance in panel.chances[:1]:
        share = "< 0.1" if 0 < chance < 0.001 else percent(chance)
        text = f"chance at {times(1)}: {share} %"
        ax.annotate(text, (0, chance), (3, 3), ax.get_yaxis_transform(), zorder=5, **look)


def accuracy_axis(ax: Axes) -> None:
    """0 to 100 %."""
    ax.set_ylim(-0.025, 1.025)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100 %"])
    ax.spines["left"].set_visible(False)


def length_axis(ax: Axes, multiples: list[float], tested: list[float], small: bool) -> None:
    """Multiples of the training length: logarithmic once they span much; the range trained on.

    All panels have one scale, and each has ticks where its arms were tested.
    """
    low, high = min([*multiples, 1.0]), max([*multiples, 1.0])
    log = high / max(low, 1e-9) >= 8 and low > 0
    if log:
        ax.set_xscale("log")
        start, end = low / 1.5, high * 1.04
    else:
        start, end = 0.0, high * 1.015
    ax.set_xlim(start, end)
    ax.axvspan(start, 1.0, color=SHADE, linewidth=0, zorder=0)
    place = math.log if log else float
    room = (place(end) - place(max(start, 1e-9) if log else start)) * (0.1 if small else 0.05)
    ticks: list[float] = []
    for m in [m for m in (1.0, *tested[-1:]) if m in tested] + tested:
        if all(abs(place(m) - place(t)) >= room for t in ticks):
            ticks.append(m)
    ax.set_xticks(ticks, [times(m) for m in ticks])
    ax.set_xticks([], minor=True)
