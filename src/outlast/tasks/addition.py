"""Addition of two long numbers, digit by digit.

The test bed of length generalisation in arithmetic: arXiv 2310.16028 (What Algorithms Can
Transformers Learn?) and 2402.09371 (Transformers Can Achieve Length Generalization But Not
Robustly), from where the reversed order and the index hints are. The numbers are of equal length
with leading zeros, and the sum has one digit more: our choice.

Two numbers of n digits with ``+`` between them, then ``=`` and their sum. Each digit of the sum is
due one token before it stands in the input, as in a language model (part `sum`). The last one is
not in the input.

- `order`: `plain` writes the highest digit first, `reversed` the lowest, in all three numbers.
- `hints`: before each digit stands a token that names its place, the same in all three numbers. A
  digit of the sum is due at its hint; the hints of the sum are given and not asked for, which is
  our choice. The lowest place of a row has a random hint, so that short rows train all hints. There
  are `marks` of them, so a row has fewer than `marks` digits.

Length n is the number of digits of each number; tensors are (batch, 3n + 2), with hints
(batch, 6n + 3). Token ids: digits 0..9, hints, ``+``, ``=``, padding. A guess is right once in ten
times. Examples::

    addition
    tokens  4 7 + 8 5 = 1 3
    labels  . . . . . 1 3 2

    addition(order=reversed, hints=true)
    tokens  k3 7 k4 4 + k3 5 k4 8 = k3 2 k4 3 k5
    labels  .  . .  . . .  . .  . . 2  . 3  . 1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from outlast.arguments import check_choice, check_flag, check_whole
from outlast.errors import require
from outlast.registry import tasks
from outlast.tasks.base import Batch, BatchBuilder, Length, Task
from outlast.tasks.sampling import randint, randint_below

Order = Literal["plain", "reversed"]


@tasks.register("addition")
class Addition(Task):
    """The sum of two numbers, digit by digit.

    Args:
        order: `plain` writes the highest digit first, `reversed` the lowest.
        hints: Whether a token before each digit names its place.
        marks: How many different hints there are.
        length: The longest length trained on, in digits of a number.
    """

    paper = "2402.09371 Transformers Can Achieve Length Generalization But Not Robustly"
    samples_jointly = True
    symbols = "+=·"
    parts = ("sum",)
    classes = 10

    def __init__(
        self, order: Order = "plain", hints: bool = False, marks: int = 128, length: int = 10
    ) -> None:
        check_choice("order", order, Order)
        check_flag("hints", hints)
        check_whole("marks", marks, 2)
        check_whole("length", length, 1)
        fits = not hints or marks > length
        require(fits, "marks", marks, f"more than length={length}: the sum has a digit more")
        self.lowest_first, self.hints, self.marks = order == "reversed", hints, marks
        self.lengths, self.ceiling = (1, length), marks - 1 if hints else None
        self.plus = 10 + marks * hints
        self.equals, self.pad = self.plus + 1, self.plus + 2
        self.vocabulary = self.plus + 3

    def tokens(self, length: int) -> int:
        return 6 * length + 3 if self.hints else 3 * length + 2

    def sample(self, length: Length, batch: int, generator: torch.Generator) -> Batch:
        lengths, longest = self.draw_lengths(length, batch, generator)
        n, device = lengths[:, None], generator.device
        # digits by place, the lowest first, with a zero above the highest
        place = torch.arange(longest + 1, device=device).expand(batch, -1)
        digits = randint(0, 10, (batch, 2, longest + 1), generator)
        one, two = digits.masked_fill((place >= n)[:, None], 0).unbind(1)
        hint = 10 + place + randint_below(self.marks - n, generator) if self.hints else None
        total = _added(one, two)

        builder = BatchBuilder(self.parts, batch, self.tokens(longest), self.pad, device)
        width = 2 if self.hints else 1  # the tokens of a digit
        self._write(builder, one, 0 * n, n, n, hint)
        builder.write(width * n, self.plus)
        self._write(builder, two, width * n + 1, n, n, hint)
        builder.write(2 * width * n + 1, self.equals)
        at = self._write(builder, total, 2 * width * n + 2, n + 1, n, hint)
        builder.expect(at - 1, total, "sum", place <= n)
        return builder.batch()

    def _write(
        self,
        builder: BatchBuilder,
        digits: Tensor,
        start: Tensor,
        count: Tensor,
        shown: Tensor,
        hint: Tensor | None,
    ) -> Tensor:
        """Write the first `shown` of the `count` digits of a number; returns where each stands.

        digits, hint (batch, places); start, count, shown (batch, 1). All hints are written.
        """
        place = torch.arange(digits.shape[1], device=digits.device)
        number = place.expand_as(digits) if self.lowest_first else count - 1 - place
        at = start + number if hint is None else start + 2 * number + 1
        if hint is not None:
            builder.write(at - 1, hint, place < count)
        builder.write(at, digits, (place < count) & (number < shown))
        return at

    def solve(self, inputs: Sequence[int]) -> list[int | None]:
        row = list(inputs)
        if row.count(self.plus) != 1 or row.count(self.equals) != 1:
            return [None] * len(row)
        plus, equals = row.index(self.plus), row.index(self.equals)
        numbers = row[:plus], row[plus + 1 : equals]
        one, two = ([token for token in number if token < 10] for number in numbers)
        if not self.lowest_first:
            one, two = one[::-1], two[::-1]
        digits, carry = list[int](), 0
        for pair in zip(one, two, strict=False):
            carry, digit = divmod(sum(pair) + carry, 10)
            digits.append(digit)
        digits.append(carry)
        if not self.lowest_first:
            digits.reverse()
        answers: list[int | None] = [None] * (equals + self.hints)
        for digit in digits:
            answers += [digit, None] if self.hints else [digit]
        return (answers + [None] * len(row))[: len(row)]


def _added(one: Tensor, two: Tensor) -> Tensor:
    """The digits of the sum of two numbers, (batch, places), the lowest place first.

    A place passes a carry on if its digits add up to nine. So the carry out of a place is decided
    at the last place up to it with another sum.
    """
    sums = one + two
    place = torch.arange(sums.shape[1], device=sums.device).expand_as(sums)
    decided = place.where(sums != 9, -1).cummax(1).values
    carry = (sums.gather(1, decided.clamp_min(0)) > 9) & (decided >= 0)
    carried_in = torch.nn.functional.pad(carry[:, :-1].long(), (1, 0))
    return (sums + carried_in) % 10
