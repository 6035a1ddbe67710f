"""A table with one line for each arm, test and length, and a column for each seed.

An arm whose first phase of training ended by a switch has one more line, of the part `switch step`.
It has the step of the last switch of each seed, and neither length nor items. A seed whose first
phase did not end so has none.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.runs.folder import METRICS, RESULTS
from outlast.runs.records import EventLine, read_metrics

#: the part that is all answers of a sequence together
JOINT = "joint"
SWITCH = "switch step"
SEED = "seed_"


@dataclass(frozen=True)
class Row:
    """Shares of sequences right, by seed."""

    arm: str
    #: of the test: sparse or dense rows of flip-flop; empty for rows like those of training
    variant: str
    times: float
    items: int
    part: str
    seeds: Mapping[int, float]


def write(folders: Sequence[Path], target: Path) -> None:
    """Write the table of all arms in the folders of studies; an arm may have seeds in several."""
    rows = []
    for folder in folders:
        study = folder / "study.json"
        if not study.is_file():
            raise SystemExit(f"{folder}: expected the folder of a study, with study.json in it")
        arms = [arm["name"] for arm in json.loads(study.read_text())["arms"]]
        for arm in arms:
            rows += _rows(arm, folder / arm / RESULTS)
            rows += _switches(arm, folder / arm)
    rows = join(rows)
    seeds = sorted({seed for row in rows for seed in row.seeds})
    with target.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        words = ["arm", "variant", "times", "items", "part"]
        writer.writerow([*words, *(f"{SEED}{seed}" for seed in seeds)])
        for row in rows:
            shares = [short(row.seeds[seed]) if seed in row.seeds else "" for seed in seeds]
            writer.writerow([row.arm, row.variant, f"{row.times:g}", row.items, row.part, *shares])


def join(rows: Sequence[Row]) -> list[Row]:
    """One row for each arm and test, with the seeds of all that have it."""
    joined: dict[tuple[str, str, float, int, str], Row] = {}
    for row in rows:
        key = (row.arm, row.variant, row.times, row.items, row.part)
        seeds = {**joined[key].seeds, **row.seeds} if key in joined else row.seeds
        joined[key] = Row(*key, seeds)
    return list(joined.values())


def read(source: Path) -> list[Row]:
    """The rows of a table; one without parts is of all answers."""
    with source.open(newline="") as file:
        return [
            Row(
                line["arm"],
                line.get("variant", ""),
                float(line["times"]),
                int(line["items"]),
                line.get("part", JOINT),
                {
                    int(name.removeprefix(SEED)): float(share)
                    for name, share in line.items()
                    if name.startswith(SEED) and share
                },
            )
            for line in csv.DictReader(file)
        ]


def short(share: float) -> str:
    """Four digits; what is not quite all or nothing does not look like it."""
    if 0 < share < 0.0001 or 0.9999 < share < 1:
        return f"{share:.6f}"
    return f"{share:.4f}".rstrip("0").rstrip(".")


def _rows(arm: str, results: Path) -> list[Row]:
    if not results.is_file():
        return []
    tests: dict[tuple[str, float, int, str], dict[int, float]] = {}
    for entry in json.loads(results.read_text())["rows"]:
        for part, share in (entry["exact"] or {}).items():  # a diverged seed has none
            test = (entry.get("variant") or "", entry["multiple"], entry["length"], part)
            tests.setdefault(test, {})[entry["seed"]] = share
    return [Row(arm, *test, seeds) for test, seeds in tests.items()]


def _switches(arm: str, folder: Path) -> list[Row]:
    """When the first phase ended; none for an arm that has no such phase."""
    if not (folder / METRICS).is_file():
        return []
    steps: dict[int, float] = {}
    for line in read_metrics(folder):
        if isinstance(line, EventLine) and line.event == "switch":
            steps[line.seed] = line.step
    return [Row(arm, "", 0, 0, SWITCH, steps)] if steps else []
