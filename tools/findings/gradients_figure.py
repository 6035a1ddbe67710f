"""Gradients over training, from a table of analyses: a row of panels for each design.

A table holds arms that were analysed at different times, which no single study folder has.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from findings.seed_figure import save_small
from outlast.reporting.style import MARKERS, MUTED, PALETTE, drawing

#: the curve of each seed: its value by step
Curves = dict[str, dict[int, float]]

#: what the table calls a measure, and what stands above its panels
MEASURES = {
    "cosine": "attention and direct,\ncosine",
    "norm, attention over direct": "attention over direct,\nnorms",
    "attention to final": "attention to solution,\ncosine",
    "direct to final": "direct to solution,\ncosine",
}
RATIO = "norm, attention over direct"
#: inches: the width of the figure and the height of a row of panels
WIDTH, ROW = 9.6, 1.75


def draw_gradients(
    table: Path, designs: Sequence[str], ways: Sequence[str], labels: Sequence[str], target: Path
) -> None:
    """Draw the measures of the arms ``DESIGN-WAY``: a row for a design, a colour for a way."""
    if labels and len(labels) != len(ways):
        raise SystemExit(f"labels: expected {len(ways)}, one for each way, not {len(labels)}")
    curves = read_gradients(table, [f"{design}-{way}" for design in designs for way in ways])
    with drawing():
        figure = Figure(figsize=(WIDTH, ROW * len(designs) + 0.6), dpi=120, layout="constrained")
        grid = figure.subplots(len(designs), len(MEASURES), sharex=True, squeeze=False)
        for row, design in zip(grid, designs, strict=True):
            for ax, measure in zip(row, MEASURES, strict=True):
                for index, way in enumerate(ways):
                    _draw(ax, curves[f"{design}-{way}"][measure], index)
                _finish(ax, measure)
            row[0].set_ylabel(design)
        for ax, title in zip(grid[0], MEASURES.values(), strict=True):
            ax.set_title(title)
        figure.supxlabel("training step", fontsize=8, color=MUTED)
        lines = [Line2D([], [], color=PALETTE[i], marker=MARKERS[i]) for i in range(len(ways))]
        figure.legend(
            lines, labels or ways, loc="outside upper left", ncols=len(ways), frameon=False
        )
        save_small(figure, target)


def read_gradients(table: Path, arms: Sequence[str]) -> dict[str, dict[str, Curves]]:
    """The curves of each arm and measure, of all recurrent weights and the whole loss."""
    curves: dict[str, dict[str, Curves]] = {}
    with table.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["analysis"] == "gradients" and row["part"] == "all" and row["what"] in MEASURES:
                of_measure = curves.setdefault(row["arm"], {}).setdefault(row["what"], {})
                for name, cell in row.items():
                    if name.startswith("seed_") and cell:
                        of_measure.setdefault(name, {})[int(row["step"])] = float(cell)
    missing = [arm for arm in arms if set(curves.get(arm, ())) != set(MEASURES)]
    if missing:
        raise SystemExit(f"{table}: no gradients of {', '.join(missing)}")
    return curves


def mean_curve(curves: Curves) -> dict[int, float]:
    """The mean over seeds at the steps that most of them have: seeds switch at different steps."""
    steps = sorted({step for curve in curves.values() for step in curve})
    values = {step: [curve[step] for curve in curves.values() if step in curve] for step in steps}
    return {step: fmean(each) for step, each in values.items() if 2 * len(each) > len(curves)}


def _draw(ax: Axes, curves: Curves, index: int) -> None:
    """The seeds as thin lines, and their mean."""
    mean = mean_curve(curves)
    for curve in curves.values():
        steps = [step for step in curve if step in mean]
        ys = [curve[step] for step in steps]
        ax.plot(steps, ys, color=PALETTE[index], linewidth=0.5, alpha=0.3)
    ax.plot(
        list(mean), list(mean.values()), color=PALETTE[index], linewidth=1.8 - 0.2 * index,
        marker=MARKERS[index], markersize=2.5, zorder=3,
    )  # fmt: skip


def _finish(ax: Axes, measure: str) -> None:
    if measure == RATIO:
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(numticks=5))
        ax.yaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    elif measure == "cosine":
        ax.set_ylim(-1.05, 1.05)
        ax.set_yticks([-1, 0, 1])
    ax.axhline(1 if measure == RATIO else 0, color=MUTED, linewidth=0.6, zorder=1)
    ax.set_xticks([0, 3000, 6000], ["0", "3,000", "6,000"])
