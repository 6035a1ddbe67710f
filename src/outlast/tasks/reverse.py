"""Reverse: say what came before again, from its end to its beginning.

A relative of `copy` in which the distance to the sign that is due changes by two with every token.
Reversing a string is among the tasks of arXiv 2207.02098 (Neural Networks and the Chomsky
Hierarchy); the sizes are our choice, and the layout is that of `copy`.

n signs, then ``=``, then the same n signs from the last to the first; each is due one token before
it stands in the input, as in a language model (part `recall`), so the last is not in the input.

Length n is the number of signs; tensors are (batch, 2n). Token ids: signs 0..signs-1, ``=``,
padding. A guess is right once in as many times as there are signs. Example::

    reverse(signs=10)
    tokens  3 1 4 5 = 5 4 1
    labels  . . . . 5 4 1 3
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outlast.registry import tasks
from outlast.tasks.copy import Copy


@tasks.register("reverse")
class Reverse(Copy):
    """A row of signs, said again backwards.

    Args:
        signs: How many different signs there are.
        length: The longest length trained on, in signs.
    """

    paper = "2207.02098 Neural Networks and the Chomsky Hierarchy"

    def __init__(self, signs: int = 32, length: int = 25) -> None:
        super().__init__(signs, length)

    def _order(self, signs: Tensor, present: Tensor, end: Tensor) -> Tensor:
        place = torch.arange(signs.shape[1], device=signs.device)
        return signs.gather(1, (end - 1 - place).clamp_min(0))

    def _sources(self, signs: Sequence[int]) -> list[int]:
        return list(range(len(signs)))[::-1]
