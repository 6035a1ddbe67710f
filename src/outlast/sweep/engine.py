"""Packs to their end: what is done already is left alone, what is lost is tried again."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from outlast.errors import OutlastError, RunFolderError
from outlast.machine import signals
from outlast.processes import ProcessDiedError
from outlast.runs.folder import why
from outlast.sweep.attempts import HIDDEN
from outlast.sweep.devices import Event, Events
from outlast.sweep.packs import Pack
from outlast.sweep.work import PackJob, PackProgress

log = logging.getLogger(__name__)

#: how often a pack whose worker or node was lost is tried again
RETRIES = 3

State = Literal["waiting", "running", "done", "lost", "failed", "stopped"]


class Machine(Protocol):
    """Where packs are trained: devices of this machine, or a Ray cluster."""

    on_gpus: bool

    def run(self, jobs: deque[PackJob], asked: Sequence[int]) -> Events[PackJob]:
        """Do jobs, also those that are added to the queue meanwhile, and tell what happens."""
        ...


@dataclass(frozen=True)
class PackUpdate:
    """What has become of a pack; `error` says why it was lost or has failed."""

    pack: Pack
    state: State
    progress: PackProgress | None = None
    error: str = ""


@dataclass(frozen=True)
class Outcome:
    """Packs that are not at their end, by name: those that failed with the reason, and the rest."""

    failed: Mapping[str, str]
    stopped: Sequence[str]


Watch = Callable[[PackUpdate], None]


def check_free(out: Path, packs: Sequence[Pack]) -> None:
    """Raise if a folder is in the place of a run that is still to be trained."""
    for folder in (PackJob(pack, out).folder for pack in packs):
        if not folder.claimed:
            folder.require_free()


def run_packs(
    out: Path, packs: Sequence[Pack], machine: Machine, watch: Watch, retries: int = RETRIES
) -> Outcome:
    """Train and test packs; their runs arrive as run folders in `out`, which the caller has locked.

    A pack that is recorded is never trained again. So the same call goes on where it was stopped or
    killed. A pack that fails does not stop the others. A signal asks to save and leave.
    """
    out = out.resolve()
    try:
        (out / HIDDEN).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot use {out} for a sweep: {why(error)}") from None
    open_jobs: dict[str, PackJob] = {}
    for job in [PackJob(pack, out) for pack in packs]:
        if job.folder.claimed:
            job.folder.record()
            watch(PackUpdate(job.pack, "done"))
        else:
            job.folder.require_free()
            open_jobs[job.pack.name] = job
    failed: dict[str, str] = {}
    losses: Counter[str] = Counter()
    jobs = deque(open_jobs.values())
    with signals() as asked, closing(machine.run(jobs, asked)) as events:
        for event in events:
            update = _update(event, bool(asked), losses, retries)
            if update.state == "done":
                event.job.folder.record()
                del open_jobs[event.job.pack.name]
            elif update.state == "failed":
                failed[event.job.pack.name] = f"{event.job.pack.title}: {update.error}"
            elif update.state == "lost":
                jobs.append(event.job)
            watch(update)
    return Outcome(failed, [name for name in open_jobs if name not in failed])


def _update(event: Event[PackJob], asked: bool, losses: Counter[str], retries: int) -> PackUpdate:
    """What an event makes of its pack."""
    pack = event.job.pack
    if event.kind in ("started", "message"):
        progress = event.value if isinstance(event.value, PackProgress) else None
        return PackUpdate(pack, "running", progress)
    if event.job.folder.claimed:  # whatever became of the worker afterwards
        return PackUpdate(pack, "done")
    if event.kind == "failed":
        return PackUpdate(pack, "failed", error=_reason(event.value))
    if event.kind == "ended" or (event.kind == "died" and asked):
        return PackUpdate(pack, "stopped")
    losses[pack.name] += 1
    times, reason = losses[pack.name], _reason(event.value)
    if times > retries:
        return PackUpdate(pack, "failed", error=f"lost {times} times; the last time {reason}")
    return PackUpdate(pack, "lost", error=reason)


def _reason(error: Exception) -> str:
    if isinstance(error, ProcessDiedError):
        return f"its process {error.how}"
    if isinstance(error, OutlastError):
        return str(error)
    log.error("%s", "\n".join(getattr(error, "__notes__", [repr(error)])))
    return f"{type(error).__name__}: {error}"
