"""Compile kernels in parallel before anything is timed: the results are cached on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from outlast.machine import cores
from outlast.processes import Child, Parent, ready_children

#: more processes than this hold more of the device than they save in time
MOST = 12


def precompile(work: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], seconds: float) -> None:
    """Call `work` on each job in a process of its own; what is late is left to compile later.

    Nothing of it goes on after the return, beside what is timed then. Failures are not reported
    here: the same work fails again, and is reported, when it is timed.
    """
    at_once = min(len(jobs), cores(), MOST)
    if at_once < 2:
        return
    deadline = time.monotonic() + seconds
    waiting, running = list(jobs), list[Child]()
    try:
        while (waiting or running) and (left := deadline - time.monotonic()) > 0:
            while waiting and len(running) < at_once:
                running.append(Child(_call, work, waiting.pop(0)))
            for child in ready_children(running, left):  # done, or failed
                running.remove(child)
                child.close()
    finally:
        for child in running:
            child.close()


def _call(_: Parent, work: Callable[..., Any], job: tuple[Any, ...]) -> None:
    work(*job)
