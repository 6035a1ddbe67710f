"""A table that stands on a page as a picture: a panel for each column, a dot for each seed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from findings.page_table import Cell, PageTable
from findings.seed_figure import WIDTH
from outlast.evaluation.statistics import LEVEL
from outlast.reporting.seed_dots import heaped
from outlast.reporting.style import INK, MUTED, PALETTE, RULE, drawing

#: inches: the height of a line and of the margins
LINE, MARGIN = 0.32, 0.9
#: where seeds without a number are drawn, as a share of the axis
BEYOND = 1.07


def draw_table(table: PageTable, target: Path) -> None:
    """Draw all lines of a table. Numbers up to 1 are shares; larger ones are steps."""
    most = max(max(cell.seeds or cell.spread or (0.0,)) for row in table.cells for cell in row)
    # to a whole thousand
    limit = 1.0 if most <= 1 else 1000.0 * math.ceil(most / 1000)
    with drawing():
        size = (WIDTH, LINE * max(3, len(table.names)) + MARGIN)
        figure = Figure(figsize=size, dpi=160, layout="constrained")
        panels = figure.subplots(1, len(table.columns), sharey=True, squeeze=False)[0]
        for index, (ax, column) in enumerate(zip(panels, table.columns, strict=True)):
            _panel(ax, [row[index] for row in table.cells], limit)
            ax.set_title(column)
        panels[0].set_yticks(range(len(table.names)), table.names)
        panels[0].tick_params(axis="y", labelcolor=INK)
        if limit > 1:
            figure.supxlabel("training step", fontsize=7, color=MUTED)
        figure.savefig(target, metadata={"Software": None})


def _panel(ax: Axes, cells: list[Cell], limit: float) -> None:
    unfinished = any(cell.missing for cell in cells)
    ax.set_xlim(-0.03 * limit, (BEYOND + 0.03 if unfinished else 1.03) * limit)
    ax.set_ylim(len(cells) - 0.5, -0.5)
    ax.grid(visible=False)
    ax.spines["left"].set_visible(False)
    if limit == 1:
        ax.set_xticks([0, 0.5, 1], ["0", "50", "100 %"])
        if any(cell.seeds for cell in cells):  # a mean neither holds nor fails
            ax.axvline(LEVEL, color=MUTED, linewidth=0.7, linestyle=(0, (1, 2)), zorder=1)
    else:
        ticks = [limit * share for share in (0, 1 / 3, 2 / 3, 1)]
        ax.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
    for y, cell in enumerate(cells):
        ax.axhline(y, color=RULE, linewidth=0.6, zorder=0)
        if cell.spread is None:
            _seeds(ax, y, cell, limit)
        else:
            _spread(ax, y, *cell.spread)


def _seeds(ax: Axes, y: float, cell: Cell, limit: float) -> None:
    """The seeds, those without a number as rings, and how many hold or have one."""
    shares, above = heaped([seed / limit for seed in cell.seeds])
    dots: dict[str, Any] = {"ms": 3.4, "alpha": 0.75, "color": PALETTE[0], "clip_on": False}
    if shares:  # a plot of nothing would spoil the layout
        ax.plot([s * limit for s in shares], [y + up for up in above], "o", mew=0, **dots)
    if cell.missing:
        xs, above = heaped([BEYOND] * cell.missing)
        rings = dots | {"color": PALETTE[1], "mfc": "none"}
        ax.plot([x * limit for x in xs], [y + up for up in above], "o", mew=0.8, **rings)
    good = sum(s >= LEVEL for s in shares) if limit == 1 else len(shares)
    _beside(ax, y, f"{good}/{len(cell.seeds) + cell.missing}")


def _spread(ax: Axes, y: float, mean: float, low: float, high: float) -> None:
    """A bar from the worst seed to the best, and a dot at the mean."""
    bar: dict[str, Any] = {"linewidth": 3, "alpha": 0.35, "solid_capstyle": "butt", "zorder": 2}
    ax.plot([low, high], [y, y], color=PALETTE[0], **bar)
    ax.plot([mean], [y], "o", ms=4.2, mew=0, color=PALETTE[0], zorder=3)
    _beside(ax, y, f"{mean:.2f}")


def _beside(ax: Axes, y: float, text: str) -> None:
    ax.text(1.02, y, text, transform=ax.get_yaxis_transform(), va="center", color=MUTED, fontsize=7)
