"""The failure anatomy of a run, if it has been computed: shares of causes by length.

The table is a JSON file with `rows`. Each row has a `length`, a `cause` and its `share` of all
answers; it may have a `seed`, and `examples`: sequences that the page can open.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from outlast.runs.folder import has_file
from outlast.runs.reading import checked, read_object

#: in a run folder
TABLE = "analysis/anatomy.json"


class Example(Struct, frozen=True, omit_defaults=True):
    """A sequence that failed: its number among those `of` a test, and the token of the answer."""

    index: int
    of: int | None = None
    at: int | None = None


class Row(Struct, frozen=True, kw_only=True):
    """The share of one cause at one length."""

    length: int | float
    cause: str
    share: float
    seed: int | None = None
    examples: tuple[Example, ...] = ()


class Table(Struct, frozen=True, kw_only=True):
    """All causes at all lengths."""

    rows: tuple[Row, ...]


def read_anatomy(folder: Path) -> dict[str, Any]:
    """The table as plain values; without one, `message` says how to make it."""
    if not has_file(folder, TABLE):
        words = f"No failure anatomy yet: 'outlast analyse {folder.name}' computes it."
        return {"rows": [], "message": words}
    path = folder / TABLE
    table = checked(read_object(path, "analysed yet", by_hand=True), Table, path)
    return {"rows": msgspec.to_builtins(table.rows)}
