"""Curves from the metrics file of a run: read as it grows, one point for each step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from outlast.runs.records import EventLine, Line, MetricLine, metrics_since
from outlast.runs.spec import Settings
from outlast.trackers.base import Point
from outlast.train.optimiser import learning_rate


class PointReader:
    """Follows the metrics of a run folder and makes a point of each step."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder, self.settings = folder, settings
        self.offset = 0
        #: lines of steps that may not be whole yet
        self.waiting: list[Line] = []
        self.happened: Counter[str] = Counter()

    def read(self, step: int | None = None) -> list[Point]:
        """The points that are new, up to a step; by default all that there are."""
        lines, self.offset = metrics_since(self.folder, self.offset)
        lines = self.waiting + lines
        due = [line for line in lines if step is None or line.step <= step]
        self.waiting = lines[len(due) :]
        return [self._point(at, list(group)) for at, group in groupby(due, lambda line: line.step)]

    def _point(self, step: int, lines: Sequence[Line]) -> Point:
        seeds: dict[int, dict[str, float]] = {}
        events = [line for line in lines if isinstance(line, EventLine)]
        for line in lines:
            if isinstance(line, MetricLine):
                seeds.setdefault(line.seed, {}).update(_values(line))
        means = _means(list(seeds.values()))
        for event in events:
            seeds.setdefault(event.seed, {})[f"event/{event.event}"] = 1.0
            self.happened[event.event] += 1
        counts = {f"event/{e.event}": float(self.happened[e.event]) for e in events}
        # the last step that was made is the one before: `step` of them are done
        rate = {"learning_rate": learning_rate(self.settings, max(step - 1, 0))}
        return Point(step, means | counts | rate, seeds, tuple(map(_words, events)))


def _values(line: MetricLine) -> Iterator[tuple[str, float]]:
    curves = {"loss": line.loss, "accuracy": line.accuracy}
    probes = {"probe": line.probe, "probe_bits": line.probe_bits}
    for curve, values in (curves | probes).items():
        for name, value in (values or {}).items():
            if value is not None and math.isfinite(value):
                yield f"{curve}/{name}{'x' * (curve in probes)}", value


def _means(seeds: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each curve over the seeds that have it."""
    names = dict.fromkeys(name for values in seeds for name in values)
    by_name = {n: [values[n] for values in seeds if n in values] for n in names}
    return {name: math.fsum(values) / len(values) for name, values in by_name.items()}


def _words(event: EventLine) -> str:
    """``seed 3: switch (method dat, reason plateau)``."""
    details = ", ".join(f"{name} {value}" for name, value in event.details.items())
    return f"seed {event.seed}: {event.event}" + (f" ({details})" if details else "")
