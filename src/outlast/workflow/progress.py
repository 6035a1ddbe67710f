"""How far training is, for a person: a bar on a terminal or in a notebook, plain lines elsewhere.

It is written to stderr, and the results of a script may go to stdout.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as ProgressBars

from outlast.runs.records import ResultRow
from outlast.train.run_state import Progress
from outlast.workflow.train import Listener, Outcome

#: seconds between two plain lines
QUIET = 15.0


@contextmanager
def with_progress(
    listener: Listener, show: bool | None = None, console: Console | None = None
) -> Iterator[Listener]:
    """A listener that shows progress and tells `listener` the same.

    By default it is shown on a terminal or in a notebook alone.
    """
    console = console or Console(stderr=True, highlight=False)
    live = console.is_terminal or console.is_jupyter
    if not (live if show is None else show):
        yield listener
    elif not live:
        yield _Lines(listener, console)
    else:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(24),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[words]}", style="dim", markup=False),
        )
        with ProgressBars(*columns, console=console) as bars:
            yield _Bars(listener, bars)


class _Forwarding(Listener):
    """Tells another listener everything."""

    def __init__(self, other: Listener) -> None:
        self.other = other

    def starting(self, folders: Sequence[Path], device: torch.device) -> None:
        self.other.starting(folders, device)

    def say(self, words: str) -> None:
        self.other.say(words)

    def training(self, folder: Path, progress: Progress) -> None:
        self.other.training(folder, progress)

    def testing(self, folder: Path) -> None:
        self.other.testing(folder)

    def tested(self, folder: Path, rows: list[ResultRow]) -> None:
        self.other.tested(folder, rows)

    def ended(self, folders: Sequence[Path], outcome: Outcome) -> None:
        self.other.ended(folders, outcome)


class _Bars(_Forwarding):
    """A live bar for each run."""

    def __init__(self, other: Listener, bars: ProgressBars) -> None:
        super().__init__(other)
        self.bars, self.rows = bars, dict[Path, TaskID]()

    def training(self, folder: Path, progress: Progress) -> None:
        share = 1.0 if progress.over else progress.step / progress.steps
        self._show(folder, _words(progress), share)
        super().training(folder, progress)

    def testing(self, folder: Path) -> None:
        self._show(folder, "testing", 1.0)
        super().testing(folder)

    def tested(self, folder: Path, rows: list[ResultRow]) -> None:
        self._show(folder, "trained and tested", 1.0)
        super().tested(folder, rows)

    def _show(self, folder: Path, words: str, share: float) -> None:
        if folder not in self.rows:
            self.rows[folder] = self.bars.add_task(folder.name, total=1, words="")
        self.bars.update(self.rows[folder], completed=share, words=words)


class _Lines(_Forwarding):
    """A plain line for each run, now and then."""

    def __init__(self, other: Listener, console: Console) -> None:
        super().__init__(other)
        self.console, self.last = console, dict[Path, float]()

    def training(self, folder: Path, progress: Progress) -> None:
        now = time.monotonic()
        if progress.over or now - self.last.get(folder, -QUIET) >= QUIET:
            self.last[folder] = now
            self._show(folder, f"step {progress.step}/{progress.steps}, {_words(progress)}")
        super().training(folder, progress)

    def testing(self, folder: Path) -> None:
        self._show(folder, "testing")
        super().testing(folder)

    def _show(self, folder: Path, words: str) -> None:
        self.console.print(f"{folder.name}: {words}", soft_wrap=True, markup=False)


def _words(progress: Progress) -> str:
    """``0:12 left, loss state 0.012``."""
    minutes, seconds = divmod(int(progress.seconds_left), 60)
    losses = "".join(f" {part} {loss:.3f}" for part, loss in progress.loss.items())
    return f"{minutes}:{seconds:02d} left" + (f", loss{losses}" if losses else "")
