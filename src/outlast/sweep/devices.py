"""The devices of this machine: one worker process for each slot, and a queue of jobs for them.

A worker goes from job to job, as its start takes seconds. A worker that dies is replaced. Packs of
a sweep and arms of a study are jobs of the same queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import torch

from outlast.arguments import check_whole
from outlast.errors import bad_value, require
from outlast.machine import cores, pick_device, usable_threads
from outlast.processes import Child, Parent, ProcessDiedError, ready_children
from outlast.runs.spec import MOST_PROCESSES
from outlast.sweep.work import PackJob, Slot, run_attempt

#: packs at the same time on one GPU, unless it is said: small models do not fill it alone
GPU_PACKS = 4

J = TypeVar("J")


@dataclass(frozen=True)
class Event(Generic[J]):
    """What happens to a job: `value` is the message of its worker, or an error.

    After ``ended``, ``failed`` or ``died`` nothing more is told of the job. ``failed`` is an
    exception of the job itself, ``died`` the end of its worker.
    """

    job: J
    kind: Literal["started", "message", "ended", "failed", "died"]
    value: Any = None


#: what is to be closed before its end, so that no worker is left behind
Events = Generator[Event[J], None, None]

#: how a job is done: ``function(parent, *arguments)``
Work = Callable[[J, Slot], tuple[Callable[..., None], tuple[Any, ...]]]


class _Ended:
    """The message that a job is over; its error, if it had one, came before."""


def serve_jobs(parent: Parent) -> None:
    """The life of a worker: job after job, until the pipe is closed."""
    while True:
        function, arguments = parent.receive()
        try:
            function(parent, *arguments)
        except Exception as error:
            parent.send_failure(error)
        parent.send(_Ended())


def run_queue(
    jobs: deque[J], slots: Sequence[Slot], work: Work[J], asked: Sequence[int]
) -> Events[J]:
    """Do jobs, one at a time in each slot, and tell what happens.

    Jobs may be added to the queue meanwhile. Once something is in `asked`, no job is begun, and
    those at work are asked to save and leave.
    """
    idle: dict[Slot, list[Child]] = {slot: [] for slot in slots}
    free = list(slots)
    busy: dict[Child, tuple[J, Slot]] = {}
    try:
        while (jobs and not asked) or busy:
            while jobs and free and not asked:
                job, slot = jobs.popleft(), free.pop(0)
                child = idle[slot].pop() if idle[slot] else Child(serve_jobs, graceful=True)
                child.send(work(job, slot))
                busy[child] = job, slot
                yield Event(job, "started", slot)
            for child in busy if asked else ():
                child.ask_to_stop()
            for child in ready_children(list(busy), timeout=0.2):
                job, slot = busy[child]
                event, alive = _receive(child, job)
                if event.kind != "message":
                    del busy[child]
                    free.append(slot)
                    if alive:
                        idle[slot].append(child)
                yield event
    finally:
        for child in (*busy, *(child for children in idle.values() for child in children)):
            child.close()  # it saves and leaves


def _receive(child: Child, job: J) -> tuple[Event[J], bool]:
    """What a worker tells, and whether it lives."""
    try:
        message = child.receive()
    except ProcessDiedError as death:
        return Event(job, "died", death), False
    except Exception as error:
        try:
            child.receive()  # that it is over
        except ProcessDiedError:
            return Event(job, "failed", error), False
        return Event(job, "failed", error), True
    if isinstance(message, _Ended):
        return Event(job, "ended"), True
    return Event(job, "message", message), True


# ---- slots ---------------------------------------------------------------------------------------


def find_devices(text: str = "auto", threads: int = 1) -> list[str]:
    """The devices that ``--devices`` names, one for each worker process.

    ``auto`` and ``all`` are all GPUs, or where there is none, as many CPU devices as have a core
    for each of their `threads`. ``cuda:0,cuda:1`` and ``cpu,cpu`` name them.
    """
    if text in ("auto", "all"):
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        cpus = ["cpu"] * max(1, usable_threads() // max(1, threads))
        return [f"cuda:{index}" for index in range(count)] or cpus
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise bad_value("devices", text, "all, or devices such as cuda:0,cuda:1 or cpu,cpu")
    require(len(names) <= MOST_PROCESSES, "devices", text, f"at most {MOST_PROCESSES:,}")
    return [str(pick_device(name)) for name in names]


def make_slots(
    devices: Sequence[str], jobs: int, threads: int = 1, per_device: int | None = None
) -> list[Slot]:
    """Slots for so many jobs: several on each GPU, one on each CPU device.

    Each has its share of the memory of its device. All CPU devices are of one memory.
    """
    gpus = [device for device in devices if device.startswith("cuda")]
    each = {d: per_device or (GPU_PACKS if d in gpus else 1) for d in devices}
    rounds = [[d for d in devices if turn < each[d]] for turn in range(max(each.values()))]
    used = [device for devices_of_turn in rounds for device in devices_of_turn][: max(1, jobs)]
    return [Slot(device, threads, 1 / used.count(device)) for device in used]


class LocalDevices:
    """Packs on the devices of this machine."""

    def __init__(
        self, devices: Sequence[str], threads: int = 1, per_device: int | None = None
    ) -> None:
        check_whole("threads", threads, 1, MOST_PROCESSES)
        if per_device is not None:
            check_whole("per_device", per_device, 1, MOST_PROCESSES)
        self.devices, self.threads, self.per_device = devices, threads, per_device
        self.on_gpus = any(device.startswith("cuda") for device in devices)

    @property
    def surplus(self) -> str | None:
        """In words, that packs have more threads of the CPU than there are cores, if it is so."""
        on_cpu = self.devices.count("cpu") * (self.per_device or 1)
        if on_cpu * self.threads <= cores():
            return None
        return (
            f"{on_cpu} pack{'s' * (on_cpu != 1)} at a time with {self.threads} "
            f"thread{'s' * (self.threads != 1)} each want more than the {cores()} cores that "
            f"there are for this process: they will wait for each other"
        )

    def run(self, jobs: deque[PackJob], asked: Sequence[int]) -> Events[PackJob]:
        slots = make_slots(self.devices, len(jobs), self.threads, self.per_device)
        yield from run_queue(jobs, slots, _attempt, asked)

    def __str__(self) -> str:
        counts = {device: self.devices.count(device) for device in self.devices}
        return ", ".join(f"{count} x {d}" if count > 1 else d for d, count in counts.items())


def _attempt(job: PackJob, slot: Slot) -> tuple[Callable[..., None], tuple[PackJob, Slot]]:
    return attempt_in_child, (job, slot)


def attempt_in_child(parent: Parent, job: PackJob, slot: Slot) -> None:
    """An attempt at a pack in a worker process, which tells the driver how far it is."""
    run_attempt(job, slot, lambda _, progress: parent.send(progress))
    if slot.device.startswith("cuda"):
        torch.cuda.empty_cache()  # the next pack may be of another process
