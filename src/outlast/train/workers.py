"""Processes that step seeds side by side: on the CPU, where a small step makes little of threads.

The waves of a fleet go to *hands*, each a process with its share of the threads. A hand remembers
nothing: its rows (weights, moments, averages) come with the plan and the data of a block, and go
back with the losses. So methods, probes, checkpoints and rows at rest are no concern of a hand's,
one that dies takes nothing with it, and there is no need of shared memory, of which a container may
have little.

A hand is a Python of its own that runs `train/worker.py`. One of `multiprocessing` would first run
the caller's script, which may well train, and could not be had by a daemon. It leaves when the line
to it is closed, so none is left behind, whatever becomes of this process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from multiprocessing import Pipe
from signal import Signals
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outlast.errors import TrainingError, short_of_memory
from outlast.runs.spec import RunSpec
from outlast.tasks import Batch
from outlast.train.data import of_seeds
from outlast.train.plan import Plan
from outlast.train.seeds import SeedState

#: what a hand runs. It finds modules where this process does, and leaves signals to it: who asks a
#: whole job to save and leave asks this process too
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.path[:] = sys.argv[2:]
from outlast.train.worker import main
main(int(sys.argv[1]))
"""
#: seconds between two looks whether those that say nothing are still there
LOOK = 1.0


@dataclass(frozen=True)
class Orders:
    """What a hand is told once; `products` is the precision of float32 products."""

    runs: tuple[RunSpec, ...]
    threads: int
    products: str


@dataclass(frozen=True)
class Work:
    """A block of steps of some rows, as `SeedState.lend` gives them."""

    rows: list[Tensor]
    data: Batch
    plan: Plan


@dataclass(frozen=True)
class Done:
    """What a block gave: the rows as they are now, and metrics (steps, S, 2, parts)."""

    rows: list[Tensor]
    metrics: Tensor


#: the answer to orders
READY = Done([], torch.empty(0))


def bare(message: Any) -> Any:
    """A message for the line, its tensors as arrays: torch would pass them by shared memory."""
    return _changed(message, Tensor, lambda tensor: tensor.numpy())


def dressed(message: Any) -> Any:
    """A message from the line, its arrays as tensors again."""
    return _changed(message, np.ndarray, torch.from_numpy)


def _changed(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, list):
        return [_changed(item, kind, change) for item in value]
    if isinstance(value, dict):
        return {name: _changed(item, kind, change) for name, item in value.items()}
    if is_dataclass(value) and not isinstance(value, Orders | type):
        own = {f.name: _changed(getattr(value, f.name), kind, change) for f in fields(value)}
        return replace(value, **own)
    return value


class Worker:
    """Our end of the line to one process."""

    def __init__(self) -> None:
        self.line, far = Pipe()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(far.fileno()), *sys.path],
                pass_fds=[far.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # so that Ctrl-C does not reach it before it can ignore it
            )
        finally:
            far.close()

    def send(self, message: Orders | Work) -> None:
        """Give it something to do; one that is gone is found out when it does not answer."""
        with suppress(OSError):
            self.line.send(bare(message))

    def answer(self) -> Done:
        """What it has to say when its work is done, or the error that it met."""
        try:
            while not self.line.poll(LOOK):
                if self.process.poll() is not None and not self.line.poll():
                    raise EOFError
            answer: Done | Exception = dressed(self.line.recv())
        except (EOFError, OSError):
            raise self._gone() from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _gone(self) -> TrainingError:
        code = self.process.wait()
        how = f"was ended by {Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return TrainingError(
            f"a process that stepped seeds {how}, perhaps for want of memory. All blocks before "
            f"are saved: the same study, or 'outlast resume', goes on from there"
        )

    def close(self) -> None:
        """End it at once: it has nothing to save."""
        self.line.close()
        self.process.kill()
        self.process.wait()


def answers(hands: Sequence[Worker]) -> list[Done]:
    """What each has to say; the error of one is raised when all have answered."""
    found: list[Done] = []
    failures: list[Exception] = []
    for hand in hands:
        try:
            found.append(hand.answer())
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return found


class WorkerPool:
    """Hands for the rows of some runs, each with its share of the threads."""

    def __init__(self, runs: Sequence[RunSpec], count: int, threads: int) -> None:
        self.workers: list[Worker] = []
        try:
            for _ in range(count):
                self.workers.append(Worker())
            self.order(runs, threads)
        except BaseException:
            self.close()
            raise

    def order(self, runs: Sequence[RunSpec], threads: int) -> None:
        """Tell everyone whose rows they will get, and wait until they are ready."""
        own = max(1, threads // len(self.workers))
        for hand in self.workers:
            hand.send(Orders(tuple(runs), own, torch.get_float32_matmul_precision()))
        answers(self.workers)

    def run(
        self, home: SeedState, waves: Sequence[Sequence[int]], data: Batch, plan: Plan
    ) -> list[Tensor]:
        """The steps of a block: a wave is some rows of `home`; returns the metrics of each."""
        found: list[Tensor] = []
        try:
            for first in range(0, len(waves), len(self.workers)):
                found += self._at_once(home, waves[first : first + len(self.workers)], data, plan)
        except BaseException as error:
            # short of memory, all have answered and may be asked for less; after anything else some
            # may be in the middle of what nobody waits for any more
            if not short_of_memory(error):
                self.close()
            raise
        return found

    def _at_once(
        self, home: SeedState, waves: Sequence[Sequence[int]], data: Batch, plan: Plan
    ) -> list[Tensor]:
        busy = self.workers[: len(waves)]
        for hand, rows in zip(busy, waves, strict=True):
            hand.send(Work(home.read(rows), of_seeds(data, rows), plan.of_seeds(rows)))
        found = answers(busy)
        for done, rows in zip(found, waves, strict=True):
            home.write(done.rows, rows)
        return [done.metrics for done in found]

    def close(self) -> None:
        """Send everyone home."""
        for hand in self.workers:
            hand.close()
        self.workers = []
