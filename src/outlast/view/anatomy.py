"""The failure anatomy of a run as the page draws it, if it has been computed.

The table has a row for each seed, length, part and cause, with its `share` of the answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outlast.errors import RunFolderError
from outlast.runs.analyses import AnalysisTable, Row, read_analysis
from outlast.runs.folder import ANALYSIS

TABLE = "anatomy"
#: what a row must have
NEEDED = {"length": (int, float), "cause": (str,), "share": (int, float)}
#: what the page uses of a row
COLUMNS = ("seed", "length", "part", "cause", "share", "count")


def read_anatomy(folder: Path) -> dict[str, Any]:
    """Rows as plain values; without a table, `message` says how to make it."""
    table = read_analysis(folder, TABLE)
    if table is None:
        words = f"No failure anatomy yet: 'outlast analyse {folder.name}' computes it."
        return {"rows": [], "message": words}
    for number, row in enumerate(table.rows):
        for name, kinds in NEEDED.items():
            if not isinstance(row.get(name), kinds):
                place = folder / ANALYSIS / f"{TABLE}.json"
                raise RunFolderError(f"cannot read {place}: rows[{number}] has no {name}")
    return {"rows": [_of(row, COLUMNS) for row in _last(table)]}


def _last(table: AnalysisTable) -> list[Row]:
    """The rows of the last step, where there are several."""
    steps = [step for row in table.rows if isinstance(step := row.get("step"), int)]
    return [row for row in table.rows if not steps or row.get("step") in (None, max(steps))]


def _of(row: Row, columns: tuple[str, ...]) -> Row:
    return {name: row[name] for name in columns if row.get(name) is not None}
