"""What a container lets this process have of the machine.

Linux keeps limits by control groups, which are folders. The limit of a group holds for those in it
and in the groups below. Version 2 has one tree of groups, version 1 one for each kind of limit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: microseconds of a core, and in how many
TIME = ("quota", "period")
#: where Linux tells of its processes and memory, and of control groups
SYSTEM, CONTAINER = Path("/proc"), Path("/sys/fs/cgroup")


def memory_left(system: Path = SYSTEM, container: Path = CONTAINER) -> float | None:
    """Bytes that the tightest limit leaves, if there is one; caches it would drop are free."""
    new = ("memory.max", "memory.current", "inactive_file ")
    old = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
    found = [_left(folder, *new) for folder in _groups("", system, container)]
    found += [_left(folder, *old) for folder in _groups("memory", system, container)]
    return min((left for left in found if left is not None), default=None)


def cores(system: Path = SYSTEM, container: Path = CONTAINER) -> int:
    """Cores this process may use: those it is bound to, or fewer if its time is limited."""
    found = [float(os.cpu_count() or 1)]
    if hasattr(os, "sched_getaffinity"):
        found.append(len(os.sched_getaffinity(0)))
    for folder in _groups("", system, container):
        with suppress(OSError, ValueError):
            quota, period = map(float, (folder / "cpu.max").read_text().split())
            found.append(quota / period)
    for folder in _groups("cpu", system, container):
        with suppress(OSError, ValueError):
            quota, period = (float((folder / f"cpu.cfs_{n}_us").read_text()) for n in TIME)
            if quota > 0:  # -1 is no limit
                found.append(quota / period)
    return max(1, math.ceil(min(found)))


def _left(folder: Path, limit: str, used: str, dropped: str) -> float | None:
    # no such group here; or "max", which is no limit, as is the huge number of version 1
    with suppress(OSError, ValueError):
        left = float((folder / limit).read_text()) - float((folder / used).read_text())
        lines = (folder / "memory.stat").read_text().splitlines()
        return max(0.0, left + sum(float(x.split()[1]) for x in lines if x.startswith(dropped)))
    return None


def _groups(kind: str, system: Path, container: Path) -> Iterator[Path]:
    """The group of this process, and those above it; of version 2 if no kind is named."""
    top = own = container / kind
    with suppress(OSError, ValueError):
        for line in (system / "self" / "cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kind in kinds.split(","):
                own = top / path.lstrip("/")
    yield own
    yield from (above for above in own.parents if above.is_relative_to(top))
