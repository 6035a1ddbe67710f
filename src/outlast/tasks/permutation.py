"""Permutation: multiply elements of a group. State tracking that no sum can stand in for.

The word problem of a group: arXiv 2404.08819 (The Illusion of State) and 2411.12537 (linear
recurrences with negative eigenvalues) test models on it. Products of S5 and A5 are complete for
the class NC1, those of S3 are not. S3 is here as the smallest group in which order matters. A
closing token ``=``, at which the product is due, is our choice, as in `modsum`.

A token is an element, written as the row that it makes of 1, 2, 3, ... All elements are drawn
uniformly. Each one moves what the ones before it have made: 231 puts what stood second first. Due
is the row that all elements so far make.

Length n is the number of elements; tensors are (batch, n + 1). Token ids: elements in the order of
their rows as numbers, ``=``, padding. The product is due at ``=`` (part `state`) and, with aligned
supervision, at each element (part `running`, not counted in a test). A guess is right once in as
many times as the group has elements: 6, 120 or 60. Examples::

    permutation
    tokens  231 213 213 =
    labels  231 321 231 231

    permutation(supervision=outcome, group=S5)
    tokens  21345 23451 =
    labels  .     .     13452
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outlast.arguments import as_whole, check_choice
from outlast.registry import tasks
from outlast.tasks.base import Batch, Length, Supervision
from outlast.tasks.groups import GroupName, Orders
from outlast.tasks.sampling import randint, shuffle_items
from outlast.tasks.tracking import Tracking


@tasks.register("permutation")
class Permutation(Tracking):
    """The product of elements of a group, asked at the end or all along.

    Args:
        group: All orders of three things, all of five, or those of five with an even parity.
        supervision: `aligned` asks for the product so far at each element; `outcome` at the end.
        length: The longest length trained on, in elements.
    """

    paper = "2404.08819 The Illusion of State in State-Space Models"
    samples_jointly = True
    answers_are_states = True

    def __init__(
        self, group: GroupName = "S3", supervision: Supervision = "aligned", length: int = 25
    ) -> None:
        check_choice("group", group, GroupName)
        self.group = Orders(group)
        self._set_up(self.group.size, self.group.size, supervision, length)

    def word(self, token: int) -> str:
        token = as_whole("token", token, 0, self.vocabulary - 1)
        return self.group.word(token) if token < self.items else self.symbols[token - self.items]

    def sample(self, length: Length, batch: int, generator: torch.Generator) -> Batch:
        lengths, longest = self.draw_lengths(length, batch, generator)
        elements = randint(0, self.items, (batch, longest), generator)
        return self._written(elements, self.group.running(elements), lengths)

    def shuffled(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        return shuffle_items(inputs, inputs < self.items, generator)

    def states(self, items: Sequence[int]) -> list[int]:
        products = [0]
        for item in items:
            products.append(self.group.product(products[-1], item))
        return products
