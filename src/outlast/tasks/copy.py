"""Copy: say again, in order, what came before.

The plainest test of recall by position: a sign is found where the last one said stood, one place
on. Used in arXiv 2402.01032 (Repeat After Me) to tell Transformers from recurrent models, and in
2506.16640 (ASEntmax) at many times the training length. Here the signs are drawn uniformly and
with repetition, so that, with few of them, what stands before a sign does not say where it is.

n signs, then ``=``, then the same n signs again; each is due one token before it stands in the
input, as in a language model (part `recall`), so the last is not part of the input.

In a long row the few signs before the one that is due often stand elsewhere too, or nearly so; in a
short row hardly ever. With `sign_pool` half of the rows in training draw their signs from so few
that short rows are as easily confused as long ones. A test draws from all. This is our own.

Length n is the number of signs; tensors are (batch, 2n). Token ids: signs 0..signs-1, ``=``,
padding. A guess is right once in as many times as there are signs. Example::

    copy(signs=10)
    tokens  3 1 4 1 = 3 1 4
    labels  . . . . 3 1 4 1
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outlast.arguments import check_whole
from outlast.errors import require
from outlast.registry import tasks
from outlast.tasks.base import Batch, BatchBuilder, Length, Task
from outlast.tasks.sampling import bernoulli, distinct, randint
from outlast.tasks.truth import Truth


@tasks.register("copy")
class Copy(Task):
    """A row of signs, said again in order.

    Args:
        signs: How many different signs there are.
        length: The longest length trained on, in signs.
        sign_pool: From how many signs half of the rows in training draw theirs; 0: from all, as a
            test does.
    """

    paper = "2402.01032 Repeat After Me"
    samples_jointly = True
    symbols = "=·"
    parts = ("recall",)

    def __init__(self, signs: int = 32, length: int = 25, sign_pool: int = 0) -> None:
        check_whole("signs", signs, 2)
        check_whole("length", length, 2)
        if sign_pool != 0:
            accepted = f"0, or a whole number from 2 to signs={signs}"
            whole = isinstance(sign_pool, int) and not isinstance(sign_pool, bool)
            require(whole and 2 <= sign_pool <= signs, "sign_pool", sign_pool, accepted)
        self.signs, self.sign_pool = signs, sign_pool
        self.lengths = (2, length)
        self.classes = signs
        self.equals, self.pad = signs, signs + 1
        self.vocabulary = signs + 2

    def tokens(self, length: int) -> int:
        return 2 * length

    def sample(self, length: Length, batch: int, generator: torch.Generator) -> Batch:
        return self._sample(length, batch, generator, self.sign_pool)

    def test_batch(self, length: int, batch: int, generator: torch.Generator) -> Batch:
        return self._sample(length, batch, generator, 0)

    def _sample(self, length: Length, batch: int, generator: torch.Generator, pool: int) -> Batch:
        """Half of the rows draw their signs from `pool` of them; 0: all rows from all signs."""
        lengths, longest = self.draw_lengths(length, batch, generator)
        signs = randint(0, self.signs, (batch, longest), generator)
        if pool:
            few = distinct(batch, self.signs, pool, generator)  # others for each row
            chosen = bernoulli(0.5, (batch, 1), generator)
            drawn = few.gather(1, randint(0, pool, (batch, longest), generator))
            signs = torch.where(chosen, drawn, signs)
        place = torch.arange(longest, device=generator.device).expand(batch, -1)
        present, end = place < lengths[:, None], lengths[:, None]

        said = self._order(signs, present, end)

        builder = BatchBuilder(self.parts, batch, self.tokens(longest), self.pad, generator.device)
        builder.write(place, signs, present)
        builder.write(end, self.equals)
        builder.write(end + 1 + place, said, place < end - 1)
        builder.expect(end + place, said, "recall", present)
        return builder.batch()

    def _order(self, signs: Tensor, present: Tensor, end: Tensor) -> Tensor:
        """The signs in the order in which they are said, (batch, longest).

        `present` marks the signs of a row, and `end` (batch, 1) is their number.
        """
        return signs

    def _sources(self, signs: Sequence[int]) -> list[int]:
        """The places of a row's signs in the order in which they are said, in plain Python."""
        return list(range(len(signs)))

    def truth(self, inputs: Sequence[int]) -> Truth:
        truth = Truth()
        for source in self._said_at(inputs):
            truth.add(source=source)
        return truth

    def solve(self, inputs: Sequence[int]) -> list[int | None]:
        return [None if place is None else inputs[place] for place in self._said_at(inputs)]

    def _said_at(self, inputs: Sequence[int]) -> list[int | None]:
        """Where in the row the sign stands that is due at each token."""
        row = list(inputs)
        end = row.index(self.equals) if self.equals in row else len(row)
        places = [place for place, token in enumerate(row[:end]) if token < self.signs]
        sources = [places[number] for number in self._sources([row[place] for place in places])]
        said: list[int | None] = [None] * end + sources
        return (said + [None] * len(row))[: len(row)]
