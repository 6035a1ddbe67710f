"""Draws from a random stream, or from several at once.

Seeds that are trained together have a stream each, and one sampler can write the sequences of all
of them: `Streams` stands in for a generator, and what is drawn from it is drawn part by part, each
from its own stream. A stream gives exactly what it gives when it is sampled alone. So the only
operations that are repeated for each seed are the draws themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Streams:
    """Generators that share what is drawn: the first rows are the first one's, and so on.

    Only the functions below know it; whatever else wants a `torch.Generator` refuses it.
    """

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self.generators = tuple(generators)
        self.device = self.generators[0].device

    def parts(self, table: Tensor) -> zip[tuple[Tensor, torch.Generator]]:
        """Each generator with its rows of a table."""
        rows = table.unflatten(0, (len(self.generators), -1)).unbind(0)
        return zip(rows, self.generators, strict=True)


def whole(
    low: int, high: int, shape: Sequence[int], generator: torch.Generator | Streams
) -> Tensor:
    """Uniform whole numbers from `low` to below `high`."""
    if isinstance(generator, torch.Generator):
        return torch.randint(low, high, shape, generator=generator, device=generator.device)
    table = torch.empty(tuple(shape), dtype=torch.int64, device=generator.device)
    for part, own in generator.parts(table):
        part.random_(low, high, generator=own)
    return table


def real(
    shape: Sequence[int],
    generator: torch.Generator | Streams,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Uniform numbers from 0 to below 1."""
    if isinstance(generator, torch.Generator):
        return torch.rand(shape, generator=generator, device=generator.device, dtype=dtype)
    table = torch.empty(tuple(shape), dtype=dtype, device=generator.device)
    for part, own in generator.parts(table):
        part.uniform_(generator=own)
    return table
