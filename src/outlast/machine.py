"""The machine: device, precision of matmuls, signals, log levels, allocator, cores, free memory.

Linux keeps the limits of a container by control groups, which are folders. The limit of a group
holds for the processes in it and in the groups below. Version 2 has one tree of groups, version 1
has one for each kind of limit.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import platform
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import torch

from outlast.errors import OutlastError

#: microseconds of a core, and in how many
TIME = ("quota", "period")
#: bytes that are had without asking how many are free
LITTLE = 2**28
GIB = 2**30
#: where Linux tells of its processes and memory, and of control groups
SYSTEM, CONTAINER = Path("/proc"), Path("/sys/fs/cgroup")
#: the signal that a terminal was closed; not every system has it
HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)


def pick_device(name: str = "auto") -> torch.device:
    """`auto` takes the GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise OutlastError(f"device={name}: expected auto | cpu | cuda | cuda:1 ...") from None
    if device.type not in ("cpu", "cuda"):
        raise OutlastError(f"device={name}: expected auto | cpu | cuda | cuda:1 ...")
    count = torch.cuda.device_count()
    if device.type == "cuda" and not (count and (device.index or 0) < count):
        seen = f"{count} CUDA device{'s' * (count > 1)}" if count else "no CUDA device"
        raise OutlastError(f"device={name}: torch sees {seen} here; use device=cpu")
    return device


def device_name(device: torch.device) -> str:
    """What the device is, for a record: the name of a card, or the threads of a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{device.type} ({platform.machine()}, {threads} thread{'s' * (threads != 1)})"


@contextmanager
def precision(name: str, device: torch.device) -> Iterator[None]:
    """Matmuls of float32 in the wanted precision, for as long as the context lasts."""
    before = torch.get_float32_matmul_precision()
    fast = name == "tf32" or (name in ("auto", "bf16") and device.type == "cuda")
    torch.set_float32_matmul_precision("high" if fast else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def signals() -> Iterator[list[int]]:
    """Ctrl-C, SIGTERM and SIGHUP ask to save and leave; a second Ctrl-C leaves at once.

    SIGHUP comes when the terminal is closed or the connection is lost. Where it is ignored, as
    under `nohup`, it stays ignored.
    """
    asked: list[int] = []

    def ask(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and number in asked:
            raise KeyboardInterrupt
        asked.append(number)
        if number == HANGUP:
            _leave_lost_terminal()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if HANGUP is not None and signal.getsignal(HANGUP) != signal.SIG_IGN:
        numbers.append(HANGUP)
    before = {}
    try:
        for number in numbers:
            before[number] = signal.signal(number, ask)
    except ValueError:  # not in the main thread: whoever is handles signals
        pass
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def least_level(name: str, level: int) -> Iterator[None]:
    """Inside, the logger passes on nothing below this level; afterwards it is as before."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(max(before, level))
    try:
        yield
    finally:
        logger.setLevel(before)


def _leave_lost_terminal() -> None:
    """Send the output of this process nowhere, if nobody can read it any more.

    A write to a closed terminal is an error, and would be taken for one of the training.
    """
    poll = select.poll()
    for output in (1, 2):
        poll.register(output, 0)  # only what is always told: an error, or the end
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output, _ in poll.poll(0):
        os.dup2(nowhere, output)
    os.close(nowhere)


def keep_freed_memory() -> None:
    """Ask the C library to keep large blocks that were freed, for the next step to use.

    By default glibc hands them back to the system at once, and every page of the next step's
    tensors is a fault again: about a third of a small step on the CPU.
    """
    mmap_threshold, trim_threshold = -3, -1
    with suppress(OSError, AttributeError):  # another C library: nothing to ask
        library = ctypes.CDLL(None)
        library.mallopt(mmap_threshold, 1 << 30)
        library.mallopt(trim_threshold, (1 << 31) - 1)


def usable_threads() -> int:
    """Threads of torch that may run at the same time."""
    return min(torch.get_num_threads(), cores())


def free_memory(device: torch.device) -> float:
    """Bytes that can still be had: on a GPU those that torch holds and does not use count too."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(free + idle)
    limits = (_available(), memory_left(SYSTEM, CONTAINER))
    known = [limit for limit in limits if limit is not None]
    if known:
        return min(known)
    # this system does not say: half of all there is
    return float(os.sysconf("SC_PHYS_PAGES") // 2 * os.sysconf("SC_PAGE_SIZE"))


def short_of(needed: float, device: torch.device) -> float | None:
    """The bytes that are free, if they are fewer than needed. It does not ask about a little."""
    if needed <= LITTLE or device.type not in ("cpu", "cuda"):
        return None
    free = free_memory(device)
    return free if needed > free else None


def _available() -> float | None:
    """What the system could give, caches included that it would drop for it."""
    with suppress(OSError, ValueError):
        for line in (SYSTEM / "meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == "MemAvailable":
                return float(rest.split()[0]) * 1024
    return None


def memory_left(system: Path = SYSTEM, container: Path = CONTAINER) -> float | None:
    """Bytes that the tightest limit leaves, if there is one; caches it would drop are free."""
    new = ("memory.max", "memory.current", "inactive_file ")
    old = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
    limits = [_left(folder, *new) for folder in _groups("", system, container)]
    limits += [_left(folder, *old) for folder in _groups("memory", system, container)]
    return min((limit for limit in limits if limit is not None), default=None)


def cores(system: Path = SYSTEM, container: Path = CONTAINER) -> int:
    """Cores this process may use: those it is bound to, or fewer if its time is limited."""
    limits = [float(os.cpu_count() or 1)]
    if hasattr(os, "sched_getaffinity"):
        limits.append(len(os.sched_getaffinity(0)))
    for folder in _groups("", system, container):
        with suppress(OSError, ValueError):
            quota, period = map(float, (folder / "cpu.max").read_text().split())
            limits.append(quota / period)
    for folder in _groups("cpu", system, container):
        with suppress(OSError, ValueError):
            quota, period = (float((folder / f"cpu.cfs_{n}_us").read_text()) for n in TIME)
            if quota > 0:  # -1 is no limit
                limits.append(quota / period)
    return max(1, math.ceil(min(limits)))


def _left(folder: Path, limit: str, used: str, dropped: str) -> float | None:
    # no such group here; or "max", which is no limit, as is the huge number of version 1
    with suppress(OSError, ValueError):
        left = float((folder / limit).read_text()) - float((folder / used).read_text())
        lines = (folder / "memory.stat").read_text().splitlines()
        return max(0.0, left + sum(float(x.split()[1]) for x in lines if x.startswith(dropped)))
    return None


def _groups(kind: str, system: Path, container: Path) -> Iterator[Path]:
    """The group of this process, and those above it; of version 2 if no kind is named."""
    top = group = container / kind
    with suppress(OSError, ValueError):
        for line in (system / "self" / "cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kind in kinds.split(","):
                group = top / path.lstrip("/")
    yield group
    yield from (above for above in group.parents if above.is_relative_to(top))
