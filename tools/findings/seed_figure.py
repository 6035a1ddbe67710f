"""Arms of a table as lines of dots, one dot for each seed, one panel for each length."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from findings.seed_table import Row
from outlast.evaluation.statistics import LEVEL
from outlast.reporting.seed_dots import heaped
from outlast.reporting.style import INK, MUTED, PALETTE, RULE, drawing

#: inches: the height of a line, of the margins, and the width of a picture
LINE, MARGIN, WIDTH = 0.22, 0.95, 7.2

#: what the axis shows, by part
SHARES = {
    "joint": "sequences entirely right",
    "state": "sequences with the right state",
    "recall": "sequences with every recall right",
}


def draw(
    rows: Sequence[Row],
    patterns: Sequence[str],
    times: Sequence[float],
    part: str,
    target: Path,
    labels: Sequence[str] = (),
) -> None:
    """Draw the arms that match, in the order of the patterns, under their names or `labels`."""
    arms = _matching(list(dict.fromkeys(row.arm for row in rows)), patterns)
    if labels and len(labels) != len(arms):
        raise SystemExit(f"labels: {len(labels)} for {len(arms)} arms; give one for each arm")
    tested = [row for row in rows if row.arm in arms and row.part == part and not row.variant]
    for multiple in times:
        if not any(row.times == multiple for row in tested):
            known = ", ".join(f"{t:g}" for t in sorted({row.times for row in tested}))
            raise SystemExit(f"times={multiple:g}, part={part}: expected one of {known or 'none'}")
    with drawing():
        figure = Figure(figsize=(WIDTH, LINE * len(arms) + MARGIN), dpi=180, layout="constrained")
        panels = figure.subplots(1, len(times), sharey=True, squeeze=False)[0]
        for ax, multiple in zip(panels, times, strict=True):
            shown = {row.arm: row for row in tested if row.times == multiple}
            _panel(ax, [shown.get(arm) for arm in arms], multiple)
        panels[0].set_yticks(range(len(arms)), labels or arms)
        panels[0].tick_params(axis="y", labelcolor=INK)
        shares = SHARES.get(part, f"sequences with {part} right")
        key = "dot: a seed, stroke: the mean, n/m: seeds right of the dotted line (90 %)"
        figure.supxlabel(f"share of {shares}; {key}", fontsize=7, color=MUTED)
        save_small(figure, target)


def save_small(figure: Figure, target: Path) -> None:
    """Write a figure of few colours: a palette makes the file a third as large."""
    drawn = BytesIO()
    figure.savefig(drawn)
    Image.open(drawn).convert("RGB").quantize(64).save(target, "PNG", optimize=True)


def _matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    chosen: list[str] = []
    for pattern in patterns:
        matching = fnmatch.filter(names, pattern)
        if not matching:
            raise SystemExit(f"arms={pattern}: expected one of {', '.join(names)}")
        chosen += [name for name in matching if name not in chosen]
    return chosen


def _panel(ax: Axes, rows: Sequence[Row | None], multiple: float) -> None:
    ax.set_xlim(-0.03, 1.03)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xticks([0, 0.5, 1], ["0", "50", "100 %"])
    ax.grid(visible=False)
    ax.spines["left"].set_visible(False)
    ax.set_title(f"{multiple:,g} x")
    ax.axvline(LEVEL, color=MUTED, linewidth=0.7, linestyle=(0, (1, 2)), zorder=1)
    for y, row in enumerate(rows):
        ax.axhline(y, color=RULE, linewidth=0.6, zorder=0)
        if row is not None:
            _dots(ax, y, row)


def _dots(ax: Axes, y: float, row: Row) -> None:
    """The seeds, a stroke at their mean, and how many of them hold."""
    xs, above = heaped(list(row.seeds.values()))
    ys = [y + up for up in above]
    ax.plot(xs, ys, "o", ms=3.4, mew=0, alpha=0.75, color=PALETTE[0], clip_on=False, zorder=3)
    ax.plot([sum(xs) / len(xs)] * 2, [y - 0.4, y + 0.4], color=INK, linewidth=1, zorder=4)
    holding = sum(share >= LEVEL for share in xs)
    text = f" {holding}/{len(xs)}"
    place = ax.get_yaxis_transform()
    ax.text(1.03, y, text, transform=place, va="center", color=MUTED, fontsize=7)
