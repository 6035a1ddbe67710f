"""The causes of wrong answers, from a table of analyses: the figure that a report has of a study.

A table holds arms that were analysed at different times, which no single study folder has.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from outlast.reporting.anatomy_by_length import Shares, draw_shares
from outlast.reporting.panels import WIDE


def draw_causes(
    table: Path, arms: Sequence[str], labels: Sequence[str], columns: int, target: Path
) -> None:
    """Draw the anatomy of these arms at the end of training, mean over the seeds of the table."""
    if labels and len(labels) != len(arms):
        raise SystemExit(f"labels: expected {len(arms)}, one for each arm, not {len(labels)}")
    shares = [
        each
        for arm, label in zip(arms, labels or arms, strict=True)
        for each in read_shares(table, arm, label)
    ]
    draw_shares(shares, WIDE, columns).savefig(target)


def read_shares(table: Path, arm: str, label: str) -> list[Shares]:
    """The shares of an arm, part by part."""
    by_part: dict[str, dict[float, dict[str, float]]] = {}
    seeds = 0
    with table.open(newline="") as file:
        for row in csv.DictReader(file):
            if (row["analysis"], row["arm"], row["step"]) != ("anatomy", arm, ""):
                continue
            numbers = [float(cell) for name, cell in row.items() if name[:5] == "seed_" and cell]
            seeds = len(numbers)
            bar = by_part.setdefault(row["part"], {}).setdefault(float(row["times"]), {})
            if mean := sum(numbers) / seeds:
                bar[row["what"]] = mean
    if not by_part:
        raise SystemExit(f"{table}: no anatomy of {arm}")
    return [Shares(label, part, seeds, bars) for part, bars in by_part.items()]
