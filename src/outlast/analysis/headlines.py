"""The headline of each analysis: one number by length or step, over seeds, for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    """

    title: str
    value: str
    names: tuple[str, ...]
    shown: Callable[[Row], bool] = lambda row: True
    by: str = "multiple"


HEADLINES = {
    "anatomy": Headline("share of answers", "share", ("part", "cause")),
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
        "share of the margin that matches identity", "identity_share", ("layer", "head", "token"),
        lambda row: row["feature"] == "identity",
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
    """The lines of an analysis, in the order of its table; those that are 0 all along are left out.

    A table of several steps is shown at its last one, unless steps go from left to right.
    """
    wanted = HEADLINES[name]
    steps = {row["step"] for row in rows}
    last = max((step for step in steps if isinstance(step, int)), default=None)
    lines: dict[str, Line] = {}
    for row in rows:
        if not wanted.shown(row) or (wanted.by != "step" and row["step"] not in (None, last)):
            continue
        words = ", ".join(str(row[column]) for column in wanted.names)
        value, place = row[wanted.value], row[wanted.by]
        if isinstance(value, int | float) and isinstance(place, int | float):
            line = lines.setdefault(words, Line(words, {}))
            line.values.setdefault(float(place), []).append(float(value))
    return [line for line in lines.values() if any(v for vs in line.values.values() for v in vs)]
