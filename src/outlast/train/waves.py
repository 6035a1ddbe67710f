"""How many seeds are stepped at once: as many as fit in the device's memory, the rest in waves.

The weights and moments of all seeds stay on the device. What is large is what a step keeps for its
backward pass. So a wave is some of the rows: each block of steps is done for one wave after the
other, and the run does not notice. A dry step at the longest length, forward and backward, measures
what a seed takes. On a CPU several processes may step waves side by side (`workers.py`).

Waves do not help with the tables of all seeds. If a copy of those and the data of a block are more
than there is, that is an error before anything is drawn. If the data alone are too much, it is an
error before a run has a folder.

A run in waves that is resumed with other memory free may be cut in other waves. It is then the same
up to float32 rounding; the setting `seeds_at_once` fixes the waves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from outlast.errors import TrainingError, bad_value, short_of_memory
from outlast.kernels.loss import part_losses
from outlast.machine import free_memory
from outlast.runs.spec import RunSpec, Settings
from outlast.streams import stream
from outlast.tasks import IGNORE, Batch, Task
from outlast.train.seeds import SeedState

#: the most rows of a dry step; as with many, so that kernels are not made for it alone
DRY = 8
#: the share of free memory that the seeds of a step may take
USABLE = {"cuda": 0.8, "cpu": 0.5}
#: what a step takes over what it keeps for the backward pass: gradients on their way, copies
OVERHEAD = 2.0
#: copies of a block's data: sampled, put in order, cut into waves, and those of a CUDA graph
DATA_COPIES = 4
#: more copies of rows and data on their way to another process: packed, on arrival, and unpacked
MOVED = 3
#: bytes of a token: its id, the answer due there, and the part that is tested
TOKEN = 8 + 8 + 1
GIB, MIB = 2**30, 2**20
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
    """How many processes are to step the seeds of some runs, by their settings or by the rule.

    It depends on the settings and on the threads alone. So a run that is resumed with as many
    threads is bit for bit the run that was not stopped.
    """
    if device.type != "cpu":
        return 1
    rows, steps = sum(len(run.seeds) for run in runs), max(run.settings.steps for run in runs)
    wanted = [run.settings.processes for run in runs if run.settings.processes]
    if wanted:
        return min([*wanted, rows])
    pays = steps >= LONG and runs[0].settings.steps_per_block >= LONG_BLOCK
    return min(rows, threads) if pays else 1


def choose_waves(
    seeds: SeedState,
    runs: Sequence[RunSpec],
    share: float = 1.0,
    processes: int = 1,
    own_positions: bool = False,
) -> Waves:
    """Waves for the seeds of some runs, so that a step fits in memory.

    `share` is the share of the device that may be used; `processes` are the most that may step
    waves at the same time. `own_positions`: each seed has positions of its own, and so a bias.
    """
    settings, task = runs[0].settings, seeds.model.task
    wanted = [run.settings.seeds_at_once for run in runs if run.settings.seeds_at_once]
    if wanted:
        return _waves(len(seeds), min(wanted), "as set", processes)
    device = seeds.model.table.device
    copy = sum(table.nbytes for table in seeds.tables())
    data = bytes_of_data(task, len(seeds), settings)
    _check_tables(len(seeds), copy, data, device)
    batch = _longest_batch(task, (min(len(seeds), DRY), settings.batch_size), device)
    bf16 = settings.precision == "bf16"
    each = max(1.0, _bytes_of_seed(seeds, batch, bf16, own_positions))
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
    return Waves(waves, f"{_count(rows)} {how} ({reason})", processes)


def bytes_of_data(task: Task, rows: int, settings: Settings) -> int:
    """What the data of a block take at most, known before any are drawn."""
    sequences = rows * settings.steps_per_block * settings.batch_size
    return sequences * task.tokens(task.lengths[1]) * TOKEN


def check_data(task: Task, rows: int, settings: Settings, device: torch.device) -> None:
    """Raise if the data of a block alone are more than all that is free.

    With `seeds_at_once` set it is tried all the same.
    """
    needed, free = bytes_of_data(task, rows, settings), free_memory(device)
    if needed > free and not settings.seeds_at_once:
        raise bad_value(
            "batch_size",
            settings.batch_size,
            f"one whose data fit into the {free / GIB:.3g} GiB that {device} has free: a block of "
            f"{settings.steps_per_block} steps of {_count(rows)} takes {needed / GIB:.3g} GiB. "
            f"Take a smaller batch_size or steps_per_block, or fewer seeds in one run; "
            f"seeds_at_once=1 tries all the same",
        )


def _check_tables(rows: int, copy: int, data: int, device: torch.device) -> None:
    """Raise if what no wave can do without is more than all that is free."""
    needed, free = copy + data, free_memory(device)
    if needed > free:
        raise TrainingError(
            f"{_count(rows)} in one run take {needed / GIB:.3g} GiB beside their weights and "
            f"moments: {copy / GIB:.3g} for a copy of these, {data / GIB:.3g} for the data of a "
            f"block. {device} has {free / GIB:.3g} GiB free. Train fewer seeds in one run, or with "
            f"a smaller batch_size or steps_per_block; seeds_at_once=1 tries all the same."
        )


def _longest_batch(task: Task, shape: tuple[int, int], device: torch.device) -> Batch:
    """Data of one step of the longest length, (seeds, batch, tokens)."""
    data = task.sample(task.lengths[1], shape[0] * shape[1], stream(device, "dry step"))
    return data.map(lambda page: page.unflatten(0, shape))


def _bytes_of_seed(seeds: SeedState, data: Batch, bf16: bool, own_positions: bool) -> float:
    """Bytes of one seed's step, by a dry step of those that data are given for, or of fewer."""
    rows = len(data.inputs)
    try:
        return dry_step(seeds.part(slice(rows)), data, bf16, own_positions) / rows
    except (MemoryError, RuntimeError) as error:
        if not short_of_memory(error):
            raise
        if rows == 1:
            raise TrainingError(
                f"a step of one seed does not fit into the memory of {data.inputs.device}: take a "
                f"smaller batch_size, model or length ({error})"
            ) from error
    # only now: the error holds on to what the step had made
    return _bytes_of_seed(seeds, data.map(lambda page: page[: rows // 2]), bf16, own_positions)


def _count(seeds: int) -> str:
    return f"{seeds} seed{'s' * (seeds != 1)}"


def dry_step(seeds: SeedState, data: Batch, bf16: bool, own_positions: bool = False) -> float:
    """Bytes that a forward and backward pass takes; nothing is changed."""
    device, model = data.inputs.device, seeds.model
    model.set_modes()
    keys = torch.zeros(len(seeds), dtype=torch.long, device=device)
    tokens = torch.arange(data.inputs.shape[-1], device=device)
    positions = tokens.repeat(len(seeds), 1) if own_positions else None
    parts = len(model.task.parts)

    def losses() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            logits = model.run(data.inputs, positions=positions, keys=keys)
        return part_losses(logits, data.targets, data.part, parts, IGNORE)[0].sum()

    if device.type == "cuda":
        return _peak(lambda: model.gradient(losses()), device)
    return OVERHEAD * _kept(losses) + 4.0 * model.table.numel()


def _peak(work: Callable[[], object], device: torch.device) -> float:
    """By the allocator's own count; once before, for what is made but once."""
    work()
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    return float(torch.cuda.max_memory_allocated(device) - before)


def _kept(work: Callable[[], object]) -> float:
    """By what autograd keeps, each piece of memory counted once."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        result = work()  # kept until it is counted, so that no memory is used twice
    total = float(sum(sizes.values()))
    del result
    return total
