"""The data of a block of steps: fresh sequences for every seed that learns, made all at once.

What a seed sees is a pure function of the seed and the block, whoever is beside it. Tables are
(steps, S, batch, tokens); a seed at rest has rows of nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.streams import stream
from outlast.tasks import IGNORE, Batch, Task
from outlast.train.plan import pad_steps

#: sequences made at once, and a seed's at the least; more would take memory and save no time
MOST = 2**16
#: what stands where there is nothing: causal models never look there, and nothing is asked there
BLANK = {"inputs": 0, "targets": IGNORE, "part": -1}


def sample_block(
    task: Task,
    seeds: Sequence[int],
    lengths: Sequence[tuple[int, int]],
    begin: int,
    shape: tuple[int, int],
    device: torch.device,
    idle: Sequence[int] = (),
    by_length: bool = False,
) -> Batch:
    """Sequences for the block that begins at a step, `shape` its steps and the batch.

    `lengths` are those of each seed, the longest rounded down to one that the task has; the rows
    `idle` are left blank. With `by_length` the sequences of a seed are sorted, so that those of a
    step are about as long as each other.
    """
    size = shape[0] * shape[1]
    rows_by_length: dict[tuple[int, int], list[int]] = {}
    for row, (shortest, longest) in enumerate(lengths):
        if row not in idle:  # a curriculum may ask for a length that the task does not have
            pair = (shortest, longest - longest % task.multiple)
            rows_by_length.setdefault(pair, []).append(row)
    samples: list[tuple[list[int], Batch]] = []
    most = max(1, MOST // size)
    for pair, all_rows in rows_by_length.items():
        for rows in (all_rows[at : at + most] for at in range(0, len(all_rows), most)):
            generators = [stream(device, "data", seeds[row], begin) for row in rows]
            batch = task.sample_each(pair, size, generators)
            samples.append((rows, sort_into_steps(batch, shape, begin) if by_length else batch))
    widest = max(batch.inputs.shape[-1] for _, batch in samples)

    def table(name: str) -> Tensor:
        pieces = [(rows, getattr(batch, name)) for rows, batch in samples]
        if len(pieces) == 1 and len(pieces[0][0]) == len(seeds):
            whole: Tensor = pieces[0][1]
        else:
            whole = pieces[0][1].new_full((len(seeds), size, widest), BLANK[name])
            for rows, piece in pieces:
                whole[rows, :, : piece.shape[-1]] = piece
        return whole.unflatten(1, shape).transpose(0, 1).contiguous()

    return Batch(*map(table, BLANK))


def sort_into_steps(batch: Batch, shape: tuple[int, int], begin: int) -> Batch:
    """Sequences (S, all of a block, tokens) in another order: sorted by length into steps.

    The steps then go in an order that depends on the block alone, so that seeds and runs trained
    together have their short steps at the same time.
    """
    places = torch.arange(1, batch.part.shape[-1] + 1, device=batch.part.device)
    needed = ((batch.part >= 0) * places).amax(-1)
    turn = torch.randperm(shape[0], generator=stream(torch.device("cpu"), "order", begin))
    order = needed.argsort(dim=-1, stable=True).unflatten(1, shape)[:, turn.to(needed.device)]
    return batch.map(lambda page: page.gather(1, order.flatten(1)[..., None].expand_as(page)))


def blank_step(seeds: int, batch_size: int, device: torch.device) -> Batch:
    """A step without data, for a run that waits beside others."""
    blank = torch.zeros(1, seeds, batch_size, 1, dtype=torch.long, device=device)
    asked = torch.full_like(blank, BLANK["part"], dtype=torch.int8)
    return Batch(blank + BLANK["inputs"], blank + BLANK["targets"], asked)


def of_seeds(data: Batch, rows: Sequence[int]) -> Batch:
    """The data of some seeds."""
    return data.map(lambda page: page[:, list(rows)].contiguous())


def join(batches: Sequence[Batch]) -> Batch:
    """The data of several runs side by side; a shorter one has nothing at its end."""
    if len(batches) == 1:
        return batches[0]
    steps = max(len(batch.inputs) for batch in batches)
    widest = max(batch.inputs.shape[-1] for batch in batches)

    def table(name: str) -> Tensor:
        pages = [getattr(batch, name) for batch in batches]
        blank = BLANK[name]
        wide = [F.pad(page, (0, widest - page.shape[-1]), value=blank) for page in pages]
        return torch.cat([pad_steps(page, steps, blank) for page in wide], 1)

    return Batch(*map(table, BLANK))
