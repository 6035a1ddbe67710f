"""One tracker beside training: a thread that sends points, and stops at the first error."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from outlast.registry import trackers
from outlast.runs.folder import TRACKERS, write_json
from outlast.runs.reading import checked, parse_json, read_text
from outlast.trackers.base import Conclusion, Ending, Memory, TrackedRun, Tracker
from outlast.trackers.points import PointReader

log = logging.getLogger(__name__)
#: seconds that a tracker may take for one thing after training has ended
PATIENCE = 60.0


class Entry(msgspec.Struct, omit_defaults=True):
    """What the run folder keeps of one tracker."""

    memory: Memory
    #: the step at which it got the table, the figure and the page
    concluded: int | None = None


def read_entries(folder: Path) -> dict[str, Entry]:
    """What a run folder keeps of its trackers, by their lines."""
    path = folder / TRACKERS
    try:
        values = parse_json(read_text(path))
    except FileNotFoundError:
        return {}
    return checked(values, dict[str, Entry], path)


def has_concluded(folder: Path, lines: Iterable[str]) -> bool:
    """Whether trackers have all of a run, the table at its end included."""
    entries = read_entries(folder)
    return all(line in entries and entries[line].concluded is not None for line in lines)


@dataclass
class _Open:
    """A run that the tracker has begun with."""

    tracker: Tracker
    points: PointReader
    entry: Entry
    #: the last step that the tracker has
    last_step: int


class Lane:
    """One tracker for several runs. Whatever goes wrong ends the lane, and nothing else."""

    def __init__(self, line: str, lock: threading.Lock) -> None:
        self.line, self.lock = line, lock
        #: why it has failed, if it has
        self.error: str | None = None
        self.runs: dict[Path, _Open] = {}
        self.jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.busy_since: float | None = None
        self.thread = threading.Thread(target=self._work, name=f"track {line}", daemon=True)
        self.thread.start()

    # ---- called by training: each returns at once --------------------------------------------

    def open(self, run: TrackedRun) -> None:
        self.jobs.put(lambda: self._open(run))

    def advance(self, folder: Path, step: int | None) -> None:
        """Send the points up to a step; by default all."""
        self.jobs.put(lambda: self._advance(folder, step))

    def conclude(self, folder: Path, conclusion: Conclusion) -> None:
        self.jobs.put(lambda: self._conclude(folder, conclusion))

    def close(self, folder: Path, ending: Ending) -> None:
        self.jobs.put(lambda: self._close(folder, ending))

    def wait(self) -> None:
        """Wait until all is sent. A tracker that does not answer is given up."""
        self.jobs.put(None)
        while self.thread.is_alive() and self.error is None:
            self.thread.join(0.05)
            since = self.busy_since
            if since is not None and time.monotonic() - since > PATIENCE and self.error is None:
                self._fail(f"it did not answer for {PATIENCE:.0f} seconds")

    # ---- in the thread -----------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            if self.error is not None:
                continue
            self.busy_since = time.monotonic()
            try:
                job()
            except BaseException as error:  # another package may raise anything
                if self.error is None:
                    self._fail(f"{type(error).__name__}: {error}")
            self.busy_since = None

    def _fail(self, reason: str) -> None:
        self.error = " ".join(reason.split())
        log.warning("the tracker %s has failed and is left out: %s", self.line, self.error)

    def _open(self, run: TrackedRun) -> None:
        entry = read_entries(run.folder).get(self.line)
        if entry is not None and entry.concluded is not None:
            return  # it has everything
        tracker: Tracker = trackers.build(self.line)
        memory, last_step = tracker.open(run, None if entry is None else entry.memory)
        points = PointReader(run.folder, run.record.settings)
        self.runs[run.folder] = _Open(tracker, points, Entry(memory), last_step)
        self._remember(run.folder)

    def _advance(self, folder: Path, step: int | None) -> None:
        if (run := self.runs.get(folder)) is not None:
            for point in run.points.read(step):
                if point.step > run.last_step:
                    run.tracker.log(point)
                    run.last_step = point.step

    def _conclude(self, folder: Path, conclusion: Conclusion) -> None:
        if (run := self.runs.get(folder)) is not None:
            self._advance(folder, None)
            run.tracker.conclude(conclusion)
            run.entry.concluded = conclusion.step

    def _close(self, folder: Path, ending: Ending) -> None:
        if (run := self.runs.get(folder)) is not None:
            self._advance(folder, None)
            run.tracker.close(ending)
            self._remember(folder)
            del self.runs[folder]

    def _remember(self, folder: Path) -> None:
        with self.lock:  # several trackers have one file
            entries = read_entries(folder) | {self.line: self.runs[folder].entry}
            write_json(folder / TRACKERS, msgspec.to_builtins(entries))
