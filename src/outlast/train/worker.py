"""What a worker process does: it steps the rows that it is sent (`train/workers.py`)."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outlast.machine import keep_freed_memory
from outlast.processes import Parent
from outlast.registry import tasks
from outlast.runs.spec import RunSpec
from outlast.tasks import Batch
from outlast.train.plan import Plan
from outlast.train.seeds import SeedState
from outlast.train.step import Stepper


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker needs to know before its first block."""

    runs: tuple[RunSpec, ...]
    threads: int
    matmul_precision: str


@dataclass(frozen=True)
class BlockTask:
    """A block of steps for some rows, as `SeedState.read` gives them."""

    rows: list[Tensor]
    data: Batch
    plan: Plan


@dataclass(frozen=True)
class BlockResult:
    """The rows after a block, and its metrics (steps, S, 2, parts)."""

    rows: list[Tensor]
    metrics: Tensor


class BlockRunner:
    """A model without weights of its own, and how to step any rows of it."""

    def __init__(self, setup: WorkerSetup) -> None:
        torch.set_num_threads(setup.threads)
        torch.set_float32_matmul_precision(setup.matmul_precision)
        keep_freed_memory()
        # one seed of each run: if any run keeps an average, there is one here too
        runs = [replace(run, seeds=run.seeds[:1]) for run in setup.runs]
        self.template = SeedState.create(runs, torch.device("cpu"))
        self.parts = tasks.build(runs[0].task).parts
        self.bf16 = runs[0].settings.precision == "bf16"
        self.by_length = all(run.settings.by_length for run in runs)

    def run(self, task: BlockTask) -> BlockResult:
        """The steps of a block."""
        seeds = self.template.part([0] * len(task.plan.lengths))
        seeds.write(task.rows)
        stepper = Stepper(seeds, self.parts, self.bf16, by_length=self.by_length)
        metrics = stepper.run(task.data, task.plan)
        return BlockResult(seeds.read(), metrics)


def serve_blocks(parent: Parent) -> None:
    """Answer setups and tasks until the pipe is closed."""
    warnings.simplefilter("ignore")  # the parent has shown them
    logging.disable()
    runner: BlockRunner | None = None

    def handle(message: WorkerSetup | BlockTask) -> BlockResult | None:
        nonlocal runner
        if isinstance(message, WorkerSetup):
            runner = BlockRunner(message)
            return None
        if runner is None:
            raise RuntimeError("a block came before the setup")
        return runner.run(message)

    parent.answer(handle)
