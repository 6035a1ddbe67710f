"""Associative recall: remember what was stored under each key. Nothing to keep track of.

The recall half of arXiv 2510.00258 (Delayed Attention Training), alone, to see which models can
recall at all; a relative of multi-query associative recall (2312.04927, Zoology). The paper's
exact format is not known to us: the layout and the sizes here are our choice, and so is the way in
which `fillers` sets questions apart, as in Zoology.

n (key, value) pairs with distinct keys, then some of these keys again, drawn uniformly and with
repetition; at each the value stored under it is due (part `recall`). No mark stands between: a
key seen before is a question. With `fillers`, a random number of filler tokens stands before each
question, uniform from none to `fillers`.

Length n is the number of pairs; tensors are (batch, 2n + queries (1 + fillers)). Token ids: values
0..values-1, keys, filler if there is any, padding. A guess is right once in as many times as there
are values. Examples::

    recall(values=10, queries=3)
    tokens  k7 4 k0 9 k3 4 k0 k7 k0
    labels  .  . .  . .  . 9  4  9

    recall(values=10, queries=2, fillers=3)
    tokens  k7 4 k0 9 _ _ k0 _ k7
    labels  .  . .  . . . 9  . 4
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outlast.arguments import check_whole
from outlast.registry import tasks
from outlast.tasks.base import Batch, BatchBuilder, Length, Task, check_keys
from outlast.tasks.sampling import distinct, randint, randint_below, shuffle_items
from outlast.tasks.truth import Truth


@tasks.register("recall")
class Recall(Task):
    """Values stored under keys, asked for by key.

    Args:
        keys: How many different keys there are.
        values: How many different values there are.
        queries: How many keys are asked for at the end of a row.
        length: The longest length trained on, in pairs.
        fillers: How many filler tokens stand before a question at most.
    """

    paper = "2510.00258 Delayed Attention Training"
    samples_jointly = True
    parts = ("recall",)

    def __init__(
        self,
        keys: int = 128,
        values: int = 10,
        queries: int = 4,
        length: int = 25,
        fillers: int = 0,
    ) -> None:
        check_whole("values", values, 2)
        check_whole("queries", queries, 1)
        check_whole("length", length, 2)
        check_keys(keys, length)
        check_whole("fillers", fillers, 0)
        self.keys, self.values, self.queries = keys, values, queries
        self.lengths, self.ceiling = (2, length), keys
        self.longer = f"keys={keys}, and each is in a row once; take more keys"
        self.classes = values
        self.fillers, self.symbols = fillers, "_·" if fillers else "·"
        self.filler = values + keys
        self.vocabulary = self.filler + len(self.symbols)
        self.pad = self.vocabulary - 1

    def tokens(self, length: int) -> int:
        return 2 * length + self.queries * (1 + self.fillers)

    def sample(self, length: Length, batch: int, generator: torch.Generator) -> Batch:
        lengths, longest = self.draw_lengths(length, batch, generator)
        device = generator.device
        keys = self.values + distinct(batch, self.keys, longest, generator)
        values = randint(0, self.values, (batch, longest), generator)
        queried = randint_below(lengths[:, None].expand(-1, self.queries), generator)
        pair = torch.arange(longest, device=device).expand(batch, -1)
        present = pair < lengths[:, None]
        query_at = 2 * lengths[:, None] + torch.arange(self.queries, device=device)
        builder = BatchBuilder(self.parts, batch, self.tokens(longest), self.pad, device)
        if self.fillers:
            gaps = randint(0, self.fillers + 1, (batch, self.queries), generator)
            query_at = query_at + gaps.cumsum(1)
            place = torch.arange(builder.tokens, device=device).expand(batch, -1)
            builder.write(place, self.filler, place < query_at[:, -1:])

        builder.write(2 * pair, keys, present)
        builder.write(2 * pair + 1, values, present)
        builder.write(query_at, keys.gather(1, queried))
        builder.expect(query_at, values.gather(1, queried), "recall")
        return builder.batch()

    def shuffled(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        return shuffle_items(inputs, inputs < self.values, generator)

    def truth(self, inputs: Sequence[int]) -> Truth:
        truth, places, key = Truth(), dict[int, int](), None
        for place, token in enumerate(inputs):
            if token < self.values:
                if key is not None:
                    places[key] = place
                truth.add(key=key)
                key = None
            elif token < self.filler:
                key = token - self.values
                truth.add(source=places.get(key), key=key)
            else:
                truth.add()
        return truth

    def solve(self, inputs: Sequence[int]) -> list[int | None]:
        answers: list[int | None] = []
        stored: dict[int, int] = {}
        for before, token in zip([self.pad, *inputs], inputs, strict=False):
            if token < self.values:
                stored[before] = token
            answers.append(stored.get(token))
        return answers
