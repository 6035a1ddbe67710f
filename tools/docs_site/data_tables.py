"""Data files as pages: a CSV file of `docs/data` becomes a table that can be searched and sorted.

The table is plain HTML, so it is read without JavaScript too.
"""

from __future__ import annotations

import csv
import html
from pathlib import Path


def table_page(path: Path, pages: list[tuple[str, str]]) -> str:
    """The page of a data file; `pages` are the titles and paths of the pages that link to it."""
    with path.open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    used = ", ".join(f"[{title}]({place})" for title, place in pages)
    lines = [
        f"# Data: {path.stem}",
        "",
        f"{len(rows)} rows. The page that explains them: {used}." if used else f"{len(rows)} rows.",
        f'The same as a file: <a href="{path.name}" download>{path.name}</a>.',
        "",
        "<table>",
        _row("th", head, "thead"),
        "<tbody>",
        *(_row("td", row) for row in rows),
        "</tbody></table>",
        "",
    ]
    return "\n".join(lines)


def _row(cell: str, values: list[str], around: str = "") -> str:
    cells = "".join(f"<{cell}>{html.escape(value)}</{cell}>" for value in values)
    row = f"<tr>{cells}</tr>"
    return f"<{around}>{row}</{around}>" if around else row
