"""The training of some seeds as `outlast bench seeds` runs it: step by step, or block by block."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from outlast.bench.seeds.plain import FULL, Size
from outlast.bench.timing import Bench, not_run
from outlast.machine import precision
from outlast.runs.spec import RunSpec, Settings
from outlast.train.step import BlockTables
from outlast.train.trainer import Trainer

#: steps in one turn: a turn of a few is longer than what starting it costs
STEPS = 3


def block_settings(steps_per_block: int, **changed: Any) -> Settings:
    """Settings of a run whose blocks are timed: no end, no probes and no checkpoints in sight."""
    return Settings(
        steps=10**6,
        steps_per_block=steps_per_block,
        probe_every=0,
        checkpoint_every=10**6 * steps_per_block,
        **changed,
    )


@dataclass
class Loop:
    """The training of some seeds, brought to where its steps can be run one by one."""

    bench: Bench
    seeds: int
    size: Size
    precision: str = "auto"
    by_length: bool = False
    folder: TemporaryDirectory[str] = field(default_factory=TemporaryDirectory)

    def __post_init__(self) -> None:
        size, seeds = self.size, tuple(range(self.seeds))
        changed = {"precision": self.precision, "by_length": self.by_length}
        settings = block_settings(size.block, batch_size=size.batch, **changed)
        run = RunSpec(size.task, size.model, (), seeds, settings)
        self.trainer = Trainer([(run, Path(self.folder.name))], self.bench.device)
        (self.run_state,), (self.stepper,) = self.trainer.runs, self.trainer.stepper.steppers
        plan = self.run_state.methods.plan(0, STEPS)
        data = self.run_state.data(0, plan)
        self.few_steps = BlockTables.of(data, plan)
        self.block_plan = self.run_state.methods.plan(0, settings.steps_per_block)
        self.graph: torch.cuda.CUDAGraph | None = None
        if self.bench.device.type == "cuda":
            self.stepper.run(data, plan)  # captures a step
            (captured,) = self.stepper.captured.values()
            self.graph = next(iter(captured.graphs.values()))

    @property
    def tokens(self) -> int:
        """Of one seed in one step."""
        return self.few_steps.data.inputs[0, 0].numel()

    def steps(self) -> None:
        """A few steps of all seeds."""
        stepper = self.stepper
        stepper.cursor.zero_()
        if self.graph is not None:
            for _ in range(STEPS):
                self.graph.replay()
            return
        parts = len(self.run_state.task.parts)
        metrics = torch.zeros(STEPS, self.seeds, 2, parts)
        for _ in range(STEPS):
            stepper._step(self.few_steps, metrics, self.few_steps.data.inputs.shape[-1])

    def block(self) -> None:
        """A whole block of training."""
        self.trainer.train(blocks=1)

    def data(self) -> None:
        """The data of a block, without the plan they are made by."""
        self.run_state.data(0, self.block_plan)

    def rate(self, ms: float) -> str:
        """A step's time as steps of a seed, and tokens, in a second."""
        return rates(self.seeds, self.tokens, ms)


def rates(seeds: int, tokens: int, ms: float) -> str:
    """Steps of a seed in a second, and millions of tokens."""
    each = seeds / ms * 1e3
    return f"{each:.0f} seed-steps/s, {each * tokens / 1e6:.2f} M tokens/s"


def loop_with_memory(bench: Bench, make: Callable[[], Loop]) -> tuple[Loop | str, float | None]:
    """A loop and the MiB it holds at most, or why there is none."""
    cuda = bench.device.type == "cuda"
    before = 0
    if cuda:
        gc.collect()  # loops of an earlier group hold their graphs until then
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    try:
        loop = make()
    except RuntimeError as error:
        return not_run(error), None
    return loop, (torch.cuda.max_memory_allocated() - before) / 2**20 if cuda else None


def compile_mixer(mixer: str, precision_name: str) -> None:
    """One step of a model of one mixer: it compiles the mixer's kernels."""
    device = torch.device("cuda")
    settings = block_settings(1, precision=precision_name)
    run = RunSpec(FULL.task, f"{mixer} @ {FULL.width}", (), (0, 1), settings)
    with TemporaryDirectory() as folder, precision(precision_name, device):
        Trainer([(run, Path(folder))], device).train(blocks=1)
