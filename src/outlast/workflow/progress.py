"""How far training is, for a person: a bar on a terminal or in a notebook, else plain lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as ProgressBars

from outlast.runs.records import ResultRow
from outlast.runs.spec import seed_words
from outlast.train.run_state import Progress
from outlast.workflow.train import Listener, Outcome

#: seconds between two plain lines of one run
QUIET = 15.0
#: shows the state of a named run: its progress, or a word such as "done"
Show = Callable[[str, Progress | str], None]


def sentence(report: Progress) -> str:
    """``loss state 0.012  | right 1x 0.98  3x 0.31  | phase 1: 2 of 4 seeds``."""
    losses = "  ".join(f"{name} {value:.3f}" for name, value in report.loss.items())
    probes = "  ".join(f"{m}x {value:.2f}" for m, value in report.probe.items())
    pieces = [f"loss {losses}"] if losses else []
    pieces += [f"right {probes}"] if probes else []
    pieces += [f"phase 1: {report.waiting} of {report.seeds} seeds"] if report.waiting else []
    for word, seeds in (("parked", report.parked), ("succeeded", report.succeeded)):
        pieces += [f"{word}: seed{'s' * (len(seeds) > 1)} {seed_words(seeds)}"] if seeds else []
    return "  | ".join(pieces)


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


@contextmanager
def progress(console: Console) -> Iterator[Show]:
    """A function that shows the state of a named run."""
    if console.is_terminal or console.is_jupyter:
        yield from _live(console)
    else:
        yield from _plain(console)


def _live(console: Console) -> Iterator[Show]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(24),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[words]}", style="dim", markup=False),
    )
    with ProgressBars(*columns, console=console) as bars:
        rows: dict[str, TaskID] = {}

        def show(name: str, report: Progress | str) -> None:
            if name not in rows:
                rows[name] = bars.add_task(name, total=1, left="", words="")
            if isinstance(report, str):
                done = 1.0 if report == "done" else None
                bars.update(rows[name], completed=done, words=report, left="")
            else:
                bars.update(
                    rows[name],
                    completed=1.0 if report.over else report.step / report.steps,
                    words=sentence(report),
                    left=f"{clock(report.seconds_left)} left",
                )

        yield show


def _plain(console: Console) -> Iterator[Show]:
    last: dict[str, float] = {}

    def show(name: str, report: Progress | str) -> None:
        if isinstance(report, str):
            console.print(f"{name}: {report}", soft_wrap=True, markup=False)
        elif time.monotonic() - last.get(name, -QUIET) >= QUIET or report.over:
            last[name] = time.monotonic()
            console.print(
                f"{name}: step {report.step}/{report.steps}, {clock(report.seconds_left)} left, "
                f"{sentence(report)}",
                soft_wrap=True,
                markup=False,
            )

    yield show


@contextmanager
def with_progress(
    listener: Listener, shown: bool | None = None, console: Console | None = None
) -> Iterator[Listener]:
    """A listener that shows progress and tells `listener` the same.

    By default it is shown on a terminal or in a notebook alone. It goes to stderr, as the results
    of a script may go to stdout.
    """
    console = console or Console(stderr=True, highlight=False)
    if shown is None:
        shown = console.is_terminal or console.is_jupyter
    if not shown:
        yield listener
        return
    with progress(console) as show:
        yield _Watched(listener, show)


class _Watched(Listener):
    """Shows how far each run is, and tells another listener everything."""

    def __init__(self, other: Listener, show: Show) -> None:
        self.other, self.show = other, show

    def starting(self, folders: Sequence[Path], device: torch.device) -> None:
        self.other.starting(folders, device)

    def say(self, words: str) -> None:
        self.other.say(words)

    def training(self, folder: Path, progress: Progress) -> None:
        self.show(folder.name, progress)
        self.other.training(folder, progress)

    def testing(self, folder: Path) -> None:
        self.show(folder.name, "testing")
        self.other.testing(folder)

    def tested(self, folder: Path, rows: list[ResultRow]) -> None:
        self.show(folder.name, "done")
        self.other.tested(folder, rows)

    def ended(self, folders: Sequence[Path], outcome: Outcome) -> None:
        self.other.ended(folders, outcome)
