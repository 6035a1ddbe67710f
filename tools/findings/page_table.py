"""A table that stands on a page: each cell has the numbers of its seeds, or a mean and a range."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: for a seed without a number
NONE = "–"
RANGE = re.compile(r"([\d.]+) \[([\d.]+), ([\d.]+)\]")


@dataclass(frozen=True)
class Cell:
    """The numbers of some seeds, or what stands for them: the mean, the lowest and the highest."""

    seeds: tuple[float, ...] = ()
    #: how many seeds have no number
    missing: int = 0
    spread: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class PageTable:
    """Cells by line and column."""

    names: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]


def read(page: Path, columns: Sequence[str], names: Sequence[str] = ()) -> PageTable:
    """The first table of a page that has these columns; its lines are named by the first column.

    Args:
        page: A file of Markdown.
        columns: Heads of the columns that are read.
        names: Heads of the columns that name a line instead, each with its head.
    """
    for head, *lines in _tables(page.read_text(encoding="utf-8")):
        if {*columns, *names} <= set(head):
            rows = [dict(zip(head, line, strict=True)) for line in lines]
            return PageTable(
                tuple(
                    ", ".join(f"{name} {row[name]}" for name in names) or row[head[0]]
                    for row in rows
                ),
                tuple(columns),
                tuple(tuple(read_cell(row[column]) for column in columns) for row in rows),
            )
    raise SystemExit(f"{page}: expected a table with the columns {', '.join([*columns, *names])}")


def read_cell(text: str) -> Cell:
    """A cell such as ``.99 .2 –`` or ``0.58 [0.18, 0.91]``."""
    if match := RANGE.fullmatch(text):
        mean, low, high = map(float, match.groups())
        return Cell(spread=(mean, low, high))
    words = text.split()
    try:
        seeds = tuple(float(word) for word in words if word != NONE)
    except ValueError:
        raise SystemExit(f"{text!r}: expected a number for each seed, or 0.5 [0.1, 0.9]") from None
    return Cell(seeds, len(words) - len(seeds))


def _tables(text: str) -> list[list[list[str]]]:
    """Each table of a page as lines of cells, without the rule below its head and without marks."""
    tables = []
    for block in re.findall(r"(?:^\|.*\n)+", text + "\n", re.MULTILINE):
        lines = [
            [re.sub(r"[*`]", "", cell).strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in block.splitlines()
        ]
        tables.append([lines[0], *lines[2:]])
    return tables
