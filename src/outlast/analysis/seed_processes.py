"""Seeds side by side: each of several processes analyses a seed with one thread.

A pass of a small model gains little from a second thread, and does not fill a GPU. Every seed has
one thread, however many processes there are. So the rows do not depend on their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch

from outlast.analysis.sequences import require_memory
from outlast.machine import free_memory, keep_freed_memory, short_of, usable_threads
from outlast.processes import Child, Parent, ready_children

CPU = torch.device("cpu")
#: memory that is left for each process, at least
ROOM = 2**31
#: tokens of all seeds from which on it pays to start processes, which takes seconds
ENOUGH = {"cpu": 2**16, "cuda": 2**19}
#: the most processes on one GPU: they wait for their host, but each keeps half a GiB of the card
ON_GPU = 6

#: a function that a child can import, and its arguments
Job = tuple[Callable[..., Any], tuple[Any, ...]]


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch has one thread meanwhile."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)


class SeedProcesses:
    """Processes that are started when they are needed, and ended with the context.

    Args:
        most: How many there are at most; None: one for each thread, on a GPU at most six, if
            memory suffices. With one everything is done in this process.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.children: list[Child] = []

    def __enter__(self) -> SeedProcesses:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes: they have nothing to save."""
        for child in self.children:
            child.close()
        self.children = []

    def number(self, jobs: int, tokens: int, memory: int = 0, device: torch.device = CPU) -> int:
        """How many processes do this many jobs, which read this many tokens in all.

        Each job takes this many bytes of the memory of its device.
        """
        if self.most is not None:
            return min(self.most, jobs)
        room = int(free_memory(device) // max(ROOM, memory)) + len(self.children)
        threads = usable_threads()
        most = threads if device.type == "cpu" else min(threads, ON_GPU)
        return 1 if tokens < ENOUGH[device.type] else max(1, min(jobs, most, room))

    def run(
        self, jobs: Sequence[Job], tokens: int, memory: int = 0, device: torch.device = CPU
    ) -> list[Any]:
        """What each job returns; the first error ends all.

        If the memory of all processes together is more than is free, none is started. Each would
        see that its own part is free.
        """
        count = self.number(len(jobs), tokens, memory, device)
        if self.children and short_of(count * memory, device) is not None:
            self.close()  # they keep memory that earlier jobs used
            count = self.number(len(jobs), tokens, memory, device)
        require_memory(count * memory, device)
        if count == 1:
            with one_thread():
                return [function(*arguments) for function, arguments in jobs]
        while len(self.children) < count:
            self.children.append(Child(serve_jobs))
        try:
            return self._run(jobs, self.children[:count])
        except BaseException:
            self.close()  # some are still at work
            raise

    def _run(self, jobs: Sequence[Job], children: Sequence[Child]) -> list[Any]:
        results: dict[int, Any] = {}
        waiting, busy, free = list(enumerate(jobs)), dict[Child, int](), list(children)
        while waiting or busy:
            while waiting and free:
                number, job = waiting.pop(0)
                child = free.pop(0)
                child.send(job)
                busy[child] = number
            for child in ready_children(list(busy)):
                results[busy.pop(child)] = child.receive()
                free.append(child)
        return [results[number] for number in range(len(jobs))]


def serve_jobs(parent: Parent) -> None:
    """The life of a process: it does the jobs that it is sent."""
    torch.set_num_threads(1)
    keep_freed_memory()
    parent.answer(lambda job: job[0](*job[1]))
