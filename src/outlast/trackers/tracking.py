"""Trackers as a listener: what `--track` and `outlast.track` give to training.

Each tracker has a thread of its own, which reads the metrics file of a run as it grows. Training
never waits for it. If a tracker raises, or does not answer, one warning says so. It is left alone
from then on, and the end says which tracker has failed. The run folder is whole in any case:
``outlast resume FOLDER --track ...`` sends what is missing.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from outlast.arguments import shown
from outlast.errors import bad_value
from outlast.registry import trackers
from outlast.reporting.page import report
from outlast.runs.folder import CHECKPOINT, RESULTS, has_file
from outlast.runs.records import ResultRow, Results, read_results, read_run
from outlast.runs.status import own_state
from outlast.trackers.base import Conclusion, Ending, TrackedRun, Tracker
from outlast.trackers.lane import Lane, has_concluded
from outlast.train.run_state import Progress
from outlast.workflow.train import Listener, Outcome

log = logging.getLogger(__name__)
#: the figures that may show accuracy by length, the first that there is
FIGURES = ("accuracy.png", "bits.png")


class Tracking(Listener):
    """Sends runs to trackers while they are trained, and what they came to at the end.

    Args:
        lines: One line for each tracker, such as "tensorboard" or "wandb(mode=offline)".
        say: Is told at the end which trackers have failed.
    """

    def __init__(self, lines: Sequence[str], say: Callable[[str], None] = log.warning) -> None:
        self.lines = [str(trackers.canonical(line)) for line in lines]
        for line in self.lines:
            if self.lines.count(line) > 1:
                raise bad_value("track", line, "each tracker once")
            tracker: Tracker = trackers.build(line)
            tracker.check()
        self.say_at_end = say
        self.lanes: list[Lane] = []
        self.open: set[Path] = set()
        #: why each tracker that has failed did so
        self.failures: dict[str, str] = {}

    def say(self, words: str) -> None:
        """Nothing: it is for whoever shows the run."""

    # ---- what training tells -----------------------------------------------------------------

    def starting(self, folders: Sequence[Path], device: torch.device) -> None:
        for folder in folders:
            self.begin(folder)

    def training(self, folder: Path, progress: Progress) -> None:
        self.advance(folder, progress.step)

    def ended(self, folders: Sequence[Path], outcome: Outcome) -> None:
        if not outcome.ended:
            self.finish("stopped")
            return
        self._conclude_with_page(folders)

    def failed(self, folders: Sequence[Path], error: BaseException) -> None:
        self.finish("stopped" if isinstance(error, KeyboardInterrupt) else "failed")

    # ---- the same for whoever watches run folders from outside -------------------------------

    @property
    def working(self) -> list[str]:
        """The trackers that have not failed."""
        return [line for line in self.lines if line not in self.failures]

    def send(self, folders: Sequence[Path], group: str) -> None:
        """Send finished runs whole, with a page about them; not those that every tracker has."""
        missing = [folder for folder in folders if not has_concluded(folder, self.working)]
        try:
            for folder in missing:
                self.begin(folder, group)
            self._conclude_with_page(missing)
        except BaseException:
            self.finish("failed")  # no tracker waits for a run that does not come
            raise

    def _conclude_with_page(self, folders: Sequence[Path]) -> None:
        with _page(folders, wanted=any(lane.error is None for lane in self.lanes)) as page:
            self.conclude(folders, page)
            self.finish("finished")

    def begin(self, folder: Path, group: str | None = None) -> None:
        """Begin with a run, or go on with it; a second time it does nothing."""
        if folder in self.open:
            return
        self.open.add(folder)
        if not self.lanes:
            lock = threading.Lock()
            self.lanes = [Lane(line, lock) for line in self.working]
        record = read_run(folder)
        step = own_state(folder).step if has_file(folder, CHECKPOINT) else 0
        group = group or (folder.resolve().parent.name if record.pack else None)
        for lane in self.lanes:
            lane.open(TrackedRun(folder, record, step, group))

    def advance(self, folder: Path, step: int | None = None) -> None:
        """Send what the metrics of a run say up to a step; by default all."""
        for lane in self.lanes:
            lane.advance(folder, step)

    def conclude(self, folders: Sequence[Path], page: Path | None) -> None:
        """Send the table of each run that is tested, and a page about all of them."""
        for folder in folders:
            if has_file(folder, RESULTS):
                conclusion = _conclusion(read_results(folder / RESULTS), page)
                for lane in self.lanes:
                    lane.conclude(folder, conclusion)

    def finish(self, ending: Ending) -> None:
        """Close all runs, wait for the trackers, and say which have failed."""
        for lane in self.lanes:
            for folder in self.open:
                lane.close(folder, ending)
        for lane in self.lanes:
            lane.wait()
            if lane.error is not None:
                self.failures[lane.line] = lane.error
                self.say_at_end(
                    f"tracker failed: {lane.line}: {lane.error}; the run folder is whole, and "
                    f"'outlast resume FOLDER --track ...' sends what is missing"
                )
        self.lanes, self.open = [], set()


def track(*lines: str) -> Tracking:
    """Trackers as a callback of `outlast.fit`: ``outlast.fit(..., callbacks=[track("wandb")])``.

    Args:
        lines: One line for each tracker, such as "tensorboard" or "wandb(mode=offline)".
    """
    for line in lines:
        if not isinstance(line, str):
            raise bad_value("lines", shown(line), "a tracker's line, such as tensorboard")
    return Tracking(lines)


@contextmanager
def _page(folders: Sequence[Path], wanted: bool) -> Iterator[Path | None]:
    """A page about runs, for as long as it is sent; None if it cannot be made."""
    with ExitStack() as context:
        page = None
        try:
            if wanted:
                folder = tempfile.TemporaryDirectory(prefix="outlast-", ignore_cleanup_errors=True)
                page = report(list(folders), Path(context.enter_context(folder), "report")).parent
        except Exception as error:  # it shows no more than the results do
            log.warning("there is no page for the trackers: %s", error)
        yield page


def _conclusion(results: Results, page: Path | None) -> Conclusion:
    figures = [page / "figures" / name for name in FIGURES] if page else []
    figure = next((path for path in figures if path.exists()), None)
    columns, rows = _table(results.rows)
    return Conclusion(results.step or 0, columns, rows, figure, page)


def _table(
    results: Sequence[ResultRow],
) -> tuple[tuple[str, ...], tuple[tuple[float | str | None, ...], ...]]:
    """A row for each seed and length: the share of sequences right, or bits per byte, by part."""
    measured = [row["exact"] or row.get("bits") or {} for row in results]
    parts = tuple(dict.fromkeys(part for values in measured for part in values))
    rows = tuple(
        (
            row.get("seed"),
            row["variant"] or "",
            row["length"],
            row["multiple"],
            *(values.get(part) for part in parts),
        )
        for row, values in zip(results, measured, strict=True)
    )
    return ("seed", "variant", "length", "multiple", *parts), rows
