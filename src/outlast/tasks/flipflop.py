"""Flip-flop: remember one bit through any amount of noise.

From arXiv 2503.23174 (Threshold Relative Attention), after flip-flop language modelling
(2306.00946). A row of instructions, each followed by a bit: ``w`` writes the bit, ``i`` is to be
ignored and its bit is noise, ``r`` reads: its bit is the one last written. The first instruction is
``w``, the last ``r``; any other is ``i`` with probability `ignore`, and ``w`` and ``r`` share the
rest equally. The answer is due at each ``r`` (part `recall`); the right bit then follows in the
input, as in a language model.

Trained on one length, 512 tokens with ignore=0.8, and tested also on *sparse* (0.98) and *dense*
(0.1) rows. These three probabilities are known to us from summaries only.

`answers` says among which outputs of a model a test looks for the largest. With ``bits``, the
default, it takes the two bits alone. With ``tokens`` it takes all six tokens, as the authors of
2306.00946 do: a model that puts any other token on top is wrong. So `tokens` is never higher.
Training is the same in both: its loss and its accuracy are over every output of the model.

Length is counted in tokens, as in the paper, so it is even; tensors are (batch, length). Token ids:
bits 0 and 1, ``w``, ``r``, ``i``, padding. A guess is right half the time. Example::

    flipflop(length=12)
    tokens  w 1 i 0 r 1 w 0 i 1 r 0
    labels  . . . . 1 . . . . . 0 .
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from outlast.arguments import check_choice, check_share, check_whole
from outlast.errors import require
from outlast.registry import tasks
from outlast.tasks.base import Batch, BatchBuilder, Length, Task
from outlast.tasks.sampling import rand, randint
from outlast.tasks.truth import Truth

WRITE, READ, SKIP, PAD = 2, 3, 4, 5
#: the outputs among which a test looks for the largest
Answers = Literal["bits", "tokens"]


@tasks.register("flipflop")
class FlipFlop(Task):
    """The bit last written, asked for at each read.

    Args:
        length: The length trained on, in tokens; it is even.
        ignore: The probability of an instruction whose bit is noise.
        answers: What a test takes the largest output of: the two bits, or all tokens.
    """

    paper = "2503.23174 Threshold Relative Attention"
    samples_jointly = True
    symbols = "wri·"
    parts = ("recall",)
    shortest = 4
    multiple = 2
    classes = 2
    vocabulary = 6

    def __init__(self, length: int = 512, ignore: float = 0.8, answers: Answers = "bits") -> None:
        check_whole("length", length, self.shortest)
        require(length % 2 == 0, "length", length, "an even number of tokens: two an instruction")
        check_share("ignore", ignore)
        check_choice("answers", answers, Answers)
        self.ignore = ignore
        self.lengths = (length, length)
        self.classes = 2 if answers == "bits" else self.vocabulary
        more = "" if answers == "bits" else f", answers={answers}"
        self.variants = {
            "sparse": f"flipflop(length={length}, ignore=0.98{more})",
            "dense": f"flipflop(length={length}, ignore=0.1{more})",
        }

    def tokens(self, length: int) -> int:
        return length

    def chance_level(self, part: str) -> float:
        super().chance_level(part)
        return 1 / 2  # a guess is a bit, whatever else a model might say

    def sample(self, length: Length, batch: int, generator: torch.Generator) -> Batch:
        lengths, longest = self.draw_lengths(length, batch, generator)
        last = lengths[:, None] // 2 - 1
        pair = torch.arange(longest // 2, device=generator.device).expand(batch, -1)
        instructions = self._draw_instructions(last, pair, generator)
        bits = randint(0, 2, (batch, longest // 2), generator)
        # the place of the last write so far; the first instruction is one, so there always is one
        written = torch.where(instructions == WRITE, pair, 0).cummax(1).values
        reads = instructions == READ
        bits = torch.where(reads, bits.gather(1, written), bits)

        present = pair <= last
        builder = BatchBuilder(self.parts, batch, self.tokens(longest), PAD, generator.device)
        builder.write(2 * pair, instructions, present)
        builder.write(2 * pair + 1, bits, present)
        builder.expect(2 * pair, bits, "recall", present & reads)
        return builder.batch()

    def _draw_instructions(self, last: Tensor, pair: Tensor, generator: torch.Generator) -> Tensor:
        drawn = rand(pair.shape, generator)
        active = torch.where(drawn < (1 + self.ignore) / 2, WRITE, READ)
        instructions = torch.where(drawn < self.ignore, SKIP, active)
        return instructions.masked_fill(pair == 0, WRITE).masked_fill(pair == last, READ)

    def truth(self, inputs: Sequence[int]) -> Truth:
        truth, bit, written = Truth(), None, None
        for place, (before, token) in enumerate(zip([PAD, *inputs], inputs, strict=False)):
            if before == WRITE:
                bit, written = token, place
            truth.add(None if token == PAD else bit, written if token == READ else None)
        return truth

    def solve(self, inputs: Sequence[int]) -> list[int | None]:
        answers: list[int | None] = []
        bit = None
        for before, token in zip([PAD, *inputs], inputs, strict=False):
            if before == WRITE:
                bit = token
            answers.append(bit if token == READ else None)
        return answers
