"""Worker processes that step seeds side by side: on the CPU a small step gains little from threads.

Each worker has its share of the threads, and gets the waves of rows that the trainer gives it. A
worker has no state. The rows (weights, moments, averages) arrive with the plan and the data of a
block, and return with the losses. So methods, probes, checkpoints and rows at rest do not concern a
worker, and nothing is lost when one dies.

Workers run `train/worker.py`. They ignore SIGTERM: whoever asks a whole job to save and leave asks
this process too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from outlast.errors import TrainingError, short_of_memory
from outlast.machine import cores
from outlast.processes import Child, ProcessDiedError
from outlast.tasks import Batch
from outlast.train.data import rows_of
from outlast.train.plan import Plan
from outlast.train.rows import SeedState
from outlast.train.settings import RunSpec
from outlast.train.worker import BlockResult, BlockTask, WorkerSetup, serve_blocks

#: steps of a run from which starting workers pays, as it takes a few seconds; and steps of a block
#: from which its way there and back pays (`outlast bench seeds --sections processes`)
LONG, LONG_BLOCK = 500, 10


def replies(workers: Sequence[Child]) -> list[Any]:
    """The reply of each worker; an error of one is raised after all have replied."""
    results: list[Any] = []
    errors: list[Exception] = []
    for worker in workers:
        try:
            results.append(worker.receive())
        except ProcessDiedError as death:
            advice = "All blocks before are saved: the same study, or 'outlast resume', goes on"
            errors.append(TrainingError(f"a process that stepped seeds {death.how}. {advice}"))
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return results


class WorkerPool:
    """Workers for the rows of some runs, each with its share of the threads."""

    def __init__(self, runs: Sequence[RunSpec], count: int, threads: int) -> None:
        self.workers: list[Child] = []
        try:
            for _ in range(count):
                self.workers.append(Child(serve_blocks))
            self.set_up(runs, threads)
        except BaseException:
            self.close()
            raise

    def set_up(self, runs: Sequence[RunSpec], threads: int) -> None:
        """Tell the workers whose rows they will get, and wait until they are ready."""
        share = max(1, threads // len(self.workers))
        for worker in self.workers:
            worker.send(WorkerSetup(tuple(runs), share, torch.get_float32_matmul_precision()))
        replies(self.workers)

    def run(
        self, home: SeedState, waves: Sequence[Sequence[int]], data: Batch, plan: Plan
    ) -> list[Tensor]:
        """The steps of a block: a wave is some rows of `home`; returns the metrics of each."""
        metrics: list[Tensor] = []
        count = len(self.workers)
        try:
            for first in range(0, len(waves), count):
                metrics += self._run_at_once(home, waves[first : first + count], data, plan)
        except BaseException as error:
            # after a memory error all workers have replied, and may be given smaller waves. After
            # any other error some may still be at work
            if not short_of_memory(error):
                self.close()
            raise
        return metrics

    def _run_at_once(
        self, home: SeedState, waves: Sequence[Sequence[int]], data: Batch, plan: Plan
    ) -> list[Tensor]:
        busy = self.workers[: len(waves)]
        for worker, rows in zip(busy, waves, strict=True):
            worker.send(BlockTask(home.lend(rows), rows_of(data, rows), plan.rows(rows)))
        results: list[BlockResult] = replies(busy)
        for result, rows in zip(results, waves, strict=True):
            home.take(result.rows, rows)
        return [result.metrics for result in results]

    def close(self) -> None:
        """End all workers at once: they have nothing to save."""
        for worker in self.workers:
            worker.close()
        self.workers = []


def usable_threads() -> int:
    """Threads of torch that may run at the same time."""
    return min(torch.get_num_threads(), cores())


def process_count(runs: Sequence[RunSpec], device: torch.device, threads: int) -> int:
    """How many processes step the seeds of some runs: as their settings say, or by a rule.

    It depends on settings and threads alone. So a run that is resumed with as many threads is bit
    for bit the run that was not stopped.
    """
    if device.type != "cpu":
        return 1
    rows, steps = sum(len(run.seeds) for run in runs), max(run.settings.steps for run in runs)
    limits = [run.settings.processes for run in runs if run.settings.processes]
    if limits:
        return min([*limits, rows])
    pays = steps >= LONG and runs[0].settings.block >= LONG_BLOCK
    return min(rows, threads) if pays else 1
