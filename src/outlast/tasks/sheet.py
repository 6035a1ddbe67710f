"""What samplers share: a sheet that all rows of a batch are written on at once, and draws.

Rows differ in length, so the same thing stands at a different place in each row. A sampler works
out the places as a (batch, n) tensor, says with a mask which of the n a row really has, and
writes them in one go, with no loop over rows or positions and no wait for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outlast.tasks.base import IGNORE, Batch
from outlast.tasks.chance import real, whole

_MANY = 2**62


class Sheet:
    """A batch in the making: padding everywhere, nothing asked, until written on.

    Positions, tokens, answers and masks are (batch, n), or broadcast to it.
    """

    def __init__(
        self, parts: tuple[str, ...], batch: int, tokens: int, pad: int, device: torch.device
    ) -> None:
        self.parts, self.tokens = parts, tokens
        # The one column too many takes what a mask rules out, and is cut off at the end.
        shape = (batch, tokens + 1)
        self._inputs = torch.full(shape, pad, dtype=torch.int64, device=device)
        self._targets = torch.full(shape, IGNORE, dtype=torch.int64, device=device)
        self._part = torch.full(shape, -1, dtype=torch.int8, device=device)

    def write(self, at: Tensor, token: Tensor | int, where: Tensor | None = None) -> None:
        """Put tokens at positions."""
        self._put(self._inputs, at, token, where)

    def ask(self, at: Tensor, answer: Tensor, part: str, where: Tensor | None = None) -> None:
        """Ask for answers at positions, as a test of the skill `part`."""
        self._put(self._targets, at, answer, where)
        self._put(self._part, at, self.parts.index(part), where)

    def _put(self, page: Tensor, at: Tensor, value: Tensor | int, where: Tensor | None) -> None:
        if where is not None:
            at = torch.where(where, at, self.tokens)
        if isinstance(value, int):
            page.scatter_(1, at, value)
        else:
            page.scatter_(1, at, value.expand_as(at))

    def batch(self) -> Batch:
        """The finished batch."""
        pages = (self._inputs, self._targets, self._part)
        return Batch(*(page[:, : self.tokens].contiguous() for page in pages))


def distinct(batch: int, choices: int, count: int, generator: torch.Generator) -> Tensor:
    """For each row `count` different numbers below `choices` in random order, (batch, count).

    On a GPU a few out of many come by swaps, which cost count squared a row instead of a sort of
    all choices. Elsewhere a sort is as good, and what a seed draws there stays what it was.
    """
    if generator.device.type == "cuda" and count * count <= choices:
        return by_swaps(batch, choices, count, generator)
    return by_rank(batch, choices, count, generator)


def by_rank(batch: int, choices: int, count: int, generator: torch.Generator) -> Tensor:
    """`distinct` as the places of the highest of random scores."""
    # In double precision ties are as good as ruled out, so every device's topk gives one result.
    scores = real((batch, choices), generator, torch.float64)
    return scores.topk(count, dim=1).indices


def by_swaps(batch: int, choices: int, count: int, generator: torch.Generator) -> Tensor:
    """`distinct` as the first steps of a Fisher-Yates shuffle, all of them at once.

    Step i of the shuffle swaps place i with a place j_i drawn from i on, and what comes to lie at i
    is never moved again. So the number found at place p in step i is what the last step k < i with
    j_k = p put there, which is what lay at place k before; or p itself, where there is none.
    """
    step = torch.arange(count, device=generator.device)
    drawn = step + below((choices - step).expand(batch, -1), generator)
    # for each step: the last one before that put something at the place drawn, or at its own
    places = torch.cat([drawn, step.expand(batch, -1)], 1)
    before = torch.where(step < step[:, None], step, -1).int().repeat(2, 1)
    last = torch.where(places[:, :, None] == drawn[:, None, :], before, -1).amax(2).long()
    source, own = last.split(count, 1)
    # what lay at each step's own place, back to where it began: each turn doubles the way gone
    own = torch.where(own < 0, step, own)
    for _ in range((count - 1).bit_length()):
        own = own.gather(1, own)
    return torch.where(source < 0, drawn, own.gather(1, source.clamp_min(0)))


def below(limit: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform whole numbers below a limit that differs from place to place, shaped like it."""
    # randint takes no tensor as a limit; from a range this wide the remainder is uniform enough.
    drawn = whole(0, _MANY, limit.shape, generator)
    return drawn % limit


def uniform(below: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Uniform whole numbers below one limit."""
    return whole(0, below, shape, generator)


def chosen(probability: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """True with the given probability."""
    return real(shape, generator) < probability
