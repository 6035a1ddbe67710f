"""What a tracker is, and what it is given."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

from outlast.errors import MissingExtraError
from outlast.runs.records import RunRecord

#: how a run left the tracker: at its end, saved to go on later, with an error
Ending = Literal["finished", "stopped", "failed"]
#: what a tracker wants to know when it goes on with a run; kept in the run folder
Memory = dict[str, str]


@dataclass(frozen=True)
class TrackedRun:
    """A run as a tracker sees it."""

    folder: Path
    record: RunRecord
    #: the step that it goes on from
    step: int = 0
    #: the folder of its grid or study, if it is one run of several
    group: str | None = None

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def config(self) -> dict[str, Any]:
        """What decides the run, as flat values."""
        short = self.record.short
        specs = {"task": short.task, "model": short.model, "methods": " + ".join(short.methods)}
        seeds = ",".join(map(str, self.record.seeds))
        start = self.record.start_from
        more = {"seeds": seeds} | ({} if start is None else {"start_from": start.run})
        return specs | more | asdict(self.record.settings)


@dataclass(frozen=True)
class Point:
    """All curves at one step: means over seeds, and the values of each seed.

    Names are ``loss/PART``, ``accuracy/PART``, ``probe/3x`` and ``event/NAME``. Of an event a seed
    has a 1 at its step. The mean curve counts the seeds that have had it.
    """

    step: int
    mean: Mapping[str, float]
    seeds: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    #: what happened, in words
    events: tuple[str, ...] = ()

    def flat(self) -> dict[str, float]:
        """One name for each curve: ``loss/state`` is the mean, ``seed_0/loss/state`` of a seed."""
        named = {
            f"seed_{seed}/{name}": value
            for seed, values in self.seeds.items()
            for name, value in values.items()
        }
        return {**self.mean, **named}


@dataclass(frozen=True)
class Conclusion:
    """What a run came to, once it is tested: accuracy by length as a table, a figure, the page."""

    step: int
    columns: tuple[str, ...]
    rows: tuple[tuple[float | str | None, ...], ...]
    figure: Path | None
    #: a folder with an ``index.html``
    page: Path | None

    def markdown(self) -> str:
        """The table in Markdown."""
        cells = [[_cell(value) for value in row] for row in (self.columns, *self.rows)]
        cells.insert(1, ["---"] * len(self.columns))
        return "\n".join(f"| {' | '.join(row)} |" for row in cells)

    def csv(self) -> str:
        """The table as comma-separated values."""
        text = io.StringIO()
        csv.writer(text).writerows([self.columns, *self.rows])
        return text.getvalue()


def _cell(value: float | str | None) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


class Tracker:
    """The curves of one run in one tracker.

    A subclass is registered by a name, and its constructor is its notation. All calls come from
    one thread. Any of them may raise: the run goes on, and the tracker is left alone from then on.
    """

    #: the extra that installs it, and the packages it needs
    extra: ClassVar[str] = ""
    packages: ClassVar[tuple[str, ...]] = ()

    def check(self) -> None:
        """Raise before the run starts if it cannot work: a missing extra, a login."""
        for package in self.packages:
            spec = find_spec(package)
            # a folder of that name in the working folder has no origin, and is no package
            if spec is None or spec.origin is None:
                raise MissingExtraError(f"--track {type(self).extra}", package, self.extra)

    def open(self, run: TrackedRun, memory: Memory | None) -> tuple[Memory, int]:
        """Begin with a run, or go on with it.

        Args:
            run: The run.
            memory: What `open` returned when this run was begun; None for a new one.

        Returns:
            What to remember, and the last step that the tracker has in full. Later points are sent.
        """
        raise NotImplementedError

    def log(self, point: Point) -> None:
        """Take in the curves of one step; steps increase."""
        raise NotImplementedError

    def conclude(self, conclusion: Conclusion) -> None:
        """Take in the table, the figure and the page of a run that is tested."""
        raise NotImplementedError

    def close(self, ending: Ending) -> None:
        """Write all that is left."""
        raise NotImplementedError
