"""State tracking and associative recall in one sequence: the task delayed attention is about.

From arXiv 2510.00258 (Delayed Attention Training): a modulo sum and key queries over the same
sequence, trained up to length 25. The paper's exact format is not public; the three layouts, the
closing ``=``, the number of keys and of queries are our choice, so results on this task are a
re-design. Lengths from 2 and the two kinds of supervision follow 2602.18333.

- `separate`: n (key, digit) pairs with distinct keys. At ``=`` the sum of all digits modulo m is
  due (part `state`), and at each key after it the digit stored under that key (part `recall`).
- `chained`: the same row, but a queried key asks for the running sum at the moment its digit was
  seen, that digit included: recall of a state.
- `interleaved`: n items, each a lone digit (added to the sum) or a (key, digit) pair (only stored),
  half and half by chance, at least one of each.

Aligned supervision also asks for the running sum at every digit that is added (part `running`, not
counted in a test). Queried keys are drawn uniformly, with repetition.

Length n is the number of pairs or items; tensors are (batch, 2n + 1 + queries). Token ids: digits
0..m-1, keys m..m+keys-1, ``=``, padding. Examples::

    composite(queries=2)
    tokens  k3 5 k1 8 k6 4 = k1 k3
    labels  .  5 .  3 .  7 7 8  5

    composite(layout=chained, queries=2)
    tokens  k3 5 k1 8 k6 4 = k1 k3
    labels  .  5 .  3 .  7 7 3  5

    composite(layout=interleaved, queries=2)
    tokens  5 k1 8 4 k6 2 = k1 k6
    labels  5 .  . 9 .  . 9 8  2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from outlast.arguments import check_choice, check_whole
from outlast.registry import tasks
from outlast.tasks.base import Batch, BatchBuilder, Length, Supervision, Task, check_keys
from outlast.tasks.sampling import bernoulli, distinct, randint, randint_below, shuffle_items
from outlast.tasks.truth import Truth

Layout = Literal["separate", "interleaved", "chained"]


@tasks.register("composite")
class Composite(Task):
    """A sum modulo m and values under keys, asked for one after the other.

    Args:
        modulus: The sum is taken modulo this number, and digits are below it.
        keys: How many different keys there are.
        layout: How digits and keys stand in a row: see above.
        supervision: `aligned` also asks for the running sum at each digit; `outcome` does not.
        queries: How many keys are asked for at the end of a row.
        length: The longest length trained on, in pairs or items.
    """

    paper = "2510.00258 Delayed Attention Training"
    samples_jointly = True
    symbols = "=·"

    def __init__(
        self,
        modulus: int = 10,
        keys: int = 1024,
        layout: Layout = "separate",
        supervision: Supervision = "aligned",
        queries: int = 8,
        length: int = 25,
    ) -> None:
        check_whole("modulus", modulus, 2)
        check_choice("layout", layout, Layout)
        check_choice("supervision", supervision, Supervision)
        check_whole("queries", queries, 1)
        check_whole("length", length, 2)
        check_keys(keys, length)
        self.modulus, self.keys, self.queries = modulus, keys, queries
        self.layout, self.aligned = layout, supervision == "aligned"
        self.lengths, self.ceiling = (2, length), keys
        self.shortest = 2 if layout == "interleaved" else 1
        self.parts = ("state", "recall", "running") if self.aligned else ("state", "recall")
        self.auxiliary = self.parts[2:]
        self.classes = modulus
        self.equals, self.pad = modulus + keys, modulus + keys + 1
        self.vocabulary = modulus + keys + 2

    def tokens(self, length: int) -> int:
        return 2 * length + 1 + self.queries

    def sample(self, length: Length, batch: int, generator: torch.Generator) -> Batch:
        lengths, longest = self.draw_lengths(length, batch, generator)
        present = torch.arange(longest, device=generator.device) < lengths[:, None]
        keyed, added = self._draw_kinds(lengths, longest, generator)
        keys = self.modulus + distinct(batch, self.keys, longest, generator)
        digits = randint(0, self.modulus, (batch, longest), generator)
        running = (digits * added).cumsum(1) % self.modulus
        ends = (present.long() + (present & keyed)).cumsum(1)

        builder = BatchBuilder(self.parts, batch, self.tokens(longest), self.pad, generator.device)
        builder.write(ends - 2, keys, present & keyed)
        builder.write(ends - 1, digits, present)
        if self.aligned:
            builder.expect(ends - 1, running, "running", present & added)
        close = ends[:, -1:]
        builder.write(close, self.equals)
        builder.expect(close, running.gather(1, lengths[:, None] - 1), "state")

        queried = self._draw_queries(present & keyed, generator)
        query_at = close + 1 + torch.arange(self.queries, device=generator.device)
        answers = running if self.layout == "chained" else digits
        builder.write(query_at, keys.gather(1, queried))
        builder.expect(query_at, answers.gather(1, queried), "recall")
        return builder.batch()

    def _draw_kinds(
        self, lengths: Tensor, longest: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Which items have a key, and which are added to the sum: two (batch, longest) masks."""
        shape = (len(lengths), longest)
        if self.layout != "interleaved":
            every = torch.ones(shape, dtype=torch.bool, device=lengths.device)
            return every, every
        keyed = bernoulli(0.5, shape, generator)
        # two different items of each row are set, so that neither kind is ever missing
        n = lengths[:, None]
        one = randint_below(n, generator)
        other = (one + 1 + randint_below(n - 1, generator)) % n
        keyed = keyed.scatter(1, one, True).scatter(1, other, False)
        return keyed, ~keyed

    def _draw_queries(self, stored: Tensor, generator: torch.Generator) -> Tensor:
        """Which items are queried, (batch, queries): uniform over those `stored` marks."""
        count = stored.cumsum(1)
        rank = 1 + randint_below(count[:, -1:].expand(-1, self.queries), generator)
        # the first place where the count reaches r is the r-th stored item
        return torch.searchsorted(count, rank)

    def shuffled(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        return shuffle_items(inputs, inputs < self.modulus, generator)

    def truth(self, inputs: Sequence[int]) -> Truth:
        truth, places = Truth(), dict[int, int]()
        total, key = 0, None
        for place, token in enumerate(inputs):
            if token < self.modulus:
                if key is None or self.layout != "interleaved":
                    total = (total + token) % self.modulus
                if key is not None:
                    places[key] = place
                truth.add(total, key=key)
                key = None
            elif token < self.equals:
                number = token - self.modulus
                key = None if number in places else number
                truth.add(total, places.get(number), number)
            else:
                truth.add(total if token == self.equals else None)
        return truth

    def solve(self, inputs: Sequence[int]) -> list[int | None]:
        answers: list[int | None] = []
        stored: dict[int, int] = {}
        total, key = 0, None
        for token in inputs:
            answer = None
            if token < self.modulus:
                if key is None or self.layout != "interleaved":
                    total = (total + token) % self.modulus
                    answer = total if self.aligned else None
                if key is not None:
                    stored[key] = total if self.layout == "chained" else token
                key = None
            elif token == self.equals:
                answer = total
            elif token != self.pad:
                # a key that was stored is a question, any other awaits its digit
                answer = stored.get(token)
                key = token if answer is None else None
            answers.append(answer)
        return answers
