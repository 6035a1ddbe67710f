"""The failure anatomy of a run as the page draws it, if it has been computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outlast.analysis.anatomy import CAUSES
from outlast.registry import tasks
from outlast.runs.analyses import ANATOMY, AnatomyRow, Row, age, anatomy_at_end
from outlast.runs.folder import CHECKPOINT, RESULTS, has_file
from outlast.runs.records import read_run
from outlast.tasks import Task

AT_THE_END = "The models of the last checkpoint."


def read_anatomy(folder: Path) -> dict[str, Any]:
    """Rows at the end of training, and a `note` that says so, or that they are of an earlier step.

    Without any rows, `message` says so. `wanting` is whether `outlast analyse` would help. Neither
    has the folder's path: it may not get into a bundle.
    """
    rows = anatomy_at_end(folder, CAUSES)
    if not rows:
        reason = _hindrance(folder)
        message = f"No failure anatomy: {reason}." if reason else "No failure anatomy yet."
        return {"rows": [], "message": message, "wanting": not reason}
    old = age(folder, ANATOMY)
    note = f"The {old}." if old else AT_THE_END
    return {"rows": [_of(row) for row in rows], "note": note, "wanting": bool(old)}


def _hindrance(folder: Path) -> str:
    """Why `outlast analyse` cannot make a failure anatomy of a run; empty if it can."""
    if not has_file(folder, CHECKPOINT):
        was_tested = has_file(folder, RESULTS)
        return f"this run has no checkpoint{'' if was_tested else ' yet'}"
    task: Task = tasks.build(read_run(folder).task)
    return "its answers are not right or wrong" if task.measure == "bits" else ""


def _of(row: AnatomyRow) -> Row:
    """What the page uses of a row."""
    used: Row = {"seed": row.seed, "length": row.length, "part": row.part}
    used |= {"cause": row.cause, "share": row.share}
    return used if row.count is None else used | {"count": row.count}
