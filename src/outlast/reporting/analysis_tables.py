"""The tables of analyses of a run, as far as a report shows them."""

from __future__ import annotations

from outlast.reporting.load import Run
from outlast.runs.analyses import AnalysisTable, read_analysis


def table_of(run: Run | None, name: str) -> AnalysisTable | None:
    """The table of an analysis; None without one, or if it is left out."""
    return None if run is None or name in run.damaged else read_analysis(run.folder, name)
