"""The curves of one run: accuracy or bits by length, losses and quick probes over the steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outlast.reporting.load import Run, Series, load_run
from outlast.runs.records import EventLine

#: of one seed's curve; more cannot be told apart
POINTS = 300
#: events that the page marks on the curves
SHOWN_EVENTS = ("switch", "parked", "succeeded")


def read_curves(folder: Path) -> dict[str, Any]:
    """What the page draws of a run, as plain values."""
    run = load_run(folder)
    return {
        "rows": [_row(dict(row)) for row in run.rows],
        "losses": {part: _series(series) for part, series in run.losses.items()},
        "probes": {f"{multiple:g}": _series(run.probes[multiple]) for multiple in run.probes},
        "events": [_event(event) for event in run.events if event.event in SHOWN_EVENTS],
        "status": _status(run),
    }


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("seed", "variant", "length", "multiple", "exact", "bits", "reason", "nan")
    return {name: row[name] for name in names if row.get(name) is not None}


def _series(series: Series) -> dict[str, Any]:
    """Steps and values of each seed, thinned in the same way for all."""
    return {str(seed): _thinned(curve) for seed, curve in series.items()}


def _thinned(curve: Mapping[int, float]) -> list[list[float | None]]:
    steps = sorted(curve)
    every = math.ceil(len(steps) / POINTS)
    kept = [step for i, step in enumerate(steps, 1) if i % every == 0 or i == len(steps)]
    values = [curve[step] if math.isfinite(curve[step]) else None for step in kept]
    return [list(kept), values]


def _event(event: EventLine) -> dict[str, Any]:
    about: dict[str, Any] = {"seed": event.seed, "step": event.step, "event": event.event}
    if isinstance(converged := event.details.get("converged"), bool):
        about["converged"] = converged
    return about


def _status(run: Run) -> str:
    """What a reader should know before the numbers; empty if there is nothing."""
    words = []
    if run.results is None:
        words.append("not tested yet")
    if run.unfinished is not None:
        step, steps = run.unfinished
        words.append(f"at step {step:,} of {steps:,}")
    if run.parked:
        words.append(f"diverged: seed {', '.join(map(str, sorted(run.parked)))}")
    return "; ".join(words)
