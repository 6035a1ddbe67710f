"""What a terminal shows of the table of an analysis: its main number, in a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from outlast.analysis.headlines import (
    DETAILS,
    HEADINGS,
    HEADLINES,
    Headline,
    Line,
    at_last_step,
    headline,
    over_steps,
    steps_of,
)
from outlast.cli import common
from outlast.cli.common import say
from outlast.cli.tables import Column, fitting_columns, show_table
from outlast.reporting.formatting import ends
from outlast.runs.analyses import Row

#: the most steps that stand side by side
MOST_STEPS = 6
#: the most lines of a table of details
MOST_LINES = 12
#: what joins a mean to the spread over seeds; the first that fits counts, and else there is none
JOINTS = (" ", "\n")


def show_analysis(name: str, rows: Sequence[Row], path: Path) -> None:
    """Print the main number of a table by length or step: the mean and the ends over seeds.

    Of several steps the last is shown by length, and all of them are at the shortest length.
    """
    wanted, steps = HEADLINES[name], steps_of(rows)
    lines = headline(wanted, rows)
    if not lines:
        if wanted.nothing:
            say(f"  {wanted.nothing}{_at_step(steps)}")
        return
    if wanted.by == "step":
        _show_lines(wanted, lines, f"{wanted.title}, by step", _seeds(rows), path)
        return
    last = at_last_step(rows)
    _show_lines(wanted, lines, f"{wanted.title}{_at_step(steps)}", _seeds(last), path)
    if len(steps) > 1:
        shortest, by_step = over_steps(wanted, rows)
        if by_step:
            title = f"{wanted.title} at {shortest:g} x, by step"
            _show_by_step(wanted, by_step, title, _seeds(rows), path)
    if name in DETAILS:
        _show_details(DETAILS[name], last, _at_step(steps), path)


def _show_details(wanted: Headline, rows: Sequence[Row], at_step: str, path: Path) -> None:
    """The table of single parts, each layer before its heads; if it is long, where to find it."""
    lines = headline(wanted, rows)
    layers = [line.names[0] for line in lines]
    lines.sort(key=lambda line: layers.index(line.names[0]))
    if len(lines) > MOST_LINES:
        say(f"\n{len(lines)} single layers and heads are in {path}; outlast report shows them")
    elif lines:
        say("")
        _show_lines(wanted, lines, f"{wanted.title}{at_step}", _seeds(rows), path)


def _show_by_step(
    wanted: Headline, lines: Sequence[Line], title: str, seeds: int, path: Path
) -> None:
    """The means alone, so that many steps fit."""
    say("")
    means = [
        Line(line.names, {place: [_mean(values)] for place, values in line.values.items()})
        for line in lines
    ]
    over = ", mean over seeds" if seeds > 1 else ""
    _show_lines(replace(wanted, by="step"), means, f"{title}{over}", 1, path)


def _show_lines(
    wanted: Headline, lines: Sequence[Line], title: str, seeds: int, path: Path
) -> None:
    """A table with a column for each length or step, and a line below it for what is left out."""
    places = sorted({place for line in lines for place in line.values})
    shown = _evenly(places, MOST_STEPS) if wanted.by == "step" else places
    has_spread = any(len(values) > 1 for line in lines for values in line.values.values())
    notes = []
    for joint in JOINTS if has_spread else ():
        columns, cells = _table(wanted, lines, shown, joint)
        if len(fitting_columns(columns, cells, common.console.width)) == len(columns):
            over = f", mean of {seeds} seeds [lowest, highest]"
            break
    else:
        columns, cells = _table(wanted, lines, shown, None)
        over = f", mean of {seeds} seeds" if seeds > 1 else ""
        if has_spread:
            width = common.console.width
            notes.append(f"(left out at {width} columns: the lowest and the highest seed)")
    show_table(columns, cells, f"{title}{over}")
    if len(shown) < len(places):
        notes.append(f"({len(shown)} of {len(places)} steps; all are in {path})")
    for note in notes:
        common.console.print(note, style="dim", markup=False, soft_wrap=True)


def _table(
    wanted: Headline, lines: Sequence[Line], places: Sequence[float], joint: str | None
) -> tuple[list[Column], list[list[str]]]:
    """Columns and cells; without a joint the cells have no spread."""
    columns = [Column(HEADINGS.get(name, name), "name") for name in wanted.names]
    for place in places:
        title = f"{place:,.0f}" if wanted.by == "step" else f"{place:g} x"
        columns.append(Column(title, "number", 1))
    cells = [
        [*line.names, *(_cell(line.values.get(place, []), joint) for place in places)]
        for line in lines
    ]
    return columns, cells


def _cell(values: Sequence[float], joint: str | None) -> str:
    if not values:
        return ""
    spread = "" if joint is None else ends(values, _words)
    return f"{_words(_mean(values))}{joint}{spread}" if spread else _words(_mean(values))


def _words(value: float) -> str:
    return f"{value:.3f}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _seeds(rows: Sequence[Row]) -> int:
    return len({row["seed"] for row in rows})


def _at_step(steps: Sequence[int]) -> str:
    """Of which step a table is that is shown by length."""
    if not steps:
        return ""
    return f" at step {steps[-1]:,}" + f", the last of {len(steps)}" * (len(steps) > 1)


def _evenly(places: Sequence[float], most: int) -> list[float]:
    """At most so many of the places, the first and the last among them."""
    if len(places) <= most:
        return list(places)
    return [places[round(i * (len(places) - 1) / (most - 1))] for i in range(most)]
