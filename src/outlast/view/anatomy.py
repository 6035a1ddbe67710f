"""The failure anatomy of a run, if it has been computed: shares of causes by length.

The table is a JSON file with `rows`. Each row has a `length`, a `cause` and its `share` of all
sequences or answers; it may have a `seed` and `examples`, the numbers of drawn sequences.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from outlast.errors import RunFolderError
from outlast.runs.folder import has_file
from outlast.runs.reading import checked, read_object

#: in a run folder
TABLE = "analysis/anatomy.json"


class Row(Struct, frozen=True, kw_only=True):
    """The share of one cause at one length."""

    length: int | float
    cause: str
    share: float
    seed: int | None = None
    #: indices of drawn sequences of that length which failed so
    examples: tuple[int, ...] = ()


class Table(Struct, frozen=True, kw_only=True):
    """All causes at all lengths."""

    rows: tuple[Row, ...]


def read_anatomy(folder: Path) -> dict[str, Any]:
    """The table as plain values; an error says how to make it."""
    if not has_file(folder, TABLE):
        raise RunFolderError(f"no failure anatomy yet: 'outlast analyse {folder.name}' computes it")
    path = folder / TABLE
    table = checked(read_object(path, "analysed yet", by_hand=True), Table, path)
    return {
        "rows": [
            {"length": r.length, "cause": r.cause, "share": r.share, "seed": r.seed}
            | {"examples": r.examples}
            for r in table.rows
        ]
    }
