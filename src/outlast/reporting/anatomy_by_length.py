"""Failure anatomy by length: of each arm's answers, how many are right, and why the others fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from outlast.reporting.causes import WORDS
from outlast.reporting.formatting import percent, times, wrapped
from outlast.reporting.hover import HoverColumn, HoverFigure, hover_figure
from outlast.reporting.panels import Form, fit_height, legend
from outlast.reporting.style import INK, PALETTE, RULE, drawing
from outlast.reporting.summary import ArmSummary
from outlast.runs.analyses import ANATOMY, AnatomyRow, age, anatomy_at_end

PANEL = 1.25  # inches: the height of a panel
COLOURS = {
    "right": RULE,
    "state": PALETTE[0],
    "unfocused": PALETTE[5],
    "key": PALETTE[1],
    "diluted": PALETTE[4],
    "value": PALETTE[3],
    "output": PALETTE[2],
    "no_attention": PALETTE[6],
    "unread": INK,
}
#: the causes from the bottom of a bar to its top, how they are named, and their colours
CAUSES = {cause: (words, COLOURS[cause]) for cause, words in WORDS.items()}


@dataclass(frozen=True)
class Shares:
    """The shares of the causes in one part of an arm: by multiple, the mean over seeds."""

    label: str
    part: str
    seeds: int
    by_multiple: dict[float, dict[str, float]]


def anatomy_figure(arms: Sequence[ArmSummary], form: Form) -> HoverFigure | None:
    """A stacked bar for each length, a panel for each part of each arm. None without tables."""
    shares = [each for arm in arms for each in anatomy_shares(arm)]
    return draw_shares(shares, form) if shares else None


def draw_shares(shares: Sequence[Shares], form: Form, columns: int | None = None) -> HoverFigure:
    """The figure of these shares, one or more; the form says how many panels are in a row."""
    parts = list(dict.fromkeys(each.part for each in shares))
    if columns is None:
        columns = min(len(shares), 1 if form.columns == 1 else _columns(len(parts)))
    rows = -(-len(shares) // columns)
    present = {cause for each in shares for bar in each.by_multiple.values() for cause in bar}
    with drawing():
        figure = HoverFigure(figsize=(form.width, 1), dpi=180)
        panels = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
        for ax, each in zip(panels, shares, strict=False):
            _draw(ax, each, int(12 * form.width / columns) - 4)
        for ax in panels[len(shares) :]:
            ax.set_axis_off()
        keys = [
            (Patch(facecolor=colour, edgecolor=INK, linewidth=0.3), words)
            for cause, (words, colour) in CAUSES.items()
            if cause in present
        ]
        legend(figure, keys, form.width, loc="outside upper left", borderaxespad=0.4)
        fit_height(figure, panels[0], PANEL)
    return figure


def anatomy_rows(arm: ArmSummary) -> list[AnatomyRow]:
    """The rows of an arm at the end of training; none without a table, or if it is left out."""
    if arm.run is None or ANATOMY in arm.run.damaged:
        return []
    return anatomy_at_end(arm.run.folder, CAUSES)


def anatomy_shares(arm: ArmSummary) -> list[Shares]:
    """What the anatomy of an arm says at the end of training, part by part."""
    rows = anatomy_rows(arm)
    seeds = len({row.seed for row in rows})
    by_part: dict[str, dict[float, dict[str, float]]] = {}
    for row in rows:
        bar = by_part.setdefault(row.part, {}).setdefault(row.multiple, {})
        if row.share:
            bar[row.cause] = bar.get(row.cause, 0.0) + row.share / seeds
    return [Shares(arm.label, part, seeds, bars) for part, bars in by_part.items()]


def anatomy_finding(arms: Sequence[ArmSummary]) -> str:
    """The most frequent cause of wrong answers of each arm, at the longest length."""
    sentences = []
    for arm in arms:
        for each in anatomy_shares(arm):
            multiple = max(each.by_multiple)
            wrong = {c: s for c, s in each.by_multiple[multiple].items() if c != "right"}
            if sum(wrong.values()) < 0.01:
                continue
            cause = max(wrong, key=lambda name: wrong[name])
            share = percent(sum(wrong.values()), 0)
            sentences.append(
                f"“{arm.label}”, {each.part}: {share} % wrong, most often {CAUSES[cause][0]}"
            )
    old = [
        f" “{arm.label}”: {words}."
        for arm in arms
        if arm.run and ANATOMY not in arm.run.damaged and (words := age(arm.run.folder, ANATOMY))
    ]
    if not sentences:
        return f"Nearly every answer is right at every length.{''.join(old)}"
    more = f"; and {len(sentences) - 5} more" if len(sentences) > 5 else ""
    return f"At the longest length: {'; '.join(sentences[:5])}{more}.{''.join(old)}"


def _columns(parts: int) -> int:
    """Panels of one arm stand side by side: two arms in a row if there are two parts."""
    return 4 if parts == 2 else max(1, min(3, parts))


def _draw(ax: Axes, shares: Shares, letters: int) -> None:
    multiples = sorted(shares.by_multiple)
    foot = [0.0] * len(multiples)
    for cause, (_, colour) in CAUSES.items():
        heights = [shares.by_multiple[m].get(cause, 0.0) for m in multiples]
        ax.bar(range(len(multiples)), heights, 0.8, foot, color=colour, linewidth=0)
        foot = [below + height for below, height in zip(foot, heights, strict=True)]
    ax.set_xticks(range(len(multiples)), [times(multiple) for multiple in multiples])
    ax.set_ylim(0, 1)
    ax.set_yticks([0, 0.5, 1], ["0", "50", "100 %"])
    ax.spines["left"].set_visible(False)
    ax.set_title(f"{wrapped(shares.label, letters, 2)}\n{shares.part}", fontsize=7)
    for index, multiple in enumerate(multiples):
        lines = [f"{shares.label}, {shares.part}, {times(multiple)}, mean of {shares.seeds} seeds"]
        lines += [
            f"{CAUSES[cause][0]}: {percent(share)} %"
            for cause, share in shares.by_multiple[multiple].items()
        ]
        hover_figure(ax).hover_columns.append(
            HoverColumn(ax, index - 0.5, index + 0.5, tuple(lines))
        )
