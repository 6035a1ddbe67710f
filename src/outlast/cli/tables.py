"""Tables for terminals of any width.

A number is shown whole or not at all, and text breaks between words alone. Where a table is too
wide, the columns that matter least are left out, and a line below names them. Where not even the
others fit, each row becomes a few lines, which have room for all columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from outlast.cli import common

#: spaces between two columns
GAP = 2


@dataclass(frozen=True)
class Column:
    """A column of text, which may wrap, or of names or numbers, which break at line ends alone.

    Columns of a higher `rank` are left out first, those of rank 0 never.
    """

    name: str
    kind: Literal["text", "name", "number"] = "text"
    rank: int = 0
    style: str = ""

    def least(self, cells: Sequence[str]) -> int:
        """The width it needs: that of its longest cell, or of its longest word."""
        texts = [self.name, *cells]
        is_text = self.kind == "text"
        words = [w for text in texts for w in (text.split() if is_text else text.split("\n"))]
        return max(map(cell_len, words), default=0)

    def most(self, cells: Sequence[str]) -> int:
        """The width at which nothing is wrapped."""
        return max(cell_len(line) for text in (self.name, *cells) for line in text.split("\n"))


def show_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str = "", header: bool = True
) -> None:
    """Print a table, as wide as the terminal allows."""
    console = common.console
    kept = fitting_columns(columns, rows, console.width)
    cells = [[row[index] for row in rows] for index in kept]
    shown = [columns[index] for index in kept]
    widths = column_widths(shown, cells, console.width)
    if title:
        console.print(title, style="italic", markup=False)
    if total_width(widths) > console.width:
        _show_as_lines(columns, rows, header)
        return
    table = Table(box=None, pad_edge=False, show_header=header, padding=(0, GAP, 0, 0))
    for column, width in zip(shown, widths, strict=True):
        side: Literal["right", "left"] = "right" if column.kind == "number" else "left"
        table.add_column(
            column.name, justify=side, width=width, style=column.style, overflow="fold"
        )
    for row in zip(*cells, strict=True):
        table.add_row(*map(Text, row))
    console.print(table)
    left_out = [c.name for i, c in enumerate(columns) if i not in kept]
    if left_out:
        note = f"(left out at {console.width} columns: {', '.join(left_out)})"
        console.print(note, style="dim", markup=False)


def fitting_columns(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> list[int]:
    """The indices of the columns to show; of equal rank, the last is left out first."""
    kept = list(range(len(columns)))
    least = [c.least([row[i] for row in rows]) for i, c in enumerate(columns)]
    while total_width([least[i] for i in kept]) > width:
        optional = [i for i in kept if columns[i].rank]
        if not optional:
            break
        kept.remove(max(optional, key=lambda i: (columns[i].rank, i)))
    return kept


def column_widths(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int
) -> list[int]:
    """What each column needs, and what is left given to the narrowest that would wrap."""
    widths = [c.least(texts) for c, texts in zip(columns, cells, strict=True)]
    wanted = [c.most(texts) for c, texts in zip(columns, cells, strict=True)]
    for _ in range(width - total_width(widths)):
        short = [i for i, size in enumerate(widths) if size < wanted[i]]
        if not short:
            break
        widths[min(short, key=lambda i: widths[i])] += 1
    return widths


def total_width(widths: Sequence[int]) -> int:
    """The width of a table, with the gaps between its columns."""
    return sum(widths) + GAP * (len(widths) - 1)


def _show_as_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], header: bool) -> None:
    """Each row as its first cell, and below it the other cells with the names of their columns."""
    console = common.console
    for first, *others in rows:
        console.print(first, markup=False, soft_wrap=True)
        for column, cell in zip(columns[1:], others, strict=True):
            name = f"{column.name}: " if header and column.name else ""
            if cell:
                text = cell if column.kind == "text" else cell.replace("\n", " ")
                console.print(common.wrapped(f"{name}{text}", "  "), markup=False, soft_wrap=True)
