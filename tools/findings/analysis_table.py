"""Analyses of the arms of a study: a line for each quantity, and a column for each seed.

A table of `outlast analyse` has a row for each seed, layer, head and place. What a page of findings
tells is in some of them: those of the whole model, or of whole layers. They alone are written.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from findings.seed_table import SEED
from outlast.runs.analyses import Row, read_analysis
from outlast.runs.study import read_study

#: of a gradient of all recurrent layers together: what it is called, and how it is found
GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "cosine": lambda row: row["cosine"],
    "norm, attention over direct": lambda row: _ratio(row),
    "attention to final": lambda row: row["attention_to_final"],
    "direct to final": lambda row: row["direct_to_final"],
}
#: layers and heads by themselves are left out
ABLATIONS = ("whole", "attention off", "recurrence off", "window", "hard", "uniform")


class Cell(NamedTuple):
    """One number of one seed."""

    what: str
    part: str
    step: int | None
    times: float | None
    share: float | None


def write_analyses(folders: Sequence[Path], target: Path) -> None:
    """Write the table of all analysed arms in the folders of studies."""
    lines: dict[tuple[Any, ...], dict[int, float]] = {}
    runs = [folder / arm.name for folder in folders for arm in read_study(folder).arms]
    for run in runs:
        for name, cells in CELLS.items():
            table = read_analysis(run, name)
            for row in table.rows if table else ():
                for what, part, step, times, share in cells(row):
                    if share is not None:
                        line = lines.setdefault((name, run.name, what, part, step, times), {})
                        line[int(row["seed"] or 0)] = share
    seeds = sorted({seed for line in lines.values() for seed in line})
    with target.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        heads = ["analysis", "arm", "what", "part", "step", "times"]
        writer.writerow([*heads, *(f"{SEED}{seed}" for seed in seeds)])
        for key, line in lines.items():
            words = ["" if word is None else f"{word:g}" for word in key[4:]]
            numbers = [f"{line[seed]:.3g}" if seed in line else "" for seed in seeds]
            writer.writerow([*key[:4], *words, *numbers])


def _of_anatomy(row: Row) -> Iterator[Cell]:
    yield _cell(row, str(row["cause"]), str(row["part"]), "share")


def _of_ablation(row: Row) -> Iterator[Cell]:
    if row["ablation"] in ABLATIONS:
        yield _cell(row, str(row["ablation"]), str(row["part"]), "exact")


def _of_probe(row: Row) -> Iterator[Cell]:
    if row["bin"] is None:  # of all tokens together
        yield _cell(row, f"{row['layer']}, {row['place']}", "", "accuracy")


def _of_sharpness(row: Row) -> Iterator[Cell]:
    yield _cell(row, f"{row['layer']}, head {row['head']}", "", "weight")


def _of_gradients(row: Row) -> Iterator[Cell]:
    if row["layer"] == "all":
        for what, number in GRADIENTS.items():
            yield Cell(what, str(row["part"]), int(row["step"] or 0), None, number(row))


def _cell(row: Any, what: str, part: str, column: str) -> Cell:
    return Cell(what, part, row["step"], row["multiple"], row[column])


def _ratio(row: Any) -> float | None:
    direct, attention = row["direct_norm"], row["attention_norm"]
    return attention / direct if direct and attention else None


CELLS: dict[str, Callable[[Row], Iterator[Cell]]] = {
    "anatomy": _of_anatomy,
    "ablation": _of_ablation,
    "state-probe": _of_probe,
    "key-probe": _of_probe,
    "sharpness": _of_sharpness,
    "gradients": _of_gradients,
}
