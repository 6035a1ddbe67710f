"""Gradients while training: how what flows through attention stands to the rest.

The four measures are of all recurrent weights and the loss that is trained: the cosine of the two
parts of the gradient, the ratio of their norms, and the cosine of each with the way to the final
weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from outlast.reporting.analysis_tables import table_of
from outlast.reporting.formatting import NONE, ends
from outlast.reporting.hover import HoverFigure
from outlast.reporting.learning_curves import Axis, Pick, steps_figure
from outlast.reporting.load import Run, Series
from outlast.reporting.panels import Form
from outlast.reporting.style import MUTED
from outlast.reporting.summary import ArmSummary
from outlast.reporting.tables import Cell, Table
from outlast.runs.analyses import Row

GRADIENTS = "gradients"
SAME = 0.008  # of a cosine, which cannot be told apart in a panel
LEAST_RATIO = 1e-3  # that a panel shows; one of 0 has no place on a logarithmic axis
COLUMNS = 8  # steps that the table has at most


def gradients_figure(arms: Sequence[ArmSummary], form: Form) -> HoverFigure | None:
    """The two parts of the gradient over the steps, a panel for each measure.

    None if no arm was analysed.
    """
    return steps_figure(arms, _picks(), form)


def gradients_table(arms: Sequence[ArmSummary]) -> Table | None:
    """Each measure at some steps: mean over seeds, lowest and highest seed. None without tables.

    Seeds that are still in phase 1 of a method have rows of their own, as attention adds nothing
    there yet. A cell of some of the seeds says of how many.
    """
    measured = [
        (arm, pick, series)
        for arm in arms
        for pick in _picks()
        if arm.run and (series := pick.series(arm.run))
    ]
    if not measured:
        return None
    shown = _spread(
        {step for *_, series in measured for curve in series.values() for step in curve}
    )
    rows = []
    for arm, pick, series in measured:
        for words, of_phase in _by_phase(series, _phases(arm)).items():
            cells = (_cell(of_phase, step, len(series), pick.axis) for step in shown)
            rows.append((Cell(arm.label, _solution(arm)), Cell(pick.title + words), *cells))
    return Table(("arm", "measure", *(f"step {step:,}" for step in shown)), tuple(rows), 2)


def _picks() -> list[Pick]:
    read: dict[Path, list[Row]] = {}  # of each folder, for all measures

    def rows(run: Run) -> list[Row]:
        if run.folder not in read:
            read[run.folder] = _rows_of_whole(run)
        return read[run.folder]

    def pick(title: str, value: Callable[[Row], float | None], axis: Axis) -> Pick:
        near = SAME if axis is _cosine_axis else 0
        return Pick(title, lambda run: _curves(rows(run), value), axis, near)

    return [
        pick("attention and direct, cosine", _number("cosine"), _cosine_axis),
        pick("attention over direct, norms", _ratio, _ratio_axis),
        pick("attention to solution, cosine", _number("attention_to_final"), _solution_axis),
        pick("direct to solution, cosine", _number("direct_to_final"), _solution_axis),
    ]


def _rows_of_whole(run: Run | None) -> list[Row]:
    """The rows of all recurrent weights and the whole loss."""
    table = table_of(run, GRADIENTS)
    rows = table.rows if table else []
    return [row for row in rows if row.get("layer") == "all" and row.get("part") == "all"]


def _curves(rows: Sequence[Row], value: Callable[[Row], float | None]) -> Series:
    """The curve of each seed, at the steps that most seeds were looked at."""
    curves: Series = {}
    for row in rows:
        number, step, seed = value(row), row.get("step"), row.get("seed")
        if number is not None and isinstance(step, int):
            curves.setdefault(int(seed or 0), {})[step] = number
    looks = Counter(step for curve in curves.values() for step in curve)
    return {
        seed: {step: number for step, number in curve.items() if 2 * looks[step] > len(curves)}
        for seed, curve in curves.items()
    }


def _phases(arm: ArmSummary) -> dict[tuple[int, int], int]:
    """The phase of each seed at each step, where a method of the arm has phases."""
    return {
        (int(row.get("seed") or 0), step): phase
        for row in _rows_of_whole(arm.run)
        if isinstance(step := row.get("step"), int) and isinstance(phase := row.get("phase"), int)
    }


def _by_phase(series: Series, phases: Mapping[tuple[int, int], int]) -> dict[str, Series]:
    """The curves of each phase, by what it adds to the title of a measure."""
    by_phase: dict[str, Series] = {}
    measured = [(seed, step) for seed, curve in series.items() for step in curve]
    for phase in sorted({phases.get(place, 0) for place in measured}):
        by_phase[f", phase {phase}" if phase else ""] = {
            seed: {step: x for step, x in curve.items() if phases.get((seed, step), 0) == phase}
            for seed, curve in series.items()
        }
    return by_phase


def _number(column: str) -> Callable[[Row], float | None]:
    def number(row: Row) -> float | None:
        value = row.get(column)
        return float(value) if isinstance(value, int | float) else None

    return number


def _ratio(row: Row) -> float | None:
    """The norm of the part through attention over that of the direct part."""
    attention, direct = _number("attention_norm")(row), _number("direct_norm")(row)
    return attention / direct if attention is not None and direct else None


def _solution(arm: ArmSummary) -> str:
    """Which run's last weights are the solution, if it is another run."""
    table = table_of(arm.run, GRADIENTS)
    toward = table.settings.get("toward") if table else None
    return f"(solution: {toward})" if toward else ""


