"""Trackers beside packs: what is recorded is sent (`sweep --track`, `reproduce --ray --track`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.cli.common import say
from outlast.sweep.engine import PackUpdate, Watch

if TYPE_CHECKING:
    from outlast.trackers.recorded import RecordedRuns
    from outlast.trackers.tracking import Tracking


@contextmanager
def sending(tracking: Sequence[Tracking]) -> Iterator[list[RecordedRuns]]:
    """What sends recorded runs to trackers, if there are any. At its end all is sent."""
    if not tracking:
        yield []
        return
    from outlast.trackers.recorded import RecordedRuns

    with RecordedRuns(tracking[0], say) as sender:
        yield [sender]


def and_send(watch: Watch, out: Path, group: str, senders: Sequence[RecordedRuns]) -> Watch:
    """The same watch, which also sends the runs of packs that are done to trackers."""

    def watch_and_send(update: PackUpdate) -> None:
        watch(update)
        for sender in senders if update.state == "done" else ():
            sender.send([out / name for name in update.pack.names], group)

    return watch_and_send
