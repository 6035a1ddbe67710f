"""Set complement: which signs have not been shown? Every one of them is a right answer.

From arXiv 2510.08341 (Learning What's Missing): distinct signs are shown, and the target is the
uniform distribution over the others. The format and all sizes here are our choice.

A row is n + 1 distinct signs in random order. After n of them the next one is due (part `state`);
aligned supervision asks for it after each of the n (part `running`, not counted in a test). The
next sign of a random order is a uniform draw from those not shown. So the cross-entropy with it is,
on average over draws, that with the uniform distribution: its gradient is unbiased, and noisier.
It cannot fall below the entropy, which is log(signs - n) after n signs. The accuracy while training
is that of the sign drawn. A method that waits for a low loss or a high accuracy waits in vain.

A test knows the distribution. An answer is right if the largest output is of any sign not shown.
Results also have `distance`, the total variation distance between the outputs as probabilities and
the uniform distribution: 0 if they are the same, 1 if only signs already shown are said.

Length n is the number of signs shown; tensors are (batch, n + 1). The last token asks nothing. A
length is below the number of signs. Token ids: signs, padding. A guess is right in
(signs - n) / signs of cases: that is often at first, and seldom when few are left. By default it is
right in 77 % of cases at the training length, and in 6 % at 4 times that; a test at 10 times has
too few signs. Equal outputs for all signs have a distance of n / signs. Example::

    set_complement(signs=10, length=4)
    tokens  3 1 4 0 5
    labels  1 4 0 5 .
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outlast.arguments import check_choice, check_whole
from outlast.errors import require
from outlast.registry import tasks
from outlast.tasks.base import Batch, BatchBuilder, Length, Supervision, Task
from outlast.tasks.sampling import distinct, shuffle_items


@tasks.register("set_complement")
class SetComplement(Task):
    """A sign that has not been shown yet: any of them, all equally likely.

    Args:
        signs: How many different signs there are.
        supervision: `aligned` asks after each sign shown; `outcome` after the last alone.
        length: The longest length trained on, in signs shown.
    """

    paper = "2510.08341 Learning What's Missing"
    samples_jointly = True

    def __init__(
        self, signs: int = 128, supervision: Supervision = "aligned", length: int = 30
    ) -> None:
        check_whole("signs", signs, 3)
        check_choice("supervision", supervision, Supervision)
        check_whole("length", length, 2)
        require(length < signs, "signs", signs, f"a whole number > length={length}")
        self.signs = self.classes = self.pad = signs
        self.vocabulary = signs + 1
        self.aligned = supervision == "aligned"
        self.lengths, self.ceiling = (1, length), signs - 1
        self.longer = f"signs={signs} are distinct, and one is left to be said; more signs do it"
        self.parts = ("state", "running") if self.aligned else ("state",)
        self.auxiliary = self.parts[1:]

    def tokens(self, length: int) -> int:
        return length + 1

    def sample(self, length: Length, batch: int, generator: torch.Generator) -> Batch:
        lengths, longest = self.draw_lengths(length, batch, generator)
        signs = distinct(batch, self.signs, longest + 1, generator)
        place = torch.arange(longest + 1, device=signs.device).expand(batch, -1)
        shown = lengths[:, None]
        builder = BatchBuilder(self.parts, batch, longest + 1, self.pad, signs.device)
        builder.write(place, signs, place <= shown)
        if self.aligned:
            builder.expect(place, signs.roll(-1, 1), "running", place < shown - 1)
        builder.expect(shown - 1, signs.gather(1, shown), "state")
        return builder.batch()

    def support(self, inputs: Tensor, start: int, stop: int) -> Tensor:
        rows, tokens = inputs.shape
        place = torch.arange(tokens, device=inputs.device)
        first = inputs.new_full((rows, self.vocabulary), tokens)  # where each token first stands
        first.scatter_reduce_(1, inputs, place.expand(rows, -1), "amin")
        return first[:, None, : self.signs] > place[start:stop, None]

    def shuffled(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        place = torch.arange(inputs.shape[1], device=inputs.device)
        shown = (inputs < self.signs).sum(1, keepdim=True) - 1
        return shuffle_items(inputs, place < shown - 1, generator)  # the last is where it is asked

    def chance_level(self, part: str) -> float:
        """The accuracy of a guess in the longest rows of training.

        For `running` it is about that after half of their signs, as all places are asked.
        """
        super().chance_level(part)
        shown = self.lengths[1] if part == "state" else self.lengths[1] / 2
        return 1 - shown / self.signs

    def solve(self, inputs: Sequence[int]) -> list[int | None]:
        answers: list[int | None] = [None] * len(inputs)
        last = sum(token != self.pad for token in inputs) - 1
        for place in range(0 if self.aligned else max(0, last - 1), last):
            answers[place] = inputs[place + 1]
        return answers
