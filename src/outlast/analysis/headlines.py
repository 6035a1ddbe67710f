"""The headline of each analysis: one number by length or step, over seeds, for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


#: how the value of a column is written in the name of a line; any other column has its value alone
WORDS: dict[str, Callable[[Any], str]] = {
    "head": lambda number: f"head {number}",
    "token": lambda kind: f"{kind} tokens",
    "ranking": lambda kind: f"ranked by {kind}",
    "masked": lambda where: f"masked in {where} layers",
    "share": lambda share: f"kept {100 * share:g} %",
}
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
        "share of the margin that matches identity", "identity_margin", ("layer", "head", "token"),
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


@dataclass(frozen=True)
class Line:
    """One line of a headline: its name, and the values of all seeds by length or step."""

    name: str
    values: dict[float, list[float]]


def headline(name: str, rows: Sequence[Row]) -> list[Line]:
    """The lines of an analysis, in the order of its table.

    A table of several steps is shown at its last one, unless steps go from left to right. A line
    of shares has one value by length. Where the whole is near 0 it has none. A line without values
    is left out.
    """
    wanted = HEADLINES[name]
    lines = _lines(wanted, rows, wanted.shown)
    if wanted.whole is not None:
        wholes = _lines(wanted, rows, wanted.whole)
        lines = {words: _shares(line, wholes[words]) for words, line in lines.items()}
    return [
        line
        for line in lines.values()
        if line.values
        and not (wanted.skips_zeros and not any(v for vs in line.values.values() for v in vs))
    ]


def _lines(wanted: Headline, rows: Sequence[Row], shown: Callable[[Row], bool]) -> dict[str, Line]:
    """The values of the rows shown, by the name of their line."""
    steps = {row["step"] for row in rows}
    last = max((step for step in steps if isinstance(step, int)), default=None)
    lines: dict[str, Line] = {}
    for row in rows:
        if not shown(row) or (wanted.by != "step" and row["step"] not in (None, last)):
            continue
        words = ", ".join(WORDS.get(column, str)(row[column]) for column in wanted.names)
        value, place = row.get(wanted.value), row[wanted.by]
        if isinstance(value, int | float) and isinstance(place, int | float):
            line = lines.setdefault(words, Line(words, {}))
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
    return Line(part.name, shares)
