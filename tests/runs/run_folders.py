"""A run of a second, and what must hold of a folder in which something is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.errors import OutlastError
from outlast.runs.folder import LOCK
from outlast.workflow.load import load, open_run
from tiny_runs import CPU, resume, tiny

#: settings of a run with two blocks and two checkpoints
QUICK = {"steps": 20, "steps_per_block": 10, "probe_every": 0, "checkpoint_every": 10}
RUN_SPEC = tiny(seeds=(0,), **QUICK)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder but the lock."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != LOCK}


def assert_refused(folder: Path, message: str) -> None:
    """Whoever opens the folder gets the same clear error, and nothing in it is changed."""
    before = contents(folder)
    for attempt in (lambda: open_run(folder, CPU), lambda: load(folder), lambda: resume(folder)):
        with pytest.raises(OutlastError, match=message):
            attempt()
    assert contents(folder) == before
