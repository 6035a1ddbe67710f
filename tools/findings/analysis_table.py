"""Analyses of the arms of a study: a line for each quantity, and a column for each seed.

A table of `outlast analyse` has a row for each seed, step, layer, head and place. A page of
findings tells of fewer, so the file has fewer:

- `sharpness` and `covariance` have one head of each layer in full, called `sharpest head` and
  `matching head`. It is the head with the most weight on the right token, or with the largest
  margin of its scores for identity, at the shortest length. Each seed and step has its own, and
  keeps it at all lengths. The weight is there for every head. A task without keys has no
  identity, and no lines of `covariance`.
- A share of a logit is one of its variance (`variance_share`). Such shares need not add up to 1.
- Probes are told of all tokens together. Gradients are those of all recurrent layers together.
- Auxiliary parts are left out of single layers and heads, of drawn positions, and of the token
  filter.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from findings.seed_table import SEED
from outlast.runs.analyses import read_analysis
from outlast.runs.records import read_run
from outlast.runs.study import read_study

#: of a gradient of all recurrent layers together: what it is called, and how it is found
GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "cosine": lambda row: row["cosine"],
    "norm, attention over direct": lambda row: _ratio(row),
    "attention to final": lambda row: row["attention_to_final"],
    "direct to final": lambda row: row["direct_to_final"],
}
#: ablations that are told of auxiliary parts, too
ABLATIONS = ("whole", "attention off", "recurrence off", "window", "hard", "uniform")
SHUFFLED = "items shuffled"
#: of the sharpest head of a layer
SHARPNESS = ("keys", "weight", "entropy", "margin", "law", "kept")
#: of the matching head: by part of the score, what a column is called
COVARIANCE = {
    "logit": {
        "margin for identity": "identity_margin", "margin for position": "position_margin",
    },
    "identity": {
        "margin for identity by identity": "identity_margin",
        "share of logit by identity": "variance_share",
    },
    "position": {"share of logit by position": "variance_share"},
    "bias": {"share of logit by bias": "variance_share"},
}  # fmt: skip


class Cell(NamedTuple):
    """One number of one seed."""

    seed: int
    what: str
    part: str
    step: int | None
    times: float | None
    number: float | None


#: the cells of a table, from its rows and the auxiliary parts of the task
Cells = Callable[[Sequence[Any], Collection[str]], Iterator[Cell]]


def write_analyses(folders: Sequence[Path], target: Path) -> None:
    """Write the table of all analysed arms in the folders of studies."""
    lines: dict[tuple[Any, ...], dict[int, float]] = {}
    runs = [folder / arm.name for folder in folders for arm in read_study(folder).arms]
    for run in runs:
        for name, cells in CELLS.items():
            table = read_analysis(run, name)
            if table is None:
                continue
            for seed, *words, number in cells(table.rows, read_run(run).auxiliary):
                if number is not None:
                    lines.setdefault((name, run.name, *words), {})[seed] = number
    seeds = sorted({seed for line in lines.values() for seed in line})
    with target.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        heads = ["analysis", "arm", "what", "part", "step", "times"]
        writer.writerow([*heads, *(f"{SEED}{seed}" for seed in seeds)])
        for key, line in lines.items():
            words = ["" if word is None else f"{word:g}" for word in key[4:]]
            numbers = [f"{line[seed]:.3g}" if seed in line else "" for seed in seeds]
            writer.writerow([*key[:4], *words, *numbers])


def _of_anatomy(rows: Sequence[Any], auxiliary: Collection[str]) -> Iterator[Cell]:
    for row in rows:
        yield _cell(row, row["cause"], row["part"], "share")


def _of_ablation(rows: Sequence[Any], auxiliary: Collection[str]) -> Iterator[Cell]:
    for row in rows:
        what = ", ".join([row["ablation"], *_layer_and_head(row)])
        if what in ABLATIONS or row["part"] not in auxiliary:
            yield _cell(row, what, row["part"], "exact")
        if what == SHUFFLED:
            yield _cell(row, f"{what}, unchanged", row["part"], "unchanged")


def _of_probe(rows: Sequence[Any], auxiliary: Collection[str]) -> Iterator[Cell]:
    for row in rows:
        if row["bin"] is None:  # of all tokens together
            yield _cell(row, f"{row['layer']}, {row['place']}", "", "accuracy")


def _of_sharpness(rows: Sequence[Any], auxiliary: Collection[str]) -> Iterator[Cell]:
    chosen = _best_heads(rows, "weight")
    for row in rows:
        yield _cell(row, f"{row['layer']}, head {row['head']}", "", "weight")
        if chosen.get(_place(row)) == row["head"]:
            for measure in SHARPNESS:
                yield _cell(row, f"{row['layer']}, sharpest head, {measure}", "", measure)


def _of_covariance(rows: Sequence[Any], auxiliary: Collection[str]) -> Iterator[Cell]:
    logits = [row for row in rows if row["feature"] == "logit"]
    chosen = _best_heads(logits, "identity_margin")
    for row in rows:
        if chosen.get(_place(row)) == row["head"]:
            what = f"{row['layer']}, {row['token']} tokens, matching head"
            for words, column in COVARIANCE[row["feature"]].items():
                yield _cell(row, f"{what}, {words}", "", column)


def _of_token_filter(rows: Sequence[Any], auxiliary: Collection[str]) -> Iterator[Cell]:
    for row in rows:
        if row["part"] not in auxiliary:
            kept = f"ranked by {row['ranking']}, masked in {row['masked']}, kept {row['share']:g}"
            yield _cell(row, kept, row["part"], "exact")


def _of_gradients(rows: Sequence[Any], auxiliary: Collection[str]) -> Iterator[Cell]:
    for row in rows:
        if row["layer"] == "all":
            for what, number in GRADIENTS.items():
                step = int(row["step"] or 0)
                yield Cell(row["seed"], what, row["part"], step, None, number(row))


def _cell(row: Any, what: str, part: str, column: str) -> Cell:
    return Cell(row["seed"], what, part, row["step"], row["multiple"], row.get(column))


def _layer_and_head(row: Any) -> list[str]:
    """In words, the layer and the head that an ablation is of, if it is of one."""
    layer, head = row.get("layer"), row.get("head")
    words = [] if layer is None else [str(layer)]
    return words if head is None else [*words, f"head {head}"]


def _best_heads(rows: Sequence[Any], column: str) -> dict[tuple[Any, ...], int]:
    """By seed, step and layer, the head whose number is largest at the shortest length."""
    shortest = min((row["multiple"] for row in rows), default=None)
    best: dict[tuple[Any, ...], tuple[float, int]] = {}
    for row in rows:
        number, place = row.get(column), _place(row)
        if row["multiple"] != shortest or number is None:
            continue
        if place not in best or number > best[place][0]:
            best[place] = number, row["head"]
    return {place: head for place, (_, head) in best.items()}


def _place(row: Any) -> tuple[Any, ...]:
    return row["seed"], row["step"], row["layer"], row.get("token")


def _ratio(row: Any) -> float | None:
    direct, attention = row["direct_norm"], row["attention_norm"]
    return attention / direct if direct and attention else None


CELLS: dict[str, Cells] = {
    "anatomy": _of_anatomy,
    "ablation": _of_ablation,
    "state-probe": _of_probe,
    "key-probe": _of_probe,
    "sharpness": _of_sharpness,
    "covariance": _of_covariance,
    "token-filter": _of_token_filter,
    "gradients": _of_gradients,
}
