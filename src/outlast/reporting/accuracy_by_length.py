"""Accuracy by length: the figure at the top of the page, and one panel for each part."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from outlast.reporting.formatting import percent, short, times
from outlast.reporting.overlapping_curves import Curve, draw_curves
from outlast.reporting.panels import (
    Form,
    Group,
    Key,
    Sheet,
    StyledArm,
    chance_key,
    entitle,
    grouped,
    range_key,
    sheet,
)
from outlast.reporting.style import INK, MUTED, SHADE, drawing
from outlast.reporting.summary import ArmSummary, Ladder, multiples_of, variants_of

SAME = 0.004  # accuracies that cannot be told apart in a panel
Panel = tuple[Group, str | None, str, str]  # arms, variant, part, title


def accuracy_figure(arms: Sequence[ArmSummary], parts: Sequence[str], form: Form) -> Figure | None:
    """Exact accuracy of ``parts`` by length, every seed shown; None where nothing was tested."""
    panels = _panels(arms, parts)
    if not panels:
        return None
    chances = any(_chances(*panel[:3]) for panel in panels)
    extra: list[Key] = [range_key(), *([chance_key()] if chances else [])]
    page = sheet(form, [group for group, *_ in panels], extra, direct=True)
    with drawing():
        for ax, (group, variant, part, title) in zip(page.axes, panels, strict=True):
            _draw(ax, group, variant, part, multiples_of(arms), page)
            entitle(ax, title, 12 if page.direct else 8)
        _label_axes(page, [group for group, *_ in panels])
    return page.figure


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
                    panels.append((Group(group.title, drawn), variant, part, title))
    return panels


def _measured(arm: ArmSummary, variant: str | None, part: str) -> bool:
    ladder = arm.ladder(variant)
    return ladder is not None and any(mean is not None for mean in ladder.means(part))


def _part_title(group: Group, part: str) -> str:
    runs = [arm.summary.run for arm in group.arms]
    auxiliary = any(run and part in run.auxiliary for run in runs)
    return f"{part} (auxiliary)" if auxiliary else part


def _draw(
    ax: Axes, group: Group, variant: str | None, part: str, ladder_of: list[float], page: Sheet
) -> None:
    found = [(arm, arm.summary.ladder(variant)) for arm in group.arms]
    arms = [(arm, ladder) for arm, ladder in found if ladder]
    tested = sorted({r.multiple for _, own in arms for r in own.rungs if part in r.exact})
    small = len(page.axes) > 1 or page.form.columns == 1
    _length_axis(ax, ladder_of, tested, small)
    accuracy_axis(ax)
    trained = (ax.get_xlim()[0], 1.0)
    for chance in _chances(group, variant, part):  # a longer sequence may ask for more answers
        ax.plot(trained, [chance] * 2, color=INK, linewidth=1, linestyle=(0, (1, 2)), zorder=1.5)
    for arm, ladder in arms:
        _seeds(ax, arm, ladder, part)
    draw_curves(ax, [_mean(ax, arm, ladder, part) for arm, ladder in arms], SAME, clip=False)
    if page.direct:
        _names(ax, group, variant, part)
        _notes(ax, group, variant, part)


def _seeds(ax: Axes, arm: StyledArm, ladder: Ladder, part: str) -> None:
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
    """The mean over the seeds, its interval drawn."""
    found = [(r.multiple, r.exact[part].summary) for r in ladder.rungs if part in r.exact]
    banded = [(x, s.low, s.high) for x, s in found if s.low is not None and s.high is not None]
    if banded:
        xs, low, high = zip(*banded, strict=True)
        ax.fill_between(xs, low, high, color=arm.colour, alpha=0.14, linewidth=0, zorder=2)
    means = [(x, summary.mean) for x, summary in found]
    return Curve(arm, means, arm.weight, 2.6 + 1.5 * arm.weight)


def _names(ax: Axes, group: Group, variant: str | None, part: str) -> None:
    """Each arm's name at the end of its line, pushed apart where lines end together."""
    ends = []
    for arm in group.arms:
        ladder = arm.summary.ladder(variant)
        rungs = ladder.rungs if ladder else ()
        known = [r for r in rungs if part in r.exact]
        if known:
            early = known[-1].multiple < ax.get_xlim()[1] / 1.1
            name = short(arm.label, 28 if early else 36)
            name += f" (to {times(known[-1].multiple)})" if early else ""
            ends.append((known[-1].exact[part].summary.mean, arm, name))
    ends.sort(key=lambda end: end[0])
    placed = _spread([end for end, *_ in ends], 0.05)
    for (end, arm, name), y in zip(ends, placed, strict=True):
        ax.plot(
            [1.012, 1.035],
            [end, y],
            color=arm.colour,
            linewidth=0.8,
            clip_on=False,
            transform=ax.get_yaxis_transform(),
        )
        ax.text(
            1.043,
            y,
            name,
            color=arm.colour,
            va="center",
            fontsize=8.0,
            fontweight="bold",
            transform=ax.get_yaxis_transform(),
        )


