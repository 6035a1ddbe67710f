"""Compiling kernels side by side before anything is timed: what they leave is cached on disk."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from typing import Any

from outlast.machine import cores

#: more processes than this hold more of the device than they save in time
MOST = 12


def side_by_side(work: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], seconds: float) -> None:
    """Run `work` on each job in processes of their own; what takes longer is left to compile later.

    Nothing of it goes on after the return, beside what is timed then. Failures are not reported
    here: the same work fails again, and is reported, when it is timed.
    """
    workers = min(len(jobs), cores(), MOST)
    if workers < 2:
        return
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    late = wait([pool.submit(work, *job) for job in jobs], timeout=seconds).not_done
    if late:
        for process in multiprocessing.active_children():
            if process not in others:
                process.terminate()
    pool.shutdown(wait=True, cancel_futures=True)
