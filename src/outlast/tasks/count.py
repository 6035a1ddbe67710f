"""Count: how often does a sign stand in the row? What attention averages, it must name as a number.

After arXiv 2407.15160 (When Can Transformers Count to n?), which asks how often a token occurs. Our
own is that the number does not grow with the row: it is uniform from 0 to `most` at every length,
so a longer test asks for no number that training did not.

n signs, then ``?`` and a sign: how often it stood before is due there (part `state`). The places
where it stands are random. The other signs are drawn uniformly, so they are more frequent in a long
row.

Length n is the number of signs; it is at least `most`. Tensors are (batch, n + 2). Token ids:
numbers 0..most, signs, ``?``, padding. A guess is right once in most + 1 times. Example::

    count(signs=8)
    tokens  k3 k1 k3 k7 k0 k1 k3 k5 k2 ? k3
    labels  .  .  .  .  .  .  .  .  .  . 3
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outlast.arguments import check_whole
from outlast.errors import require
from outlast.registry import tasks
from outlast.tasks.base import Batch, BatchBuilder, Length, Task
from outlast.tasks.sampling import rand, randint, shuffle_items
from outlast.tasks.truth import Truth


@tasks.register("count")
class Count(Task):
    """How often a sign stands in a row, asked at the end.

    Args:
        signs: How many different signs there are.
        most: The largest number of times.
        length: The longest length trained on, in signs.
    """

    paper = "2407.15160 When Can Transformers Count to n?"
    samples_jointly = True
    symbols = "?·"
    parts = ("state",)

    def __init__(self, signs: int = 32, most: int = 9, length: int = 25) -> None:
        check_whole("signs", signs, 2)
        check_whole("most", most, 1)
        check_whole("length", length, 2)
        require(most <= length, "most", most, f"at most length={length}")
        self.signs, self.most = signs, most
        self.shortest = max(2, most)
        self.lengths = (self.shortest, length)
        self.classes = most + 1
        self.question, self.pad = self.classes + signs, self.classes + signs + 1
        self.vocabulary = self.pad + 1

    def tokens(self, length: int) -> int:
        return length + 2

    def sample(self, length: Length, batch: int, generator: torch.Generator) -> Batch:
        lengths, longest = self.draw_lengths(length, batch, generator)
        end = lengths[:, None]
        asked = randint(0, self.signs, (batch, 1), generator)
        times = randint(0, self.classes, (batch, 1), generator)
        others = (asked + 1 + randint(0, self.signs - 1, (batch, longest), generator)) % self.signs
        place = torch.arange(longest, device=generator.device).expand(batch, -1)
        # the sign asked for stands at the places with the lowest scores
        scores = rand((batch, longest), generator, torch.float64).where(place < end, 2.0)
        rank = scores.argsort(1).argsort(1)
        signs = torch.where(rank < times, asked, others)

        builder = BatchBuilder(self.parts, batch, self.tokens(longest), self.pad, generator.device)
        builder.write(place, self.classes + signs, place < end)
        builder.write(end, self.question)
        builder.write(end + 1, self.classes + asked)
        builder.expect(end + 1, times, "state")
        return builder.batch()

    def shuffled(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        before = (inputs == self.question).cumsum(1) == 0
        return shuffle_items(inputs, before & (inputs < self.question), generator)

    def truth(self, inputs: Sequence[int]) -> Truth:
        truth = Truth()
        for state in self._counted(inputs):
            truth.add(state)
        return truth

    def solve(self, inputs: Sequence[int]) -> list[int | None]:
        return self._counted(inputs)

    def _counted(self, inputs: Sequence[int]) -> list[int | None]:
        """How often the sign after each ``?`` stood before that, at the sign."""
        return [
            list(inputs[: place - 1]).count(token)
            if place and inputs[place - 1] == self.question and token < self.question
            else None
            for place, token in enumerate(inputs)
        ]
