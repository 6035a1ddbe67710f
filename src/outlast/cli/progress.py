"""Progress of training: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from outlast.cli.common import seed_words
from outlast.train.run_state import Progress as Report

#: seconds between two plain lines of one run
QUIET = 15.0


def sentence(report: Report) -> str:
    """``state 0.012 recall 0.690 | 1x 0.98 3x 0.31 | phase 1: 2 of 4``."""
    losses = "  ".join(f"{name} {value:.3f}" for name, value in report.loss.items())
    probes = "  ".join(f"{m}x {value:.2f}" for m, value in report.probe.items())
    phase = f"phase 1: {report.waiting} of {report.seeds} seeds" if report.waiting else ""
    said = [f"loss {losses}"] if losses else []
    said += [f"right {probes}"] if probes else []
    said += [phase] if phase else []
    for what, seeds in (("parked", report.parked), ("succeeded", report.succeeded)):
        who = f"seed{'s' * (len(seeds) > 1)} {seed_words(seeds)}"
        said += [f"{what}: {who}"] if seeds else []
    return "  | ".join(said)


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


@contextmanager
def progress(console: Console) -> Iterator[Callable[[str, Report | str], None]]:
    """A function that shows the state of a named run: a report, or a word such as "done"."""
    if console.is_terminal:
        yield from _live(console)
    else:
        yield from _plain(console)


def _live(console: Console) -> Iterator[Callable[[str, Report | str], None]]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(24),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[words]}", style="dim", markup=False),
    )
    with Progress(*columns, console=console) as bars:
        known: dict[str, TaskID] = {}

        def show(name: str, what: Report | str) -> None:
            if name not in known:
                known[name] = bars.add_task(name, total=1, left="", words="")
            if isinstance(what, str):
                done = 1.0 if what == "done" else None
                bars.update(known[name], completed=done, words=what, left="")
            else:
                bars.update(
                    known[name],
                    completed=1.0 if what.over else what.step / what.steps,
                    words=sentence(what),
                    left=f"{clock(what.seconds_left)} left",
                )

        yield show


def _plain(console: Console) -> Iterator[Callable[[str, Report | str], None]]:
    last: dict[str, float] = {}

    def show(name: str, what: Report | str) -> None:
        if isinstance(what, str):
            console.print(f"{name}: {what}", soft_wrap=True, markup=False)
        elif time.monotonic() - last.get(name, -QUIET) >= QUIET or what.over:
            last[name] = time.monotonic()
            console.print(
                f"{name}: step {what.step}/{what.steps}, {clock(what.seconds_left)} left, "
                f"{sentence(what)}",
                soft_wrap=True,
                markup=False,
            )

    yield show
