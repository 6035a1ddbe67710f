"""One block of training steps for all seeds, without a look by the host.

The data, the plan and the metrics of a block lie in tables on the device; a step reads its row
by a counter that lives there too. So on a GPU one step is captured as a CUDA graph and replayed,
and on the CPU the same code simply runs.

`Stepper` steps rows that fit in memory at once. `WaveStepper` steps all rows: wave after wave, or
side by side in processes, without those that rest.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outlast.errors import TrainingError, short_of_memory
from outlast.kernels.loss import part_losses
from outlast.machine import usable_threads
from outlast.runs.spec import RunSpec
from outlast.tasks import IGNORE, Batch
from outlast.train.data import of_seeds
from outlast.train.plan import Plan, Tables
from outlast.train.seeds import SeedState, rows_to_step
from outlast.train.waves import Waves, choose_waves, process_count, rows_at_once, split_evenly
from outlast.train.workers import WorkerPool

log = logging.getLogger(__name__)

#: on a GPU a step's tokens are rounded up to a multiple of this, so that a few graphs serve all
COARSE = 8
#: kinds of work whose graphs are kept: each holds the data of a block, and a curriculum goes
#: through many. Two at the least, as graphs share their memory, which goes with the last of them
KEPT = 8


@dataclass(frozen=True)
class Block:
    """The data of a block and the tables of its plan; each has the steps first, then the seeds."""

    data: Batch
    tables: Tables

    @classmethod
    def of(cls, data: Batch, plan: Plan) -> Block:
        """The data of a block with its plan, on the data's device."""
        return cls(data, plan.map(lambda table: table.to(data.inputs.device)).tables)

    def at(self, step: Tensor) -> Block:
        """The row of one step."""

        def row(table: Tensor) -> Tensor:
            return table.index_select(0, step)[0]

        return Block(self.data.map(row), {n: row(table) for n, table in self.tables.items()})

    def widths(self) -> list[int]:
        """How many tokens each step needs: nothing is asked past them, and nothing looks back."""
        asked = (self.data.part >= 0).any(1).any(1)
        places = torch.arange(1, asked.shape[1] + 1, device=asked.device)
        widths: list[int] = (asked * places).amax(1).clamp_min(1).tolist()
        return widths

    def cut(self, width: int) -> Block:
        """The row of a step with its first tokens only."""
        if width >= self.data.inputs.shape[-1]:
            return self

        def first(page: Tensor) -> Tensor:
            return page[..., :width].contiguous()

        positions = first(self.tables["positions"])
        return Block(self.data.map(first), self.tables | {"positions": positions})

    def copy_(self, other: Block) -> None:
        """Take over the numbers of another block of the same shape."""
        for table, values in zip(self._tensors(), other._tensors(), strict=True):
            table.copy_(values)

    def _tensors(self) -> list[Tensor]:
        return [self.data.inputs, self.data.targets, self.data.part, *self.tables.values()]


@dataclass
class CapturedBlock:
    """The CUDA graphs of one shape of work, by their tokens, and what they read and write."""

    block: Block
    metrics: Tensor
    graphs: dict[int, torch.cuda.CUDAGraph]