def _spread(steps: set[int]) -> list[int]:
    """Some of the steps, evenly, the first and the last among them."""
    ordered = sorted(steps)
    if len(ordered) <= COLUMNS:
        return ordered
    return [ordered[round(i * (len(ordered) - 1) / (COLUMNS - 1))] for i in range(COLUMNS)]


def _cell(series: Series, step: int, seeds: int, axis: Axis) -> Cell:
    values = [curve[step] for curve in series.values() if step in curve]
    if not values:
        return Cell(NONE, tone="number")
    words = WORDS[axis]
    aside = f"{len(values)} of {seeds} seeds" if len(values) < seeds else ""
    return Cell(words(sum(values) / len(values)), ends(values, words), aside, tone="number")


def _cosine_words(value: float) -> str:
    """``−0.02``; a rounded 0 has no sign."""
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")


def _solution_words(value: float) -> str:
    """``−0.002``: in so many dimensions all cosines are small."""
    return f"{round(value, 3) + 0.0:.3f}".replace("-", "−")


def _ratio_words(value: float) -> str:
    """Two digits: ``0.21``, ``4.9``, ``25``."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _cosine_axis(ax: Axes) -> None:
    ax.set_ylim(-1.05, 1.05)
    ax.set_yticks([-1, 0, 1])
    ax.set_ylabel("cosine")
    _level(ax, 0)


def _solution_axis(ax: Axes) -> None:
    """Room for what there is, with 0 in the middle."""
    most = max(0.02, *(1.05 * abs(end) for end in ax.get_ylim()))
    ax.set_ylim(-most, most)
    ax.yaxis.set_major_locator(MaxNLocator(5, symmetric=True))
    ax.set_ylabel("cosine")
    _level(ax, 0)


def _ratio_axis(ax: Axes) -> None:
    ax.set_yscale("log", nonpositive="mask")
    low, high = ax.get_ylim()
    low, high = min(max(low, LEAST_RATIO), 0.5), max(high, 2)
    ax.set_ylim(low, high)
    subs = (1.0,) if high > 30 * low else (1.0, 2.0, 5.0)
    ax.yaxis.set_major_locator(LogLocator(subs=subs, numticks=6))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_ylabel("ratio of norms")
    _level(ax, 1)


def _level(ax: Axes, value: float) -> None:
    """A hair-line where the sign or the order changes."""
    ax.axhline(value, color=MUTED, linewidth=0.6, zorder=1)
    ax.spines["left"].set_visible(False)


#: how the numbers of a measure are written
WORDS: dict[Axis, Callable[[float], str]] = {
    _cosine_axis: _cosine_words,
    _solution_axis: _solution_words,
    _ratio_axis: _ratio_words,
}
