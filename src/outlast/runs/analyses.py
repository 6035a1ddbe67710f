"""Tables of analyses in a run folder: ``analysis/NAME.json``, one for each analysis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from outlast.runs.folder import ANALYSIS, has_file, write_json
from outlast.runs.reading import FORMAT, checked, read_object
from outlast.version import __version__

#: a flat row of a table
Row = dict[str, str | int | float | None]


class AnalysisTable(Struct, frozen=True, kw_only=True):
    """What one file holds: rows by seed and step, and what was asked for."""

    format: int = FORMAT
    #: the version of outlast that wrote it
    outlast: str = __version__
    analysis: str
    settings: dict[str, Any] = {}
    rows: list[Row]


def write_analysis(folder: Path, table: AnalysisTable) -> Path:
    """Write a table to the folder of a run; the tables of other analyses stay."""
    path = folder / ANALYSIS / f"{table.analysis}.json"
    path.parent.mkdir(exist_ok=True)
    write_json(path, msgspec.to_builtins(table))
    return path


def read_analysis(folder: Path, name: str) -> AnalysisTable | None:
    """The table of an analysis of a run, if there is one."""
    if not has_file(folder / ANALYSIS, f"{name}.json"):
        return None
    path = folder / ANALYSIS / f"{name}.json"
    return checked(read_object(path, "analysed yet"), AnalysisTable, path)
