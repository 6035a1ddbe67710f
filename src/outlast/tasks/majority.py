"""Majority: are there more ones than zeros? A comparison of two numbers that grow with the row.

Known from circuit complexity, and used to ask what attention can express (arXiv 2207.00729, The
Parallelism Tradeoff; 1906.06755). Uniform attention solves it at any length, while a
recurrence with few states cannot. The layout is our choice.

Bits are drawn uniformly. Due is 1 if more ones than zeros have been seen, and 0 otherwise, also in
a tie.

Length n is the number of bits; tensors are (batch, n + 1). Token ids: bits 0 and 1, ``=``, padding.
The answer is due at ``=`` (part `state`) and, with aligned supervision, at each bit (part
`running`, not counted in a test). A guess is right half the time. Examples::

    majority
    tokens  1 0 0 1 1 =
    labels  1 0 0 0 1 1

    majority(supervision=outcome)
    tokens  1 0 0 1 1 =
    labels  . . . . . 1
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outlast.registry import tasks
from outlast.tasks.base import Batch, Length, Supervision
from outlast.tasks.sampling import randint, shuffle_items
from outlast.tasks.tracking import Tracking


@tasks.register("majority")
class Majority(Tracking):
    """Whether ones are in the majority, asked at the end or all along.

    Args:
        supervision: `aligned` asks for the majority so far at each bit; `outcome` at the end alone.
        length: The longest length trained on, in bits.
    """

    paper = "2207.00729 The Parallelism Tradeoff"
    samples_jointly = True

    def __init__(self, supervision: Supervision = "aligned", length: int = 25) -> None:
        self._set_up(2, 2, supervision, length)

    def sample(self, length: Length, batch: int, generator: torch.Generator) -> Batch:
        lengths, longest = self.draw_lengths(length, batch, generator)
        bits = randint(0, 2, (batch, longest), generator)
        lead = (2 * bits - 1).cumsum(1)
        return self._written(bits, (lead > 0).long(), lengths)

    def shuffled(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        return shuffle_items(inputs, inputs < 2, generator)

    def states(self, items: Sequence[int]) -> list[int]:
        seen, ahead = [0, 0], [0]
        for bit in items:
            seen[bit] += 1
            ahead.append(int(seen[1] > seen[0]))
        return ahead
