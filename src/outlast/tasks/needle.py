"""Needle: find the one pair in a heap of filler. Recall at any distance, with nothing beside it.

After passkey retrieval (arXiv 2305.16300, Landmark Attention) and the needle in a haystack, with
tokens in place of text; the layout and the sizes are our choice.

n filler tokens, drawn uniformly, with one (key, value) pair at a random place among them, then the
key again: the value is due there (part `recall`). Fillers are neither keys nor values, so a model
need not tell pairs apart, as in `recall`, but only the pair from filler.

Length n is the number of fillers; tensors are (batch, n + 3). Token ids: values 0..values-1, keys,
fillers, padding. A guess is right once in as many times as there are values. Example::

    needle(keys=4, fillers=4)
    tokens  f0 f3 k2 7 f1 f3 k2
    labels  .  .  .  . .  .  7
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outlast.arguments import as_whole, check_whole
from outlast.registry import tasks
from outlast.tasks.base import Batch, BatchBuilder, Length, Task
from outlast.tasks.sampling import randint, randint_below, shuffle_items
from outlast.tasks.truth import Truth


@tasks.register("needle")
class Needle(Task):
    """One value under a key among filler tokens, asked for at the end.

    Args:
        keys: How many different keys there are.
        values: How many different values there are.
        fillers: How many different fillers there are.
        length: The longest length trained on, in fillers.
    """

    paper = "2305.16300 Landmark Attention"
    samples_jointly = True
    parts = ("recall",)

    def __init__(
        self, keys: int = 128, values: int = 10, fillers: int = 32, length: int = 50
    ) -> None:
        check_whole("keys", keys, 1)
        check_whole("values", values, 2)
        check_whole("fillers", fillers, 1)
        check_whole("length", length, 2)
        self.keys, self.values, self.fillers = keys, values, fillers
        self.lengths = (2, length)
        self.classes = values
        self.filler, self.pad = values + keys, values + keys + fillers
        self.vocabulary = self.pad + 1

    def tokens(self, length: int) -> int:
        return length + 3

    def word(self, token: int) -> str:
        token = as_whole("token", token, 0, self.vocabulary - 1)
        if self.filler <= token < self.pad:
            return f"f{token - self.filler}"
        return super().word(token)

    def sample(self, length: Length, batch: int, generator: torch.Generator) -> Batch:
        lengths, longest = self.draw_lengths(length, batch, generator)
        end = lengths[:, None]
        fillers = randint(self.filler, self.pad, (batch, longest), generator)
        keys = randint(self.values, self.filler, (batch, 1), generator)
        values = randint(0, self.values, (batch, 1), generator)
        needle = randint_below(end + 1, generator)
        place = torch.arange(longest, device=generator.device).expand(batch, -1)

        builder = BatchBuilder(self.parts, batch, self.tokens(longest), self.pad, generator.device)
        builder.write(place + 2 * (place >= needle), fillers, place < end)
        builder.write(needle, keys)
        builder.write(needle + 1, values)
        builder.write(end + 2, keys)
        builder.expect(end + 2, values, "recall")
        return builder.batch()

    def shuffled(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        filler = (inputs >= self.filler) & (inputs < self.pad)
        return shuffle_items(inputs, filler | (inputs < self.values), generator)

    def truth(self, inputs: Sequence[int]) -> Truth:
        truth, places, before = Truth(), dict[int, int](), self.pad
        for place, token in enumerate(inputs):
            key = None
            if token < self.values and self.values <= before < self.filler:
                key = before - self.values
                places[key] = place
                truth.add(key=key)
            elif self.values <= token < self.filler:
                key = token - self.values
                truth.add(source=places.get(key), key=key)
            else:
                truth.add()
            before = token
        return truth

    def solve(self, inputs: Sequence[int]) -> list[int | None]:
        stored: dict[int, int] = {}
        answers: list[int | None] = []
        for before, token in zip([self.pad, *inputs], inputs, strict=False):
            if token < self.values:
                stored[before] = token
            answers.append(stored.get(token) if self.values <= token < self.filler else None)
        return answers
