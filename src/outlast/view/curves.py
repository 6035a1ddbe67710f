"""The curves of one run: accuracy or bits by length, losses and quick probes over the steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outlast.reporting.load import Run, Series, load_run
from outlast.runs.records import EventLine

#: about as many steps of a curve are drawn; more cannot be told apart
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
    """Steps and values of each seed, at the same steps: a mean is over all seeds that have one."""
    kept = _kept_steps(series)
    return {str(seed): _points(curve, kept) for seed, curve in series.items()}


def _kept_steps(series: Series) -> list[int]:
    """Some of the steps of all seeds, among them the last of each seed."""
    steps = sorted({step for curve in series.values() for step in curve})
    every = max(1, math.ceil(len(steps) / POINTS))
    ends = {max(curve) for curve in series.values() if curve}
    return sorted(ends.union(steps[every - 1 :: every]))


def _points(curve: Mapping[int, float], kept: Sequence[int]) -> list[list[float | None]]:
    steps = [step for step in kept if step in curve]
    values = [curve[step] if math.isfinite(curve[step]) else None for step in steps]
    return [list(steps), values]


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
