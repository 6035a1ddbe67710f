"""Random draws from one generator, or from the generators of several seeds at once.

Seeds that are trained together have a generator each, and one sampler can write the sequences of
all of them. `SeedGenerators` stands in for a generator: its rows are drawn seed by seed, each from
its own generator. A generator gives exactly what it gives when it is sampled alone. Only the draws
are repeated for each seed; everything after them is done once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outlast.errors import bad_value
from outlast.machine import GIB, short_of

_MANY = 2**62


class SeedGenerators:
    """Generators that share a draw: the first rows belong to the first one, and so on.

    Only the functions below know it. Anything else that wants a `torch.Generator` refuses it.
    """

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self.generators = tuple(generators)
        self.device = self.generators[0].device

    def split(self, table: Tensor) -> zip[tuple[Tensor, torch.Generator]]:
        """The rows of each generator in a table, with that generator."""
        rows = table.unflatten(0, (len(self.generators), -1)).unbind(0)
        return zip(rows, self.generators, strict=True)


def randint(
    low: int, high: int, shape: Sequence[int], generator: torch.Generator | SeedGenerators
) -> Tensor:
    """Uniform whole numbers from `low` to below `high`, of `shape`."""
    if isinstance(generator, torch.Generator):
        return torch.randint(low, high, shape, generator=generator, device=generator.device)
    table = torch.empty(tuple(shape), dtype=torch.int64, device=generator.device)
    for rows, of_seed in generator.split(table):
        rows.random_(low, high, generator=of_seed)
    return table


def rand(
    shape: Sequence[int],
    generator: torch.Generator | SeedGenerators,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Uniform numbers from 0 to below 1, of `shape`."""
    if isinstance(generator, torch.Generator):
        return torch.rand(shape, generator=generator, device=generator.device, dtype=dtype)
    table = torch.empty(tuple(shape), dtype=dtype, device=generator.device)
    for rows, of_seed in generator.split(table):
        rows.uniform_(generator=of_seed)
    return table


def randint_below(limits: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform whole numbers below limits that differ, shaped like the limits."""
    # randint takes no tensor as a limit; from a range this wide the remainder is uniform enough.
    return randint(0, _MANY, limits.shape, generator) % limits


def bernoulli(probability: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """True with the given probability, of `shape`."""
    return rand(shape, generator) < probability


def distinct(batch: int, choices: int, count: int, generator: torch.Generator) -> Tensor:
    """For each row `count` different numbers below `choices` in random order, (batch, count).

    On a GPU a few out of many are drawn by swaps: count squared operations a row, not a sort of all
    choices. Elsewhere a sort is as fast, and a seed draws what it always drew there.
    """
    if generator.device.type == "cuda" and count * count <= choices:
        return by_swaps(batch, choices, count, generator)
    return by_rank(batch, choices, count, generator)


def by_rank(batch: int, choices: int, count: int, generator: torch.Generator) -> Tensor:
    """`distinct` as the places of the highest random scores."""
    # In double precision ties almost never occur, so every device's topk gives one result.
    needed, device = 8 * batch * choices, generator.device
    free = short_of(needed, device)
    if free is not None:
        accepted = f"a number whose draws fit into the {free / GIB:.3g} GiB that {device} has free"
        raise bad_value("keys", choices, f"{accepted}: {batch} sequences take {needed / GIB:.3g}")
    scores = rand((batch, choices), generator, torch.float64)
    return scores.topk(count, dim=1).indices


def by_swaps(batch: int, choices: int, count: int, generator: torch.Generator) -> Tensor:
    """`distinct` as the first steps of a Fisher-Yates shuffle, all of them at once.

    Step i of the shuffle swaps place i with a place j_i drawn from i on. What comes to lie at i is
    never moved again. So the number at place p in step i is what the last step k < i with j_k = p
    put there, which is what lay at place k before. If there is no such step, it is p itself.
    """
    step = torch.arange(count, device=generator.device)
    drawn = step + randint_below((choices - step).expand(batch, -1), generator)
    # for each step: the last one before that put something at the place drawn, or at place i
    places = torch.cat([drawn, step.expand(batch, -1)], 1)
    before = torch.where(step < step[:, None], step, -1).int().repeat(2, 1)
    last = torch.where(places[:, :, None] == drawn[:, None, :], before, -1).amax(2).long()
    source, origin = last.split(count, 1)
    # what lay at place i, followed back to where it began: each round doubles the way
    origin = torch.where(origin < 0, step, origin)
    for _ in range((count - 1).bit_length()):
        origin = origin.gather(1, origin)
    return torch.where(source < 0, drawn, origin.gather(1, source.clamp_min(0)))
