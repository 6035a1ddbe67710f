"""The figure of `outlast bench seeds`: a step's time, throughput and memory against the seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from outlast.bench.timing import Row
from outlast.reporting.style import PALETTE, drawing, png
from outlast.runs.folder import write_bytes

SCALING = ("scaling", "bf16", "cpu")
#: the curves there may be, in the order of their colours
CURVES = ("float32", "bf16", "float32 on the CPU")
RATE = "seed-steps a second"


def draw(rows: Sequence[Row], path: Path, model: str = "") -> bool:
    """Time, throughput and memory of a model by the seeds, as PNG; False if no row has any."""
    lines = curves(rows)
    if not any(lines.values()):
        return False
    with drawing():
        figure = Figure(figsize=(7.2, 2.7), layout="constrained")
        panels: list[tuple[str, Callable[[Row], float | None]]] = [
            ("ms a step", lambda row: row.ms),
            (RATE, lambda row: 1e3 * seeds_of(row) / (row.ms or 1)),
            ("MiB at most", lambda row: row.mib),
        ]
        if not any(row.mib for row in rows):
            panels.pop()  # a CPU's is not measured
        for axes, (title, value) in zip(figure.subplots(1, len(panels)), panels, strict=True):
            _panel(axes, title, value, lines)
        names, labels = figure.axes[0].get_legend_handles_labels()
        legend = figure.legend(names, labels, loc="outside upper left", ncols=len(labels))
        legend.set_alignment("left")
        legend.set_title(model)
        write_bytes(path, png(figure))
    return True


def curves(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each curve, by its name: what ran on the CPU is a smaller model, and apart."""
    lines: dict[str, list[Row]] = {name: [] for name in CURVES}
    for row in rows:
        if row.section in SCALING and row.ms is not None:
            kind = "float32" if row.side == "auto" else row.side
            name = f"{kind} on the CPU" if row.section == "cpu" else kind
            lines.setdefault(name, []).append(row)
    return lines


def seeds_of(row: Row) -> int:
    """The number of seeds a row says."""
    return int(row.what.split()[0])


def _panel(
    axes: Axes, title: str, value: Callable[[Row], float | None], lines: dict[str, list[Row]]
) -> None:
    for colour, (name, rows) in zip(PALETTE, lines.items(), strict=False):
        points = sorted((seeds_of(row), y) for row in rows if (y := value(row)) is not None)
        if points:
            axes.loglog(*zip(*points, strict=True), marker="o", ms=3, color=colour, label=name)
    seeds = sorted({seeds_of(row) for rows in lines.values() for row in rows})
    axes.xaxis.set_major_locator(FixedLocator(seeds))
    if title == RATE:  # from nothing, so that it shows where more seeds bring no more
        axes.set_yscale("linear")
        axes.set_ylim(bottom=0)
    else:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.6g}"))
    axes.set_title(title)
    axes.set_xlabel("seeds at once")
