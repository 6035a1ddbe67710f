"""The headline of each analysis: one number by length or step, over seeds, for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outlast.runs.analyses import Row


@dataclass(frozen=True)
class Headline:
    """Which number of a table is shown, for which of its rows, and what names a line.

    Args:
        title: What the number is.
        value: Its column.
        names: The columns that name a line.
        shown: Whether a row is shown.
        by: The column that goes from left to right.
        whole: Rows of the whole, of which the rows shown are parts. The number is then the share of
            the whole: one mean over seeds divided by the other. A mean of shares would be that of
            the seed whose whole is nearest to 0.
        skips_zeros: Whether a line that is 0 all along is left out.
        nothing: What is said if there is no line to show.
    """

    title: str
    value: str
    names: tuple[str, ...]
    shown: Callable[[Row], bool] = lambda row: True
    by: str = "multiple"
    whole: Callable[[Row], bool] | None = None
    skips_zeros: bool = False
    nothing: str = ""


#: how the value of a column that names a line is written; any other column has its value as it is
WORDS: dict[str, Callable[[Any], str]] = {
    "head": lambda number: "all" if number is None else str(number),
    "share": lambda share: f"{100 * share:g} %",
}
#: what stands above such a column, where it is not its name
HEADINGS = {"ranking": "ranked by", "masked": "layers masked", "share": "kept"}
#: shares of a margin below this are not shown; such a margin changes a weight by a tenth
NEAR_ZERO = 0.1

HEADLINES = {
    "anatomy": Headline("share of answers", "share", ("part", "cause"), skips_zeros=True),
    "ablation": Headline(
        "share of sequences with every answer right",
        "exact",
        ("ablation",),
        lambda row: row["part"] == "joint" and row["layer"] is None,
    ),
    "state-probe": Headline(
        "share of states that a probe reads", "accuracy", ("layer", "place"),
        lambda row: row["bin"] is None,
    ),
    "key-probe": Headline(
        "share of keys that a probe reads at their value", "accuracy", ("layer", "place"),
        lambda row: row["bin"] is None,
    ),
    "sharpness": Headline("weight on the right token", "weight", ("layer", "head")),
    "covariance": Headline(
        "share of the margin that matches identity (above 1 if another part opposes it)",
        "identity_margin", ("layer", "head", "token"),
        lambda row: row["feature"] == "identity", whole=lambda row: row["feature"] == "logit",
        nothing=f"no head has a margin of {NEAR_ZERO:g} or more for identity",
    ),
    "token-filter": Headline(
        "share of sequences with every answer right", "exact", ("ranking", "masked", "share"),
        lambda row: row["part"] == "joint",
    ),
    "gradients": Headline(
        "cosine between the direct part and the part through attention", "cosine", ("layer",),
        lambda row: row["part"] == "all", by="step",
    ),
}  # fmt: skip


#: of what a headline leaves out: the parts of it that have a table of their own
DETAILS = {
    "ablation": Headline(
        "share of sequences with every answer right, without one layer or head",
        "exact",
        ("layer", "head"),
        lambda row: row["part"] == "joint" and row["layer"] is not None,
    ),
}


@dataclass(frozen=True)
class Line:
    """One line of a headline: what names it, and the values of all seeds by length or step."""

    names: tuple[str, ...]
    values: dict[float, list[float]]


def headline(wanted: Headline, rows: Sequence[Row]) -> list[Line]:
    """The lines of an analysis, in the order of its table.

    A table of several steps is shown at its last one, unless steps go from left to right. A line
    of shares has one value by length. Where the whole is near 0 it has none. A line without values
    is left out.
    """
    shown = rows if wanted.by == "step" else at_last_step(rows)
    lines = _lines(wanted, shown, wanted.shown)
    if wanted.whole is not None:
        wholes = _lines(wanted, shown, wanted.whole)
        lines = {names: _shares(line, wholes[names]) for names, line in lines.items()}
    return [
        line
        for line in lines.values()
        if line.values
        and not (wanted.skips_zeros and not any(v for vs in line.values.values() for v in vs))
    ]


def over_steps(wanted: Headline, rows: Sequence[Row]) -> tuple[float, list[Line]]:
    """The shortest length as a multiple, and the lines at this length by step."""
    shortest = min(float(row["multiple"] or 0) for row in rows)
    at_shortest = [row for row in rows if row["multiple"] == shortest]
    return shortest, headline(replace(wanted, by="step"), at_shortest)


def steps_of(rows: Sequence[Row]) -> list[int]:
    """The steps of a table, without the end of training, which has none."""
    return sorted({step for row in rows if isinstance(step := row["step"], int)})


def at_last_step(rows: Sequence[Row]) -> list[Row]:
    """The rows of the last step; those of the end of training count as such."""
    last = max(steps_of(rows), default=None)
    return [row for row in rows if row["step"] in (None, last)]


def _lines(
    wanted: Headline, rows: Sequence[Row], shown: Callable[[Row], bool]
) -> dict[tuple[str, ...], Line]:
    """The values of the rows shown, by what names their line."""
    lines: dict[tuple[str, ...], Line] = {}
    for row in filter(shown, rows):
        names = tuple(WORDS.get(column, str)(row[column]) for column in wanted.names)
        value, place = row.get(wanted.value), row[wanted.by]
        if isinstance(value, int | float) and isinstance(place, int | float):
            line = lines.setdefault(names, Line(names, {}))
            line.values.setdefault(float(place), []).append(float(value))
    return lines


def _shares(part: Line, whole: Line) -> Line:
    """The mean of the part over that of the whole, where the whole is not near 0."""
    shares = {}
    for place, values in whole.values.items():
        mean = sum(values) / len(values)
        if abs(mean) >= NEAR_ZERO and place in part.values:
            of_part = part.values[place]
            shares[place] = [sum(of_part) / len(of_part) / mean]
    return Line(part.names, shares)
