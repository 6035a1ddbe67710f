"""How all seeds are stepped: as many at once as fit in memory, the rest in waves.

A wave is some of the rows. Each block of steps is done for one wave after the other, and the run
does not notice. On a CPU several processes may step waves side by side (`workers.py`). Rows that
rest are left out, where it saves. `memory.py` says what a seed takes.

A run in waves that is resumed with other memory free may be cut in other waves. It is then the same
up to float32 rounding; the setting `seeds_at_once` fixes the waves.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from outlast.errors import TrainingError, short_of_memory
from outlast.machine import GIB, free_memory, usable_threads
from outlast.runs.spec import RunSpec
from outlast.tasks import Batch
from outlast.train.data import of_seeds
from outlast.train.memory import bytes_of_data, bytes_of_seed, check_tables, count_seeds
from outlast.train.plan import Plan
from outlast.train.seeds import SeedState, rows_to_step
from outlast.train.step import Stepper
from outlast.train.workers import WorkerPool

log = logging.getLogger(__name__)

MIB = 2**20
#: the share of free memory that the seeds of a step may take
USABLE = {"cuda": 0.8, "cpu": 0.5}
#: copies of a block's data: sampled, put in order, cut into waves, and those of a CUDA graph
DATA_COPIES = 4
#: more copies of rows and data on their way to another process: packed, on arrival, and unpacked
MOVED = 3
#: what a process takes for itself, before it steps any row: mostly torch
PER_PROCESS = 0.3 * GIB
#: a run with fewer steps, or fewer steps in a block, does not repay the start of its processes and
#: the way there and back (`outlast bench seeds --sections processes`)
LONG, LONG_BLOCK = 500, 10


@dataclass(frozen=True)
class Waves:
    """Rows cut into waves as even as can be, as many at a time as there are processes; and why."""

    waves: list[slice]
    reason: str
    processes: int = 1


def split_evenly(rows: int, most: int, processes: int = 1) -> list[slice]:
    """Waves as even as can be, in the fewest turns of at most `most` rows.

    A turn is as many waves as there are processes.
    """
    turns = -(-rows // max(1, most))
    count = min(rows, turns * processes)
    ends = [round(rows * i / count) for i in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]


def rows_at_once(waves: Sequence[slice], processes: int) -> int:
    """The most rows that are stepped at the same time, with so many waves at a time."""
    sizes = [wave.stop - wave.start for wave in waves]
    return max(sum(sizes[turn : turn + processes]) for turn in range(0, len(sizes), processes))


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
    pays = steps >= LONG and runs[0].settings.steps_per_block >= LONG_BLOCK
    return min(rows, threads) if pays else 1


def choose_waves(
    seeds: SeedState,
    runs: Sequence[RunSpec],
    share: float = 1.0,
    processes: int = 1,
    own_positions: bool = False,
    windowed: bool = False,
) -> Waves:
    """Waves for the seeds of some runs, so that a step fits in memory.

    `share` is the share of the device that may be used; `processes` are the most that may step
    waves at the same time. `own_positions`: each seed has positions of its own, and so a bias.
    `windowed`: attention is kept to a window.
    """
    settings = runs[0].settings
    wanted = [run.settings.seeds_at_once for run in runs if run.settings.seeds_at_once]
    if wanted:
        return _waves(len(seeds), min(wanted), "as set", processes)
    device = seeds.model.table.device
    copy = sum(table.nbytes for table in seeds.tables())
    data = bytes_of_data(seeds.model.task, len(seeds), settings)
    check_tables(len(seeds), copy, data, device)
    each = bytes_of_seed(seeds, settings, own_positions, windowed)
    tables = 2 * copy + DATA_COPIES * data  # copied at a block's start, and for a capture
    room = free_memory(device) * USABLE[device.type] * share - tables

    def room_left(processes: int) -> float:
        return room - (processes * PER_PROCESS + MOVED * (copy + data) if processes > 1 else 0)

    while processes > 1 and room_left(processes) < processes * each:
        processes -= 1
    usable = max(0.0, room_left(processes))
    size = f"{each / GIB:.2g} GiB" if each >= 0.1 * GIB else f"{each / MIB:.2g} MiB"
    reason = f"about {size} a seed, {usable / GIB:.3g} GiB to use"
    return _waves(len(seeds), max(1, int(usable // each)), reason, processes)


def _waves(rows: int, most: int, reason: str, processes: int) -> Waves:
    processes = min(processes, most, rows)
    waves = split_evenly(rows, most, processes)
    largest, most = rows_at_once(waves, 1), rows_at_once(waves, processes)
    how = "at once" if processes == 1 else f"in {processes} processes"
    if len(waves) > processes:
        first = "" if processes == 1 else f"{how}, {most} at once, "
        how = f"{first}in {len(waves)} waves of {largest} at most"
    return Waves(waves, f"{count_seeds(rows)} {how} ({reason})", processes)


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

    def choose_waves(
        self, share: float = 1.0, own_positions: bool = False, windowed: bool = False
    ) -> str:
        """Choose waves and processes by the memory that is free; returns how many and why."""
        self.close()
        self.workers = None
        threads = usable_threads()

        def choose(processes: int) -> Waves:
            seeds, runs = self.seeds, self.runs
            return choose_waves(seeds, runs, share, processes, own_positions, windowed)

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
            raise TrainingError(
                "the processes that stepped seeds are ended: choose_waves() starts others"
            )
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
