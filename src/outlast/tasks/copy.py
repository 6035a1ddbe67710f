"""Copy: say again, in order, what came before.

The plainest test of recall by position: a sign is found where the last one said stood, one place
on. Used in arXiv 2402.01032 (Repeat After Me) to tell Transformers from recurrent models, and in
2506.16640 (ASEntmax) at many times the training length. Here the signs are drawn uniformly and
with repetition, so that, with few of them, what stands before a sign does not say where it is.

n signs, then ``=``, then the same n signs again; each is due one token before it stands in the
input, as in a language model (part `recall`), so the last is not part of the input.

Length n is the number of signs; tensors are (batch, 2n). Token ids: signs 0..signs-1, ``=``,
padding. Example::

    copy(signs=10)
    tokens  3 1 4 1 = 3 1 4
    labels  . . . . 3 1 4 1
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outlast.arguments import check_whole
from outlast.registry import tasks
from outlast.tasks.base import Batch, BatchBuilder, Length, Task
from outlast.tasks.sampling import randint
from outlast.tasks.truth import Truth


@tasks.register("copy")
class Copy(Task):
    """A row of signs, said again in order.

    Args:
        signs: How many different signs there are.
        length: The longest length trained on, in signs.
    """

    paper = "2402.01032 Repeat After Me"
    samples_jointly = True
    symbols = "=·"
    parts = ("recall",)

    def __init__(self, signs: int = 32, length: int = 25) -> None:
        check_whole("signs", signs, 2)
        check_whole("length", length, 2)
        self.signs = signs
        self.lengths = (2, length)
        self.classes = signs
        self.equals, self.pad = signs, signs + 1
        self.vocabulary = signs + 2

    def tokens(self, length: int) -> int:
        return 2 * length

    def sample(self, length: Length, batch: int, generator: torch.Generator) -> Batch:
        lengths, longest = self.draw_lengths(length, batch, generator)
        signs = randint(0, self.signs, (batch, longest), generator)
        place = torch.arange(longest, device=generator.device).expand(batch, -1)
        present, end = place < lengths[:, None], lengths[:, None]

        builder = BatchBuilder(self.parts, batch, self.tokens(longest), self.pad, generator.device)
        builder.write(place, signs, present)
        builder.write(end, self.equals)
        builder.write(end + 1 + place, signs, place < end - 1)
        builder.expect(end + place, signs, "recall", present)
        return builder.batch()

    def truth(self, inputs: Sequence[int]) -> Truth:
        truth, signs, said = Truth(), 0, None
        for token in inputs:
            if token == self.equals:
                said = 0
            elif said is None:
                signs += token < self.signs
            else:
                said += 1
            truth.add(source=said if said is not None and said < signs else None)
        return truth

    def solve(self, inputs: Sequence[int]) -> list[int | None]:
        answers: list[int | None] = []
        left: list[int] = []  # signs not said yet
        saying = False
        for token in inputs:
            saying = saying or token == self.equals
            if not saying and token < self.signs:
                left.append(token)
            answers.append(left.pop(0) if saying and left else None)
        return answers
