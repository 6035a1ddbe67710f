"""The failure anatomy of a run as the page draws it, if it has been computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outlast.analysis.anatomy import CAUSES
from outlast.runs.analyses import AnatomyRow, Row, anatomy_at_end


def read_anatomy(folder: Path) -> dict[str, Any]:
    """Rows at the end of training; without any, `message` says how to make them."""
    rows = anatomy_at_end(folder, CAUSES)
    if not rows:
        words = f"No failure anatomy yet: 'outlast analyse {folder.name}' computes it."
        return {"rows": [], "message": words}
    return {"rows": [_of(row) for row in rows]}


def _of(row: AnatomyRow) -> Row:
    """What the page uses of a row."""
    used: Row = {"seed": row.seed, "length": row.length, "part": row.part}
    used |= {"cause": row.cause, "share": row.share}
    return used if row.count is None else used | {"count": row.count}
