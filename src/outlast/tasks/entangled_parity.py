"""Parity with interleaved recall queries: one answer that needs both skills at once.

An open question of arXiv 2510.00258 (Delayed Attention Training): does the method carry over to
tasks in which state and recall are entangled? The paper names no format; this one is our choice.

A row of (key, bit) pairs with distinct keys. After any pair but the first, with probability
`queries`, and always after the last one, stands a question: ``?`` and a key seen before, drawn
uniformly. Due at that key (part `recall`) is the bit stored under it XOR the parity of all bits so
far: recall without the state, or the state without recall, is no better than a guess. (After the
first pair the answer would always be 0, hence no question there.) At the closing ``=`` the parity
of all bits is due (part `state`); aligned supervision also asks for the parity so far at each
stored bit (part `running`, not counted in a test).

Length n is the number of pairs; tensors are (batch, 4n - 1), as each pair but the first may be
followed by a question, and rows with fewer questions end in padding. Token ids: bits 0 and 1, keys,
``?``, ``=``, padding. A guess is right half the time. Example::

    entangled_parity
    tokens  k5 1 k2 0 ? k5 k9 1 ? k2 =
    labels  .  1 .  1 . 0  .  0 . 0  0
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from outlast.arguments import check_choice, check_share, check_whole
from outlast.registry import tasks
from outlast.tasks.base import Batch, BatchBuilder, Length, Supervision, Task, check_keys
from outlast.tasks.sampling import bernoulli, distinct, rand, randint, randint_below
from outlast.tasks.truth import Truth


@tasks.register("entangled_parity")
class EntangledParity(Task):
    """Parity of bits under keys, with questions that mix a stored bit and the parity so far.

    Args:
        keys: How many different keys there are.
        queries: The probability that a question follows a pair.
        supervision: `aligned` also asks for the parity so far at each bit; `outcome` does not.
        length: The longest length trained on, in pairs.
    """

    shortest = 2
    paper = "2510.00258 Delayed Attention Training"
    samples_jointly = True
    symbols = "?=·"

    def __init__(
        self,
        keys: int = 128,
        queries: float = 0.3,
        supervision: Supervision = "aligned",
        length: int = 25,
    ) -> None:
        check_share("queries", queries)
        check_choice("supervision", supervision, Supervision)
        check_whole("length", length, 2)
        check_keys(keys, length)
        self.keys, self.queries, self.aligned = keys, queries, supervision == "aligned"
        self.lengths, self.ceiling = (2, length), keys
        self.longer = f"keys={keys}, and each is in a row once; take more keys"
        self.parts = ("state", "recall", "running") if self.aligned else ("state", "recall")
        self.auxiliary = self.parts[2:]
        self.classes = 2
        self.question, self.equals, self.pad = keys + 2, keys + 3, keys + 4
        self.vocabulary = keys + 5

    def tokens(self, length: int) -> int:
        return 4 * length - 1

    def sample(self, length: Length, batch: int, generator: torch.Generator) -> Batch:
        lengths, longest = self.draw_lengths(length, batch, generator)
        last = lengths[:, None] - 1
        shape = (batch, longest)
        keys = 2 + distinct(batch, self.keys, longest, generator)
        bits = randint(0, 2, shape, generator)
        parity = bits.cumsum(1) % 2

        pair = torch.arange(longest, device=generator.device).expand(batch, -1)
        present = pair <= last
        asks = bernoulli(self.queries, shape, generator) & present & (pair > 0) | (pair == last)
        queried = randint_below(pair + 1, generator)
        # a pair takes two tokens, and two more where a question follows
        widths = 2 * present + 2 * asks
        ends = widths.cumsum(1)
        starts = ends - widths

        builder = BatchBuilder(self.parts, batch, self.tokens(longest), self.pad, generator.device)
        builder.write(starts, keys, present)
        builder.write(starts + 1, bits, present)
        if self.aligned:
            builder.expect(starts + 1, parity, "running", present)
        builder.write(starts + 2, self.question, asks)
        builder.write(starts + 3, keys.gather(1, queried), asks)
        builder.expect(starts + 3, bits.gather(1, queried) ^ parity, "recall", asks)
        builder.write(ends[:, -1:], self.equals)
        builder.expect(ends[:, -1:], parity.gather(1, last), "state")
        return builder.batch()

    def shuffled(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """The pairs between two questions in another order: a key is asked for after its pair."""
        bits, questions = (inputs < 2).long(), (inputs == self.question).long()
        is_question = (questions + functional.pad(questions, (1, -1))).bool()  # and its key
        rank = rand(inputs.shape, generator, torch.float64).gather(1, bits.cumsum(1) - bits)
        place = 2 * questions.cumsum(1) + torch.where(is_question, -0.5, rank)
        order = place.masked_fill(inputs > self.question, torch.inf).argsort(dim=1, stable=True)
        return inputs.gather(1, order)

    def truth(self, inputs: Sequence[int]) -> Truth:
        truth, places, parity, before = Truth(), dict[int, int](), 0, self.pad
        for place, token in enumerate(inputs):
            asked = before == self.question
            if token < 2:
                key = before - 2 if 2 <= before < self.question else None
                parity ^= token
                if key is not None:
                    places[key] = place
                truth.add(parity, key=key)
            elif token < self.question:
                truth.add(parity, places.get(token - 2) if asked else None, token - 2)
            else:
                truth.add(None if token == self.pad else parity)
            before = token
        return truth

    def solve(self, inputs: Sequence[int]) -> list[int | None]:
        answers: list[int | None] = []
        stored: dict[int, int] = {}
        before = self.pad
        for token in inputs:
            answer = None
            if token < 2:
                stored[before] = token
                answer = self._odd(stored) if self.aligned else None
            elif before == self.question:
                answer = int(stored[token] != self._odd(stored)) if token in stored else None
            elif token == self.equals:
                answer = self._odd(stored)
            answers.append(answer)
            before = token
        return answers

    @staticmethod
    def _odd(stored: dict[int, int]) -> int:
        return sum(stored.values()) % 2
