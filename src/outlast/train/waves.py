"""How many seeds are trained at once: as many as fit in the device's memory, the rest in waves.

The weights and moments of all seeds stay on the device; what is large is what a step keeps for its
backward pass. So a wave is some of the rows: each block of steps is done for one wave after the
other, and the run is none the wiser. How much a seed takes is measured by a dry step, forward and
backward, at the longest length. Waves do nothing for the tables of all seeds: where a copy of those
and a block's data are more than there is, that is an error before anything is drawn; where the data
alone are, before a run has a folder.

A run in waves that is resumed where other memory is free may be cut in other waves, and is then the
same to float32 rounding only; the setting `together` fixes them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from outlast.errors import TrainingError, bad_value, short_of_memory
from outlast.kernels.loss import part_losses
from outlast.machine import CONTAINER, SYSTEM, memory_left
from outlast.methods.base import PATHWAYS
from outlast.tasks import IGNORE, Batch, Task
from outlast.train.rows import SeedState
from outlast.train.settings import Settings

#: the most rows of a dry step; as with many, so that kernels are not made for it alone
DRY = 8
#: the share of free memory that the seeds of a step may take
USABLE = {"cuda": 0.8, "cpu": 0.5}
#: what a step takes over what it keeps for the backward pass: gradients on their way, copies
OVERHEAD = 2.0
#: copies of a block's data: made, put in order, cut into waves, and in the hands of a CUDA graph
DATA_COPIES = 4
#: copies more of rows and data on their way to another process: packed, on arrival, and unpacked
MOVED = 3
#: bytes of a token: its id, the answer due there, and the part that is tested
TOKEN = 8 + 8 + 1
GIB, MIB = 2**30, 2**20
#: what a process takes for itself, before it steps any row: mostly torch
OWN = 0.3 * GIB


@dataclass(frozen=True)
class Fit:
    """How many rows at once, in waves as even as can be, and the reason in words.

    So many waves at a time as there are processes.
    """

    waves: list[slice]
    why: str
    processes: int = 1


def even(rows: int, most: int, beside: int = 1) -> list[slice]:
    """Waves as even as can be, `beside` at a time, in the fewest turns of at most `most` rows."""
    turns = -(-rows // max(1, most))
    count = min(rows, turns * beside)
    ends = [round(rows * i / count) for i in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]


def at_once(waves: Sequence[slice], beside: int) -> int:
    """The most rows that are stepped at the same time, with so many waves at a time."""
    sizes = [wave.stop - wave.start for wave in waves]
    return max(sum(sizes[turn : turn + beside]) for turn in range(0, len(sizes), beside))


def fit(
    rows: SeedState,
    draw: Callable[[], Batch],
    pages: int,
    parts: int,
    bf16: bool,
    together: int,
    share: float,
    drawn: bool = False,
    processes: int = 1,
) -> Fit:
    """Waves for all rows, by one step's data of some of them (s, batch, tokens).

    `draw` makes those, of the longest length; `pages` are the bytes of a whole block's. `together`
    is how many were asked for, 0 for as many as fit; `share` is the share of the device that is
    ours; `processes` are the most that may step waves at the same time.
    """
    if together:
        return _told(len(rows), together, "as told", processes)
    device = rows.stack.table.device
    copy = sum(table.nbytes for table in rows.tables())
    _check(len(rows), copy, pages, device)
    each = max(1.0, _each(rows, draw(), parts, bf16, drawn))
    tables = 2 * copy + DATA_COPIES * pages  # copied at a block's start, and for a capture
    room = free_memory(device) * USABLE[device.type] * share - tables

    def left(processes: int) -> float:
        return room - (processes * OWN + MOVED * (copy + pages) if processes > 1 else 0)

    while processes > 1 and left(processes) < processes * each:
        processes -= 1
    usable = max(0.0, left(processes))
    size = f"{each / GIB:.2g} GiB" if each >= 0.1 * GIB else f"{each / MIB:.2g} MiB"
    why = f"about {size} a seed, {usable / GIB:.3g} GiB to use"
    return _told(len(rows), max(1, int(usable // each)), why, processes)


def bytes_of_data(task: Task, rows: int, settings: Settings) -> int:
    """What the data of a block take at most, known before any are drawn."""
    return rows * settings.block * settings.batch * task.tokens(task.lengths[1]) * TOKEN


def check_data(task: Task, rows: int, settings: Settings, device: torch.device) -> None:
    """A block whose data alone are more than all that is free is an error, unless told to try."""
    needed, free = bytes_of_data(task, rows, settings), free_memory(device)
    if needed > free and not settings.together:
        raise bad_value(
            "batch",
            settings.batch,
            f"one whose data fit into the {free / GIB:.3g} GiB that {device} has free: a block of "
            f"{settings.block} steps of {_seeds(rows)} takes {needed / GIB:.3g} GiB. Take a "
            f"smaller batch or block, or fewer seeds in one run; together=1 tries all the same",
        )


def _check(rows: int, copy: int, pages: int, device: torch.device) -> None:
    """What no wave can do without is an error where it is more than all that is free."""
    needed, free = copy + pages, free_memory(device)
    if needed > free:
        raise TrainingError(
            f"{_seeds(rows)} in one run take {needed / GIB:.3g} GiB beside their weights and "
            f"moments: {copy / GIB:.3g} for a copy of these, {pages / GIB:.3g} for the data of a "
            f"block. {device} has {free / GIB:.3g} GiB free. Train fewer seeds in one run, or with "
            f"a smaller batch or block; together=1 tries all the same."
        )


def _each(rows: SeedState, data: Batch, parts: int, bf16: bool, drawn: bool) -> float:
    """Bytes of one seed's step, by a dry step of those that data are given for, or of fewer."""
    some = len(data.inputs)
    try:
        return dry_step(rows.part(slice(some)), data, parts, bf16, drawn) / some
    except (MemoryError, RuntimeError) as error:
        if not short_of_memory(error):
            raise
        if some == 1:
            raise TrainingError(
                f"a step of one seed does not fit into the memory of {data.inputs.device}: take a "
                f"smaller batch, model or length ({error})"
            ) from error
    # only now: the error holds on to what the step had made
    return _each(rows, data.map(lambda page: page[: some // 2]), parts, bf16, drawn)


def _told(rows: int, most: int, why: str, processes: int = 1) -> Fit:
    processes = min(processes, most, rows)
    waves = even(rows, most, processes)
    largest, most = at_once(waves, 1), at_once(waves, processes)
    how = "at once" if processes == 1 else f"in {processes} processes"
    if len(waves) > processes:
        first = "" if processes == 1 else f"{how}, {most} at once, "
        how = f"{first}in {len(waves)} waves of {largest} at most"
    return Fit(waves, f"{_seeds(rows)} {how} ({why})", processes)


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count != 1)}"


def dry_step(rows: SeedState, data: Batch, parts: int, bf16: bool, drawn: bool = False) -> float:
    """Bytes that a forward and backward pass takes; nothing is changed.

    `drawn`: each seed has positions of its own, and so a bias of its own.
    """
    device = data.inputs.device
    rows.stack.set_controls({p: [1.0] for p in PATHWAYS}, {p: [1.0] for p in PATHWAYS})

    keys = torch.zeros(len(rows), dtype=torch.long, device=device)
    tokens = torch.arange(data.inputs.shape[-1], device=device)
    positions = tokens.repeat(len(rows), 1) if drawn else None

    def losses() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            logits = rows.stack.run(data.inputs, positions=positions, keys=keys)
        return part_losses(logits, data.targets, data.part, parts, IGNORE)[0].sum()

    if device.type == "cuda":
        return _peak(lambda: rows.stack.gradient(losses()), device)
    return OVERHEAD * _kept(losses) + 4.0 * rows.stack.table.numel()


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


def free_memory(device: torch.device) -> float:
    """Bytes that can still be had: on a GPU those that torch holds and does not use count too."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(free + idle)
    told = [room for room in (_available(), memory_left(SYSTEM, CONTAINER)) if room is not None]
    if told:
        return min(told)
    # not told on this system: half of all there is
    return float(os.sysconf("SC_PHYS_PAGES") // 2 * os.sysconf("SC_PAGE_SIZE"))


def _available() -> float | None:
    """What the system could give, caches included that it would drop for it."""
    with suppress(OSError, ValueError):
        for line in (SYSTEM / "meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == "MemAvailable":
                return float(rest.split()[0]) * 1024
    return None
