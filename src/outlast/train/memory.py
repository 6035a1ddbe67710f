"""What a step takes of the device's memory, measured or known before it is made.

The weights and moments of all seeds stay on the device. What is large is what a step keeps for its
backward pass. A dry step at the longest length, forward and backward, measures it.

Waves (`waves.py`) do not help with the tables of all seeds. If a copy of those and the data of a
block are more than there is, that is an error before anything is drawn. If the data alone are too
much, it is an error before a run has a folder.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from outlast.errors import TrainingError, bad_value, short_of_memory
from outlast.kernels.loss import part_losses
from outlast.machine import GIB, free_memory, short_of
from outlast.runs.spec import Settings
from outlast.streams import stream
from outlast.tasks import IGNORE, Batch, Task
from outlast.tasks.base import TOKEN
from outlast.train.seeds import SeedState

#: the most rows of a dry step; as with many, so that kernels are not made for it alone
DRY = 8
#: what a step takes over what it keeps for the backward pass: gradients on their way, copies
OVERHEAD = 2.0
#: tables of all weights that training keeps: the weights, two moments, and a copy to fall back to
TABLES = 4
#: the share of a card from which on it is worth a sentence that other processes hold it
MUCH = 0.1


def other_processes(device: torch.device) -> str:
    """A sentence about other processes on the card, if they hold much of it; else nothing."""
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    return shared_card(free, total, torch.cuda.memory_reserved(device))


def shared_card(free: int, total: int, reserved: int) -> str:
    """What to say if other processes hold much of a card; `reserved` is what this one holds.

    A context of CUDA takes a part of a GiB by itself, so a little is not said.
    """
    others = total - free - reserved
    if others < max(GIB, MUCH * total):
        return ""
    return (
        f" Other processes hold {others / GIB:.3g} of the {total / GIB:.3g} GiB of this card, and "
        f"this one {reserved / GIB:.3g}: wait for them, or take another card (see nvidia-smi, "
        f"--device cuda:1)."
    )


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
            f"{settings.steps_per_block} steps of {count_seeds(rows)} takes "
            f"{needed / GIB:.3g} GiB. Take a smaller batch_size or steps_per_block, or fewer seeds "
            f"in one run; seeds_at_once=1 tries all the same.{other_processes(device)}",
        )


def check_weights(parameters: int, rows: int, device: torch.device) -> None:
    """Raise if the weights of all seeds, and what training keeps beside them, do not fit."""
    needed = 4 * TABLES * parameters * rows
    free = short_of(needed, device)
    if free is not None:
        raise bad_value(
            "seeds",
            count_seeds(rows),
            f"as many as fit into the {free / GIB:.3g} GiB that {device} has free: weights and "
            f"moments take {needed / GIB:.3g} GiB at {parameters:,} parameters a seed. Take fewer "
            f"seeds, a smaller width or a smaller vocabulary",
        )


def check_tables(rows: int, copy: int, data: int, device: torch.device) -> None:
    """Raise if what no wave can do without is more than all that is free."""
    needed, free = copy + data, free_memory(device)
    if needed > free:
        raise TrainingError(
            f"{count_seeds(rows)} in one run take {needed / GIB:.3g} GiB beside their weights and "
            f"moments: {copy / GIB:.3g} for a copy of these, {data / GIB:.3g} for the data of a "
            f"block. {device} has {free / GIB:.3g} GiB free. Train fewer seeds in one run, or with "
            f"a smaller batch_size or steps_per_block; seeds_at_once=1 tries all the same."
            f"{other_processes(device)}"
        )


def bytes_of_seed(
    seeds: SeedState, settings: Settings, own_positions: bool = False, windowed: bool = False
) -> float:
    """What the step of one seed takes, by a dry step of some at the longest length.

    `own_positions`: each seed has positions of its own, and so a bias of its own. `windowed`: its
    attention is kept to a window.
    """
    task, device = seeds.model.task, seeds.model.table.device
    shape = (min(len(seeds), DRY), settings.batch_size)
    data = task.sample(task.lengths[1], shape[0] * shape[1], stream(device, "dry step"))
    data = data.map(lambda page: page.unflatten(0, shape))
    how = (settings.precision == "bf16", own_positions, windowed)
    return max(1.0, _bytes_of_seed(seeds, data, how))


def _bytes_of_seed(seeds: SeedState, data: Batch, how: tuple[bool, bool, bool]) -> float:
    """Bytes of one seed's step, by a dry step of those that data are given for, or of fewer."""
    rows = len(data.inputs)
    try:
        return dry_step(seeds.part(slice(rows)), data, *how) / rows
    except (MemoryError, RuntimeError) as error:
        if not short_of_memory(error):
            raise
        if rows == 1:
            raise TrainingError(
                f"a step of one seed does not fit into the memory of {data.inputs.device}: take a "
                f"smaller batch_size, model or length ({error})."
                f"{other_processes(data.inputs.device)}"
            ) from error
    # only now: the error holds on to what the step had made
    return _bytes_of_seed(seeds, data.map(lambda page: page[: rows // 2]), how)


def count_seeds(seeds: int) -> str:
    """``1 seed``, ``2 seeds``."""
    return f"{seeds} seed{'s' * (seeds != 1)}"


def dry_step(
    seeds: SeedState,
    data: Batch,
    bf16: bool,
    own_positions: bool = False,
    windowed: bool = False,
) -> float:
    """Bytes that a forward and backward pass takes; nothing is changed."""
    device, model = data.inputs.device, seeds.model
    model.set_modes()
    keys = torch.zeros(len(seeds), dtype=torch.long, device=device)
    tokens = torch.arange(data.inputs.shape[-1], device=device)
    positions = tokens.repeat(len(seeds), 1) if own_positions else None
    windows = keys + len(tokens) if windowed else None
    parts = len(model.task.parts)

    def losses() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            logits = model.run(data.inputs, positions=positions, keys=keys, windows=windows)
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
