"""How far training is, for a person: a bar on a terminal or in a notebook, else plain lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as ProgressBars

from outlast.runs.records import ResultRow
from outlast.runs.spec import seed_words
from outlast.train.run_state import Progress
from outlast.workflow.train import Listener, Listeners

#: seconds between two plain lines of one run
QUIET = 15.0


@dataclass(frozen=True)
class Total:
    """How far several runs are together; `seconds_left` is None before that can be said."""

    share: float
    seconds_left: float | None
    words: str

    @property
    def left(self) -> str:
        return "" if self.seconds_left is None else f"about {clock(self.seconds_left)} left"


#: shows the state of a named run: its progress, or a word such as "done"; or that of all of them
Show = Callable[[str, Progress | Total | str], None]


def pieces(report: Progress) -> list[str]:
    """What is said of a run: ``loss state 0.012``, ``right 1x 0.98  3x 0.31``, and the rest."""
    losses = "  ".join(f"{name} {value:.3f}" for name, value in report.loss.items())
    probes = "  ".join(f"{m}x {value:.2f}" for m, value in report.probe.items())
    words = [f"loss {losses}"] if losses else []
    words += [f"{'bits per byte' if report.in_bits else 'right'} {probes}"] if probes else []
    words += [f"phase 1: {report.waiting} of {report.seeds} seeds"] if report.waiting else []
    for word, seeds in (("parked", report.parked), ("succeeded", report.succeeded)):
        words += [f"{word}: seed{'s' * (len(seeds) > 1)} {seed_words(seeds)}"] if seeds else []
    return words


def sentence(report: Progress, room: int | None = None) -> str:
    """``loss state 0.012  | right 1x 0.98  3x 0.31  | phase 1: 2 of 4 seeds``.

    Where there is little room, pieces are left out, so that no number is cut.
    """
    words = ""
    for piece in pieces(report):
        longer = f"{words}  | {piece}" if words else piece
        words = longer if room is None or len(longer) <= room else words
    return words


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


#: the width of a bar, at most and at least; and of what stands beside it: ``100% 12:34 left``
BAR, SHORT_BAR, BESIDE = 24, 8, 24


def _live(console: Console) -> Iterator[Show]:
    bar = BarColumn(BAR if console.width >= 100 else SHORT_BAR)
    columns = (
        TextColumn("{task.description}", markup=False),
        bar,
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[words]}", style="dim", markup=False),
    )
    with ProgressBars(*columns, console=console) as bars:
        rows: dict[str, TaskID] = {}

        def show(name: str, report: Progress | Total | str) -> None:
            if name not in rows:
                rows[name] = bars.add_task(name, total=1, left="", words="")
            room = console.width - max(map(len, rows)) - (bar.bar_width or 0) - BESIDE
            if isinstance(report, str):
                done = 1.0 if report == "done" else None
                bars.update(rows[name], completed=done, words=report, left="")
            elif isinstance(report, Total):
                words = report.words if len(report.words) <= room else ""
                bars.update(rows[name], completed=report.share, words=words, left=report.left)
            else:
                bars.update(
                    rows[name],
                    completed=1.0 if report.over else report.step / report.steps,
                    words=sentence(report, room),
                    left=f"{clock(report.seconds_left)} left",
                )

        yield show


def _plain(console: Console) -> Iterator[Show]:
    last: dict[str, float] = {}

    def show(name: str, report: Progress | Total | str) -> None:
        quiet = time.monotonic() - last.get(name, -QUIET) < QUIET
        if isinstance(report, str):
            words = report
        elif isinstance(report, Total):
            if quiet and report.share < 1:
                return
            words = ", ".join(filter(None, [report.words, report.left]))
        else:
            if quiet and not report.over:
                return
            left = f"{clock(report.seconds_left)} left"
            words = f"step {report.step}/{report.steps}, {left}, {sentence(report)}"
        if not isinstance(report, str):
            last[name] = time.monotonic()
        console.print(f"{name}: {words}", soft_wrap=True, markup=False)

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
        yield Listeners([_Shown(show), listener])


class _Shown(Listener):
    """Shows how far each run is."""

    def __init__(self, show: Show) -> None:
        self.show = show

    def say(self, words: str) -> None:
        """Nothing: it is for the listener beside it."""

    def training(self, folder: Path, progress: Progress) -> None:
        self.show(folder.name, progress)

    def testing(self, folder: Path) -> None:
        self.show(folder.name, "testing")

    def tested(self, folder: Path, rows: list[ResultRow]) -> None:
        self.show(folder.name, "done")