def _spread(values: Sequence[float], gap: float) -> list[float]:
    """Ascending values moved as little as need be to stand ``gap`` apart within 0 and 1."""
    placed = [min(max(value, 0.0), 1.0) for value in values]
    for _ in range(60):
        for i in range(len(placed) - 1):
            short_by = gap - (placed[i + 1] - placed[i])
            if short_by > 1e-9:
                placed[i] -= short_by / 2
                placed[i + 1] += short_by / 2
    shift = max(0.0, placed[-1] - 1.0) if placed else 0.0
    return [value - shift for value in placed]


def _notes(ax: Axes, group: Group, variant: str | None, part: str) -> None:
    """Words on the plot itself: the training range and chance."""
    lengths = {arm.summary.run.length for arm in group.arms if arm.summary.run}
    text = f"trained up to {lengths.pop():g}" if len(lengths) == 1 else "trained lengths"
    ax.annotate(
        text,
        (1, 1),
        (-4, 3),
        xycoords=ax.get_xaxis_transform(),
        textcoords="offset points",
        ha="right",
        color=MUTED,
        fontsize=7.5,
    )
    for chance in _chances(group, variant, part)[:1]:
        ax.annotate(
            f"chance at {times(1)}: {'< 0.1' if 0 < chance < 0.001 else percent(chance)} %",
            (0, chance),
            (3, 3),
            xycoords=ax.get_yaxis_transform(),
            textcoords="offset points",
            color=MUTED,
            fontsize=7.5,
            zorder=5,
        )


def _chances(group: Group, variant: str | None, part: str) -> list[float]:
    """What guessing gives at the longest length trained on.

    Known for the version trained on alone: others ask more, or less.
    """
    if variant is not None:
        return []
    runs = [arm.summary.run for arm in group.arms]
    return sorted({run.chance[part] for run in runs if run and part in run.chance})


def accuracy_axis(ax: Axes) -> None:
    """0 to 100 %."""
    ax.set_ylim(-0.025, 1.025)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100 %"])
    ax.spines["left"].set_visible(False)


def _length_axis(ax: Axes, multiples: list[float], tested: list[float], small: bool) -> None:
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


def _label_axes(page: Sheet, groups: Sequence[Group]) -> None:
    """One sentence for the x axes, under the lowest panel of the first column."""
    runs = [arm.summary.run for group in groups for arm in group.arms]
    lengths = {run.length for run in runs if run}
    trained = f" ({lengths.pop():g})" if len(lengths) == 1 else ""
    text = f"test length, in multiples of the longest trained{trained}"
    under_last(page, text)


def under_last(page: Sheet, text: str) -> None:
    """What the x axes show, said once."""
    boxes = [ax.get_position() for ax in page.axes]
    first = page.axes[min(range(len(boxes)), key=lambda i: (round(boxes[i].y0, 4), boxes[i].x0))]
    first.annotate(
        text,
        (0, 0),
        (0, -26),
        xycoords="axes fraction",
        textcoords="offset points",
        color=MUTED,
        fontsize=8,
        annotation_clip=False,
    )
