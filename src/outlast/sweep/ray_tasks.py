"""A pack as a task of Ray: what a node does, how far it says it is, what is wrong with the node.

A node may lack a package, or not see the folder of the sweep. It fails fast, and so would be given
pack after pack. So a task tells the fault of its node from an error of its pack. The first counts
as a loss: the pack is tried on another node. The second ends the pack.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from outlast.errors import RunFolderError
from outlast.runs.folder import write_json
from outlast.sweep.attempts import ATTEMPTS, HIDDEN, PROGRESS
from outlast.sweep.devices import Event
from outlast.sweep.work import BadPlaceError, PackJob, PackProgress, Slot, run_attempt

#: seconds between two reports of a pack in its folder, which may be on a slow disk
QUIET = 2.0
#: what is the fault of a node: its packages, its devices, its view of the folder of the sweep
FAULTS = (BadPlaceError, RunFolderError, ImportError, OSError)


class NodeFault(NamedTuple):
    """What a task returns if its node cannot do it: Ray's name for the node, its address, why."""

    node: str
    address: str
    reason: str


def encode(job: PackJob, slot: Slot) -> bytes:
    """What a task is given. The task itself decodes it: a node without outlast can then say so."""
    return pickle.dumps((attempt_in_task, job, slot))


def make_task() -> Callable[[bytes], Any]:
    """The function of a task. It returns whether the pack is at its end, or a fault of the node.

    It is sent to the node whole, as functions inside functions are. So it runs on a node that has
    no outlast, or another one, and its answer is made of plain words.
    """

    def attempt(data: bytes) -> Any:
        import ray

        try:
            function, job, slot = pickle.loads(data)
        except Exception as error:  # packages that are not here, or are others
            reason = f"{type(error).__name__}: {error}"
        else:
            answer = function(job, slot)
            if isinstance(answer, bool):
                return answer
            reason = answer
        node = ray.get_runtime_context().get_node_id()
        return (node, ray.util.get_node_ip_address(), reason)

    return attempt


def read_answer(answer: Any) -> bool | NodeFault:
    """What a task has returned."""
    return answer if isinstance(answer, bool) else NodeFault(*answer)


def attempt_in_task(job: PackJob, slot: Slot) -> bool | str:
    """An attempt at a pack; whether it is at its end, or in words what is wrong with the node."""
    last = 0.0

    def tell(folder: Path, progress: PackProgress) -> None:
        nonlocal last
        if time.monotonic() - last > QUIET:
            last = time.monotonic()
            with suppress(RunFolderError):  # nothing is lost; a checkpoint would say what is wrong
                write_json(folder / PROGRESS, asdict(progress))

    try:
        return run_attempt(job, slot, tell)
    except FAULTS as error:
        named = isinstance(error, BadPlaceError | RunFolderError)
        return str(error) if named else f"{type(error).__name__}: {error}"


# ---- reports, in the folders of attempts ---------------------------------------------------------


def look(jobs: Mapping[str, PackJob]) -> Iterator[Event[PackJob]]:
    """How far the packs are that have begun, as the folders of their newest attempts say.

    Packs that wait have no folder, and are not looked for: one listing tells which have one.
    """
    begun: list[str] = []
    for out in {job.out for job in jobs.values()}:
        with suppress(OSError):
            begun += [path.name for path in (out / HIDDEN / ATTEMPTS).iterdir()]
    for name in begun:
        if name in jobs:
            yield from _newest(jobs[name])


def _newest(job: PackJob) -> Iterator[Event[PackJob]]:
    with suppress(OSError, ValueError, TypeError):
        newest = max(_reports(job), key=lambda path: path.stat().st_mtime)
        yield Event(job, "message", PackProgress(**json.loads(newest.read_text())))


def _reports(job: PackJob) -> list[Path]:
    return list(job.folder.attempts.glob(f"*/{PROGRESS}"))


def forget_reports(job: PackJob) -> None:
    """Delete what attempts before have told: the pack waits for its turn."""
    for path in _reports(job):
        path.unlink(missing_ok=True)
