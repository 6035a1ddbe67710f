"""Sort: say the numbers of the row again, from the smallest to the largest.

Sorting is among the tasks of arXiv 2207.02098 (Neural Networks and the Chomsky Hierarchy) and of
2310.16028 (What Algorithms Can Transformers Learn?). Our own are the sizes, and that numbers repeat
where a row has many: there are no more numbers in a longer row, only more of each.

n numbers, then ``=``, then the same n numbers in order; each is due one token before it stands in
the input, as in a language model (part `recall`), so the last is not in the input.

Length n is the number of numbers; tensors are (batch, 2n). Token ids: numbers 0..signs-1, ``=``,
padding. A guess is right once in as many times as there are numbers. Example::

    sort(signs=10)
    tokens  3 1 4 1 = 1 1 3
    labels  . . . . 1 1 3 4
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outlast.registry import tasks
from outlast.tasks.copy import Copy
from outlast.tasks.sampling import shuffle_items


@tasks.register("sort")
class Sort(Copy):
    """A row of numbers, said again in order.

    Args:
        signs: How many different numbers there are.
        length: The longest length trained on, in numbers.
    """

    paper = "2310.16028 What Algorithms Can Transformers Learn?"

    def __init__(self, signs: int = 32, length: int = 25) -> None:
        super().__init__(signs, length)

    def _order(self, signs: Tensor, present: Tensor, end: Tensor) -> Tensor:
        return signs.where(present, self.signs).sort(1).values

    def _sources(self, signs: Sequence[int]) -> list[int]:
        return sorted(range(len(signs)), key=signs.__getitem__)

    def shuffled(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        before = (inputs == self.equals).cumsum(1) == 0
        return shuffle_items(inputs, before & (inputs < self.signs), generator)
