"""Random draws from one generator, or from the generators of several seeds at once.

Seeds that are trained together have a generator each, and one sampler can write the sequences of
all of them. `SeedGenerators` stands in for a generator: its rows are drawn seed by seed, each from
its own generator. A generator gives exactly what it gives when it is sampled alone. Only the draws
are repeated for each seed; everything after them is done once.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor

from outlast.arguments import as_whole, shown
from outlast.errors import bad_value
from outlast.machine import GIB, short_of

#: the largest size of an axis, and the largest whole number that is drawn
_MOST = 2**62
#: the most numbers of a row that are drawn with a table of all pairs of them
FEW = 256


class SeedGenerators:
    """Generators that share a draw: the first rows belong to the first one, and so on.

    Only the functions below know it. Anything else that wants a `torch.Generator` refuses it.
    """

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        accepted = "a list of one or more torch.Generator"
        if not isinstance(generators, Sequence) or not generators:
            raise bad_value("generators", shown(generators), accepted)
        if not all(isinstance(generator, torch.Generator) for generator in generators):
            raise bad_value("generators", shown(generators), accepted)
        self.generators = tuple(generators)
        self.device = self.generators[0].device

    def split(self, table: Tensor) -> zip[tuple[Tensor, torch.Generator]]:
        """The rows of each generator in a table, with that generator."""
        rows = table.unflatten(0, (len(self.generators), -1)).unbind(0)
        return zip(rows, self.generators, strict=True)


def read_device(device: object) -> torch.device:
    """A device on which random numbers can be drawn."""
    try:
        known = torch.device(device)  # type: ignore[call-overload]
        torch.Generator(known)
    except (RuntimeError, TypeError, ValueError, AssertionError):
        accepted = "a device that torch has here, such as cpu"
        raise bad_value("device", shown(device), accepted) from None
    return known  # type: ignore[no-any-return]


def check_generator(generator: object) -> None:
    """Refuse what is no generator."""
    if not isinstance(generator, torch.Generator | SeedGenerators):
        accepted = "a torch.Generator, such as torch.Generator().manual_seed(0)"
        raise bad_value("generator", shown(generator), accepted)


def _read_shape(shape: object) -> tuple[int, ...]:
    if not isinstance(shape, Sequence) or isinstance(shape, str | bytes):
        raise bad_value("shape", shown(shape), "a tuple of whole numbers, such as (batch, tokens)")
    return tuple(as_whole("shape", size, 0, _MOST) for size in shape)


def randint(
    low: int, high: int, shape: Sequence[int], generator: torch.Generator | SeedGenerators
) -> Tensor:
    """Uniform whole numbers from `low` to below `high`, of `shape`."""
    low, high = as_whole("low", low, -_MOST, _MOST), as_whole("high", high, -_MOST, _MOST)
    if low >= high:
        raise bad_value("high", high, f"a whole number above low={low}")
    shape = _read_shape(shape)
    check_generator(generator)
    if isinstance(generator, torch.Generator):
        return torch.randint(low, high, shape, generator=generator, device=generator.device)
    table = torch.empty(shape, dtype=torch.int64, device=generator.device)
    for rows, of_seed in generator.split(table):
        rows.random_(low, high, generator=of_seed)
    return table


def rand(
    shape: Sequence[int],
    generator: torch.Generator | SeedGenerators,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Uniform numbers from 0 to below 1, of `shape`."""
    shape = _read_shape(shape)
    check_generator(generator)
    if isinstance(generator, torch.Generator):
        return torch.rand(shape, generator=generator, device=generator.device, dtype=dtype)
    table = torch.empty(shape, dtype=dtype, device=generator.device)
    for rows, of_seed in generator.split(table):
        rows.uniform_(generator=of_seed)
    return table


def randint_below(limits: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform whole numbers below limits that differ, shaped like the limits."""
    if not isinstance(limits, Tensor) or limits.dtype not in (torch.int64, torch.int32):
        raise bad_value("limits", shown(limits), "a tensor of whole numbers >= 1")
    check_generator(generator)
    if limits.device.type != generator.device.type:  # a generator's GPU may have no number
        accepted = f"one on {generator.device}, as the generator is"
        raise bad_value("limits", f"a tensor on {limits.device}", accepted)
    # randint takes no tensor as a limit; from a range this wide the remainder is uniform enough.
    numbers = randint(0, _MOST, limits.shape, generator)
    try:
        return numbers % limits
    except RuntimeError:  # a CPU refuses a limit of 0
        raise bad_value("limits", shown(limits), "a tensor of whole numbers >= 1") from None


def bernoulli(probability: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """True with the given probability, of `shape`."""
    is_number = isinstance(probability, Real) and not isinstance(probability, bool)
    if not is_number or not 0 <= probability <= 1:
        raise bad_value("probability", shown(probability), "a number from 0 to 1")
    return rand(shape, generator) < float(probability)


def distinct(batch: int, choices: int, count: int, generator: torch.Generator) -> Tensor:
    """For each row `count` different numbers below `choices` in random order, (batch, count).

    On a GPU a few out of many are drawn by swaps: count squared operations a row, not a sort of all
    choices. Elsewhere a sort is as fast, and a seed draws what it always drew there.
    """
    check_generator(generator)
    batch, choices = as_whole("batch", batch, 0, _MOST), as_whole("choices", choices, 0, _MOST)
    count = as_whole("count", count, 0, choices)
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
    by_table = count <= FEW or choices * count > _MOST
    find = _last_by_table if by_table else _last_by_sort
    source, origin = find(places, drawn, step).split(count, 1)
    # what lay at place i, followed back to where it began: each round doubles the way
    origin = torch.where(origin < 0, step, origin)
    for _ in range((count - 1).bit_length()):
        origin = origin.gather(1, origin)
    return torch.where(source < 0, drawn, origin.gather(1, source.clamp_min(0)))


def _last_by_table(places: Tensor, drawn: Tensor, step: Tensor) -> Tensor:
    """For each step, twice over: the last step before that drew this place, -1 if none did.

    places (batch, 2 count), drawn (batch, count), step (count,).
    """
    before = torch.where(step < step[:, None], step, -1).int().repeat(2, 1)
    return torch.where(places[:, :, None] == drawn[:, None, :], before, -1).amax(2).long()


def _last_by_sort(places: Tensor, drawn: Tensor, step: Tensor) -> Tensor:
    """The same without a table of all pairs of steps: draws in order of place and then of step."""
    count = len(step)
    ordered = (drawn * count + step).sort(1).values
    at = torch.searchsorted(ordered, places * count + step.repeat(2)) - 1
    nearest = ordered.gather(1, at.clamp_min(0))
    return torch.where((at >= 0) & (nearest // count == places), nearest % count, -1)


def shuffle_items(inputs: Tensor, ends: Tensor, generator: torch.Generator) -> Tensor:
    """Each row with its items in random order; what follows the last item stays where it is.

    inputs (batch, tokens). `ends` (batch, tokens) marks the last token of each item. The first item
    begins with the row, and every other one right after the one before it.
    """
    ends = ends.long()
    item = ends.cumsum(1) - ends
    inside = ends.flip(1).cumsum(1).flip(1) > 0
    # In double precision ties almost never occur. Tokens of one item tie, and keep their order.
    rank = rand(inputs.shape, generator, torch.float64).gather(1, item)
    order = torch.where(inside, rank, 1.0).argsort(dim=1, stable=True)
    return inputs.gather(1, order)
