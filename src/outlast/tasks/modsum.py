"""Modular sum: add up digits and name the sum modulo m. Pure state tracking, nothing to recall.

From arXiv 2602.18333 (On the "Induction Bias" in Sequence Models): digits uniform in Z_m, one
token each, lengths from 2 up. *Outcome* supervision asks for the final sum only; *aligned* asks
for the running sum at each digit as well (part `running`, which helps training and is not counted
in a test). A closing token ``=`` at which the sum is due (part `state`) is our choice: it gives
both kinds of supervision the same place to answer.

Length n is the number of digits; tensors are (batch, n + 1). Token ids: digits 0..m-1, ``=``,
padding. Examples::

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

from outlast.arguments import check_choice, check_whole
from outlast.registry import tasks
from outlast.tasks.base import Batch, BatchBuilder, Length, Supervision, Task
from outlast.tasks.sampling import randint, shuffle_items
from outlast.tasks.truth import Truth


@tasks.register("modsum")
class ModSum(Task):
    """Sum of digits modulo m, asked at the end or all along.

    Args:
        modulus: The sum is taken modulo this number, and digits are below it.
        supervision: `aligned` asks for the sum so far at each digit; `outcome` at the end alone.
        length: The longest length trained on, in digits.
    """

    paper = '2602.18333 On the "Induction Bias" in Sequence Models'
    samples_jointly = True
    symbols = "=·"

    def __init__(
        self, modulus: int = 10, supervision: Supervision = "aligned", length: int = 25
    ) -> None:
        check_whole("modulus", modulus, 2)
        check_choice("supervision", supervision, Supervision)
        check_whole("length", length, 2)
        self.modulus, self.aligned = modulus, supervision == "aligned"
        self.lengths = (2, length)
        self.parts = ("state", "running") if self.aligned else ("state",)
        self.auxiliary = self.parts[1:]
        self.classes = modulus
        self.equals, self.pad = modulus, modulus + 1
        self.vocabulary = modulus + 2

    def tokens(self, length: int) -> int:
        return length + 1

    def sample(self, length: Length, batch: int, generator: torch.Generator) -> Batch:
        lengths, longest = self.draw_lengths(length, batch, generator)
        end = lengths[:, None]
        digits = randint(0, self.modulus, (batch, longest), generator)
        running = digits.cumsum(1) % self.modulus
        at = torch.arange(longest, device=generator.device).expand(batch, -1)

        builder = BatchBuilder(self.parts, batch, self.tokens(longest), self.pad, generator.device)
        builder.write(at, digits, at < end)
        if self.aligned:
            builder.expect(at, running, "running", at < end)
        builder.write(end, self.equals)
        builder.expect(end, running.gather(1, end - 1), "state")
        return builder.batch()

    def shuffled(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        return shuffle_items(inputs, inputs < self.modulus, generator)

    def truth(self, inputs: Sequence[int]) -> Truth:
        truth, total = Truth(), 0
        for token in inputs:
            total += token if token < self.modulus else 0
            truth.add(total % self.modulus if token <= self.equals else None)
        return truth

    def solve(self, inputs: Sequence[int]) -> list[int | None]:
        answers: list[int | None] = []
        total = 0
        for token in inputs:
            total += token if token < self.modulus else 0
            asked = token == self.equals or (self.aligned and token < self.modulus)
            answers.append(total % self.modulus if asked else None)
        return answers