class Stepper:
    """Runs blocks of steps; on a GPU through CUDA graphs, one for each shape of the work.

    The graphs that were used last are kept; the others are captured again when they are needed.
    With `by_length` a step has no more tokens than it needs. `pool` is the memory of the graphs.
    """

    def __init__(
        self,
        seeds: SeedState,
        parts: tuple[str, ...],
        bf16: bool,
        pool: Any = None,
        by_length: bool = False,
    ) -> None:
        self.seeds, self.parts, self.bf16 = seeds, parts, bf16
        self.pool, self.by_length = pool, by_length
        self.device = seeds.model.table.device
        self.cursor = torch.zeros(1, dtype=torch.long, device=self.device)
        #: by the shape of the work, what was used last at the end
        self.captured: dict[object, CapturedBlock] = {}

    def run(self, data: Batch, plan: Plan) -> Tensor:
        """All steps of a block; returns losses and accuracies (steps, S, 2, parts).

        data (steps, S, batch, tokens), on the device of the seeds.
        """
        block = Block.of(data, plan)
        self.seeds.model.set_modes(plan.tables)
        steps, seeds, _, tokens = data.inputs.shape
        metrics = torch.zeros(steps, seeds, 2, len(self.parts), device=self.device)
        widths = block.widths() if self.by_length else [tokens] * steps
        if self.device.type == "cuda":
            sublayers = self.seeds.model.model.sublayers()
            modes = tuple((s.gate_mode, s.upstream_mode) for s in sublayers)
            shape = (tuple(data.inputs.shape), block.tables["positions"].shape[-1])
            coarse = [min(-(-width // COARSE) * COARSE, tokens) for width in widths]
            return self._replay((shape, modes), block, metrics, coarse)
        self.cursor.zero_()
        for width in widths:
            self._step(block, metrics, width)
        return metrics

    def _step(self, block: Block, metrics: Tensor, width: int) -> None:
        """One optimiser step of all seeds: forward, losses by part, backward, AdamW, average."""
        now = block.at(self.cursor).cut(width)
        seeds, data, tables = self.seeds, now.data, now.tables
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            logits = seeds.model.run(
                data.inputs,
                controls=tables,
                positions=tables["positions"] if tables["positions"].shape[-1] else None,
                keys=tables["keys"],
            )
        losses, accuracies = part_losses(logits, data.targets, data.part, len(self.parts), IGNORE)
        gradient = seeds.model.gradient((losses * tables["weights"]).sum())
        seeds.optimiser.update(gradient, tables["rate"], tables["active"])
        with torch.no_grad():
            if seeds.average is not None:
                rates = seeds.average_rate * tables["alive"]
                seeds.average.lerp_(seeds.model.table, rates[:, None])
            metrics.index_copy_(0, self.cursor, torch.stack([losses, accuracies], 1)[None].detach())
            self.cursor += 1

    def _replay(self, key: object, block: Block, metrics: Tensor, widths: Sequence[int]) -> Tensor:
        captured = self.captured.pop(key, None)
        if captured is None:
            while len(self.captured) >= KEPT:  # before, so that the new one has the room
                del self.captured[next(iter(self.captured))]
            captured = CapturedBlock(block, metrics, {})
        for width in sorted(set(widths) - captured.graphs.keys()):
            captured.graphs[width] = self._capture(captured.block, captured.metrics, width)
        self.captured[key] = captured
        captured.block.copy_(block)
        self.cursor.zero_()
        for width in widths:
            captured.graphs[width].replay()
        return captured.metrics.clone()

    def _capture(self, block: Block, metrics: Tensor, width: int) -> torch.cuda.CUDAGraph:
        """Warm up on a side stream, record one step, and put every number back as it was."""
        saved = self.seeds.read()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.cursor.zero_()
                self._step(block, metrics, width)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self.cursor.zero_()
        with torch.cuda.graph(graph, pool=self.pool):
            self._step(block, metrics, width)
        self.seeds.write(saved)
        return graph


class WaveStepper:
    """Steps the seeds of some runs: in waves that fit in memory, without those that rest."""

    def __init__(self, seeds: SeedState, runs: Sequence[RunSpec]) -> None:
        self.seeds, self.runs = seeds, runs
        self.device = seeds.model.table.device
        #: the rows that are stepped; the others rest
        self.chosen = tuple(range(len(seeds)))
        self.waves: list[slice] = []
        self.steppers: list[Stepper] = []
        self.workers: WorkerPool | None = None
        self.set_waves([slice(0, len(seeds))])

    @property
    def processes(self) -> int:
        """How many waves are stepped at the same time."""
        return 1 if self.workers is None else len(self.workers.workers)

    @property
    def compact(self) -> bool:
        """Whether some rows are left out."""
        return len(self.chosen) < len(self.seeds)

    def run(self, data: Batch, plan: Plan, before: Sequence[Tensor]) -> Tensor:
        """The steps of a block, wave by wave; returns metrics (steps, seeds, 2, parts).

        `before` is what `SeedState.read` gave. If memory turns out to be short, the rows are put
        back as they were, and the block starts again in smaller waves.
        """
        while True:
            try:
                rows = [self.chosen[wave] for wave in self.waves]
                if self.workers is not None:
                    return self._spread(self.workers.run(self.seeds, rows, data, plan))
                pieces = []
                for stepper, wave in zip(self.steppers, rows, strict=True):
                    if self.compact:
                        stepper.seeds.write(self.seeds.read(wave))
                    pieces.append(stepper.run(*self._of_wave(data, plan, wave)).cpu())
                    if self.compact:
                        self.seeds.write(stepper.seeds.read(), wave)
                return self._spread(pieces)
            except (MemoryError, RuntimeError) as error:
                if rows_at_once(self.waves, 1) == 1 or not short_of_memory(error):
                    raise
            # only now: the error holds on to what the step had made, the old waves to their graphs
            self.steppers = []
            self.seeds.write(before)
            self.set_waves(self._split(rows_at_once(self.waves, self.processes) // 2))
            log.info("memory is short: seeds in %d waves from here on", len(self.waves))

    def _of_wave(self, data: Batch, plan: Plan, rows: Sequence[int]) -> tuple[Batch, Plan]:
        if len(rows) == len(self.seeds):
            return data, plan
        return of_seeds(data, rows), plan.of_seeds(rows)

    def _spread(self, pieces: Sequence[Tensor]) -> Tensor:
        """The metrics of all rows, from those of each wave; rows that were left out have 0."""
        metrics = torch.cat(list(pieces), 1)
        if not self.compact:
            return metrics
        whole = metrics.new_zeros(len(metrics), len(self.seeds), *metrics.shape[2:])
        whole[:, list(self.chosen)] = metrics
        return whole

    # ---- which rows at once --------------------------------------------------------------

    def fit(self, share: float = 1.0, own_positions: bool = False) -> str:
        """Choose waves and processes by the memory that is free; returns how many and why."""
        self.close()
        self.workers = None
        threads = usable_threads()

        def choose(processes: int) -> Waves:
            return choose_waves(self.seeds, self.runs, share, processes, own_positions)

        waves = choose(process_count(self.runs, self.device, threads))
        reason = waves.reason
        if waves.processes > 1:
            try:
                self.workers = WorkerPool(self.runs, waves.processes, threads)
            except Exception as error:  # a task of the caller's script, say, that no other has
                waves = choose(1)
                reason = f"{waves.reason}; not in processes, as they do not start: {error}"
        self.chosen = tuple(range(len(self.seeds)))
        self.set_waves(waves.waves)
        return reason

    def close(self) -> None:
        """End the processes that were started, if any."""
        if self.workers is not None:
            self.workers.close()

    def choose_rows(self, rests: Sequence[int], clock: int) -> None:
        """Leave out rows that rest at the step `clock`, where enough do."""
        if not self.processes:
            raise TrainingError("the processes that stepped seeds are ended: fit() starts others")
        chosen = rows_to_step(rests, clock)
        if chosen != self.chosen:
            self.steppers, self.chosen = [], chosen  # what the old ones held is free for the new
            self._build(self._split(self.most))

    def set_waves(self, waves: Sequence[slice]) -> None:
        """Step these of the chosen rows one after the other, or each in a process."""
        self.most = rows_at_once(waves, self.processes)
        self._build(waves)

    def _split(self, most: int) -> list[slice]:
        """Waves of the chosen rows with so many at once at most."""
        return split_evenly(len(self.chosen), most, self.processes)

    def _build(self, waves: Sequence[slice]) -> None:
        """Make a stepper for each wave; worker processes have steppers of their own."""
        self.waves, self.steppers = list(waves), []
        if self.workers is not None:
            return
        # graphs that never run at the same time, and leave nothing behind, may share their memory
        pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        by_length = all(run.settings.by_length for run in self.runs)
        bf16 = self.runs[0].settings.precision == "bf16"
        for wave in waves:
            seeds = self.seeds
            if self.compact:
                seeds = self.seeds.part(self.chosen[wave])
            elif len(waves) > 1:
                seeds = self.seeds.part(wave)
            self.steppers.append(Stepper(seeds, seeds.model.task.parts, bf16, pool, by_length))
