"""A live table of the packs of a sweep on a terminal, else plain lines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from outlast.cli.common import console
from outlast.sweep.engine import PackUpdate, Watch
from outlast.sweep.packs import Pack
from outlast.sweep.progress import STATES, SweepProgress

#: seconds between two plain lines about all packs, and lines of the terminal that are not packs
QUIET, AROUND = 15.0, 6
#: the most characters of a pack's title in the table
NAME = 40


class PackDisplay:
    """Shows packs: those of one sweep or, one after the other, those of the rounds of a search."""

    def __init__(self) -> None:
        self.live: Live | None = None

    def __enter__(self) -> PackDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    def begin(self, packs: Sequence[Pack]) -> Watch:
        """What is to be told about these packs from here on."""
        self._close()
        progress = SweepProgress(packs)
        if not console.is_terminal:
            return _Lines(progress)
        self.live = Live(
            get_renderable=lambda: pack_table(progress, console.height - AROUND), console=console
        )
        self.live.start()
        return progress.take


def pack_table(progress: SweepProgress, most: int) -> Group:
    """All packs: running and lost ones first, and as many others as there is room for."""
    order = ("running", "lost", "failed", "stopped", "waiting", "done")
    names = sorted(progress.packs, key=lambda name: order.index(progress.state(name)))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("pack", "state", "runs", "seeds", "done", "where", ""):
        table.add_column(column, justify="right" if column in ("runs", "seeds", "done") else "left")
    shown = max(1, most)
    for name in names[:shown]:
        table.add_row(*map(Text, _cells(progress, name)))
    left = Text(f"and {len(names) - shown} more" if len(names) > shown else "", "dim")
    return Group(table, left, Text(str(progress)))


def shortened(title: str) -> str:
    """The title of a pack, cut in the middle if it is long: the last word is the number of runs."""
    return title if len(title) <= NAME else f"{title[: NAME - 13]}...{title[-10:]}"


def _cells(progress: SweepProgress, name: str) -> list[str]:
    pack, update = progress.packs[name], progress.updates.get(name)
    now = update.progress if update else None
    words = (now.words if now else "") or (update.error if update else "")
    share = f"{100 * progress.shares[name]:.0f} %"
    counts = [str(len(pack.runs)), str(pack.seeds), share]
    return [shortened(pack.title), progress.state(name), *counts, now.place if now else "", words]


class _Lines:
    """A line for each pack that begins, ends or is lost, and now and then one about all."""

    def __init__(self, progress: SweepProgress) -> None:
        self.progress, self.last = progress, time.monotonic()

    def __call__(self, update: PackUpdate) -> None:
        before = self.progress.state(update.pack.name)
        self.progress.take(update)
        if update.state != before:
            error = f" ({update.error})" if update.error else ""
            words = f"{update.pack.title}: {update.state}{error}"
            console.print(words, markup=False, soft_wrap=True)
        over = update.state in STATES[2:] and self.progress.is_over
        if over or time.monotonic() - self.last > QUIET:
            self.last = time.monotonic()
            console.print(f"packs: {self.progress}", markup=False, soft_wrap=True)
