"""The failure anatomy of a run as the page draws it, if it has been computed.

`anatomy` has a row for each seed, length, part and cause, with its `share` of the answers.
`anatomy_examples` names sequences that failed so: their `row` among those of the test, and the
`token` of the answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outlast.errors import RunFolderError
from outlast.runs.analyses import FOLDER, AnalysisTable, Row, read_analysis

TABLE, EXAMPLES = "anatomy", "anatomy_examples"
#: what a row must have
NEEDED = {"length": (int, float), "cause": (str,), "share": (int, float)}
#: what the page uses of a row, and of an example
COLUMNS = ("seed", "length", "part", "cause", "share", "count")
EXAMPLE_COLUMNS = ("seed", "length", "part", "cause", "row", "token")


def read_anatomy(folder: Path) -> dict[str, Any]:
    """Rows and examples as plain values; without a table, `message` says how to make it."""
    table = read_analysis(folder, TABLE)
    if table is None:
        words = f"No failure anatomy yet: 'outlast analyse {folder.name}' computes it."
        return {"rows": [], "examples": [], "message": words}
    for number, row in enumerate(table.rows):
        for name, kinds in NEEDED.items():
            if not isinstance(row.get(name), kinds):
                place = folder / FOLDER / f"{TABLE}.json"
                raise RunFolderError(f"cannot read {place}: rows[{number}] has no {name}")
    examples = read_analysis(folder, EXAMPLES)
    return {
        "rows": [_of(row, COLUMNS) for row in _last(table)],
        "examples": [] if examples is None else [_of(r, EXAMPLE_COLUMNS) for r in _last(examples)],
        "sequences": table.settings.get("sequences"),
    }


def _last(table: AnalysisTable) -> list[Row]:
    """The rows of the last step, where there are several."""
    steps = [step for row in table.rows if isinstance(step := row.get("step"), int)]
    return [row for row in table.rows if not steps or row.get("step") in (None, max(steps))]


def _of(row: Row, columns: tuple[str, ...]) -> Row:
    return {name: row[name] for name in columns if row.get(name) is not None}
