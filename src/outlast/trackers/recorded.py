"""Runs that are sent to trackers once they are recorded: what `sweep --track` does.

The workers of a sweep know nothing of trackers. The driver sends a pack whole when its runs are in
their place, from their folders, in a thread beside the sweep. So no tracker can stop a worker, and
an attempt that was lost is never sent. What a tracker has in full is not sent again: a sweep that
was killed sends the rest when it goes on.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from outlast.trackers.lane import has_concluded
from outlast.trackers.tracking import Tracking

log = logging.getLogger(__name__)


class RecordedRuns:
    """Sends packs of finished runs, one after the other. Use it as a context.

    Without an error it waits at its end until all is sent. `leave_rest` ends it sooner.

    Args:
        tracking: The trackers; one that has failed is left alone from then on.
        say: Is told how many runs were sent, and how many packs are left for the next time.
    """

    def __init__(self, tracking: Tracking, say: Callable[[str], None] = log.warning) -> None:
        self.tracking, self.say = tracking, say
        self.packs: queue.SimpleQueue[tuple[Sequence[Path], str] | None] = queue.SimpleQueue()
        self.left_out = 0
        #: the runs so far; by tracker, those that it had before, and those that were sent to it
        self.runs, self.had, self.sent = 0, Counter[str](), Counter[str]()
        self.leaving = False
        self.thread = threading.Thread(target=self._work, name="track recorded runs", daemon=True)

    def send(self, folders: Sequence[Path], group: str) -> None:
        """Send runs that were trained together; returns at once."""
        self.packs.put((folders, group))

    def leave_rest(self) -> None:
        """Send nothing more than the pack that is being sent."""
        self.leaving = True

    def __enter__(self) -> RecordedRuns:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None:
            self.leave_rest()
        self.packs.put(None)
        self.thread.join()
        lines = self.tracking.lines
        if self.sent:
            counts = [f"{n:,} run{'s' * (n != 1)} to {line}" for line, n in self.sent.items()]
            self.say(f"sent {' and '.join(counts)}")
        elif self.runs and all(self.had[line] == self.runs for line in lines):
            self.say(f"nothing was left to send: {' and '.join(lines)} had every run before")
        if self.left_out:
            many = f"{self.left_out} pack{'s' * (self.left_out != 1)}"
            self.say(f"not yet sent to trackers: {many}; the same command sends them")

    def _work(self) -> None:
        while (pack := self.packs.get()) is not None:
            if self.leaving:
                self.left_out += 1
                continue
            try:
                self._send(*pack)
            except Exception as error:  # whatever it is, the sweep goes on
                log.warning("%s and others were not sent to trackers: %s", pack[0][0], error)

    def _send(self, folders: Sequence[Path], group: str) -> None:
        before = self._count_concluded(folders)
        self.tracking.send(folders, group)
        self.runs += len(folders)
        self.had += before
        self.sent += self._count_concluded(folders) - before

    def _count_concluded(self, folders: Sequence[Path]) -> Counter[str]:
        """By tracker, how many of these runs it has in full."""
        lines = self.tracking.lines
        return Counter({line: sum(has_concluded(f, [line]) for f in folders) for line in lines})
