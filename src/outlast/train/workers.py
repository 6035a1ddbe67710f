"""Worker processes that step seeds side by side: on the CPU a small step gains little from threads.

Each worker has its share of the threads, and gets the waves of rows that the trainer gives it. A
worker has no state. The rows (weights, moments, averages) arrive with the plan and the data of a
block, and return with the losses. So methods, probes, checkpoints and rows at rest do not concern a
worker, and nothing is lost when one dies.

Workers run `train/worker.py`. They ignore SIGTERM and SIGHUP: whoever asks a whole job to save and
leave asks this process too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from outlast.errors import TrainingError, short_of_memory
from outlast.processes import Child, ProcessDiedError
from outlast.runs.spec import RunSpec
from outlast.tasks import Batch
from outlast.train.data import of_seeds
from outlast.train.plan import Plan
from outlast.train.seeds import SeedState
from outlast.train.worker import BlockResult, BlockTask, WorkerSetup, serve_blocks


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
        self, seeds: SeedState, waves: Sequence[Sequence[int]], data: Batch, plan: Plan
    ) -> list[Tensor]:
        """The steps of a block: a wave is some rows of `seeds`; returns the metrics of each."""
        metrics: list[Tensor] = []
        count = len(self.workers)
        try:
            for first in range(0, len(waves), count):
                metrics += self._run_at_once(seeds, waves[first : first + count], data, plan)
        except BaseException as error:
            # after a memory error all workers have replied, and may be given smaller waves. After
            # any other error some may still be at work
            if not short_of_memory(error):
                self.close()
            raise
        return metrics

    def _run_at_once(
        self, seeds: SeedState, waves: Sequence[Sequence[int]], data: Batch, plan: Plan
    ) -> list[Tensor]:
        busy = self.workers[: len(waves)]
        for worker, rows in zip(busy, waves, strict=True):
            worker.send(BlockTask(seeds.read(rows), of_seeds(data, rows), plan.of_seeds(rows)))
        results: list[BlockResult] = replies(busy)
        for result, rows in zip(results, waves, strict=True):
            seeds.write(result.rows, rows)
        return [result.metrics for result in results]

    def close(self) -> None:
        """End all workers at once: they have nothing to save."""
        for worker in self.workers:
            worker.close()
        self.workers = []
