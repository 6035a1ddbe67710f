"""Modular sum: add up digits and name the sum modulo m. Pure state tracking, nothing to recall.

From arXiv 2602.18333 (On the "Induction Bias" in Sequence Models): digits uniform in Z_m, one
token each, lengths from 2 up. *Outcome* supervision asks for the final sum only; *aligned* asks
for the running sum at each digit as well (part `running`, which helps training and is not counted
in a test). A closing token ``=`` at which the sum is due (part `state`) is our choice: it gives
both kinds of supervision the same place to answer.

Length n is the number of digits; tensors are (batch, n + 1). Token ids: digits 0..m-1, ``=``,
padding. A guess is right once in m times. Examples::

    modsum(modulus=10)
    tokens  3 9 4 7 =
    labels  3 2 6 3 3

    modsum(modulus=10, supervision=outcome)
    tokens  3 9 4 7 =
    labels  . . . . 3
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outlast.arguments import check_whole
from outlast.registry import tasks
from outlast.tasks.base import Batch, Length, Supervision
from outlast.tasks.sampling import randint, shuffle_items
from outlast.tasks.tracking import Tracking


@tasks.register("modsum")
class ModSum(Tracking):
    """Sum of digits modulo m, asked at the end or all along.

    Args:
        modulus: The sum is taken modulo this number, and digits are below it.
        supervision: `aligned` asks for the sum so far at each digit; `outcome` at the end alone.
        length: The longest length trained on, in digits.
    """

    paper = '2602.18333 On the "Induction Bias" in Sequence Models'
    samples_jointly = True
    answers_are_states = True

    def __init__(
        self, modulus: int = 10, supervision: Supervision = "aligned", length: int = 25
    ) -> None:
        check_whole("modulus", modulus, 2)
        self.modulus = modulus
        self._set_up(modulus, modulus, supervision, length)

    def sample(self, length: Length, batch: int, generator: torch.Generator) -> Batch:
        lengths, longest = self.draw_lengths(length, batch, generator)
        digits = randint(0, self.modulus, (batch, longest), generator)
        return self._written(digits, digits.cumsum(1) % self.modulus, lengths)

    def shuffled(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        return shuffle_items(inputs, inputs < self.modulus, generator)

    def states(self, items: Sequence[int]) -> list[int]:
        totals = [0]
        for digit in items:
            totals.append((totals[-1] + digit) % self.modulus)
        return totals
