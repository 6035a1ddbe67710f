"""Hierarchical flip-flop: bits at several levels, where a write also overwrites what lies below.

`flipflop` with levels. arXiv 2503.23174 (Threshold Relative Attention) has a task of this name,
whose grammar is not known to us. This one is our own design.

A row of instructions, each followed by a bit. ``w1`` writes the bit to level 1 and to all levels
below it, ``w2`` to level 2 and those below it, and so on. ``r2`` reads level 2: its bit is the last
one that ``w1`` or ``w2`` wrote. ``i`` is to be ignored and its bit is noise. So what to look for
differs from read to read: the last write of the same level or a higher one. With one level it is
`flipflop`.

The first instruction is ``w1``, the last one reads. Any other is ``i`` with probability `ignore`;
reads and writes share the rest equally, and levels are uniform. The answer is due at each read
(part `recall`); the right bit then follows in the input, as in a language model.

Length is counted in tokens, as in `flipflop`, so it is even; tensors are (batch, length). Token
ids: bits 0 and 1, writes, reads, ``i``, padding. A guess is right half the time. Example::

    hierarchical_flipflop(length=14)
    tokens  w1 1 w2 0 i 1 r1 1 r2 0 w1 1 r2 1
    labels  .  . .  . . . 1  . 0  . .  . 1  .
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outlast.arguments import as_whole, check_share, check_whole
from outlast.errors import require
from outlast.registry import tasks
from outlast.tasks.base import Batch, BatchBuilder, Length, Task
from outlast.tasks.sampling import rand, randint
from outlast.tasks.truth import Truth

#: the most levels: a row is gone through once for each
MOST_LEVELS = 64


@tasks.register("hierarchical_flipflop")
class HierarchicalFlipFlop(Task):
    """The bit last written to a level or to one above it, asked for at each read.

    Args:
        length: The length trained on, in tokens; it is even.
        ignore: The probability of an instruction whose bit is noise.
        levels: How many levels there are.
    """

    paper = "2503.23174 Threshold Relative Attention"
    samples_jointly = True
    symbols = "i·"
    parts = ("recall",)
    shortest = 4
    multiple = 2
    classes = 2

    def __init__(self, length: int = 512, ignore: float = 0.8, levels: int = 2) -> None:
        check_whole("length", length, self.shortest)
        require(length % 2 == 0, "length", length, "an even number of tokens: two an instruction")
        check_share("ignore", ignore)
        check_whole("levels", levels, 1, MOST_LEVELS)
        self.ignore, self.levels = ignore, levels
        self.lengths = (length, length)
        self.read, self.skip = 2 + levels, 2 + 2 * levels
        self.pad = self.skip + 1
        self.vocabulary = self.pad + 1

    def tokens(self, length: int) -> int:
        return length

    def word(self, token: int) -> str:
        token = as_whole("token", token, 0, self.vocabulary - 1)
        if 2 <= token < self.skip:
            return f"w{token - 1}" if token < self.read else f"r{token - self.read + 1}"
        return super().word(token)

    def sample(self, length: Length, batch: int, generator: torch.Generator) -> Batch:
        lengths, longest = self.draw_lengths(length, batch, generator)
        last = lengths[:, None] // 2 - 1
        pair = torch.arange(longest // 2, device=generator.device).expand(batch, -1)
        drawn = rand(pair.shape, generator)
        level = randint(0, self.levels, pair.shape, generator).masked_fill(pair == 0, 0)
        noise = randint(0, 2, pair.shape, generator)
        writes = (drawn >= (1 + self.ignore) / 2).masked_fill(pair == last, False) | (pair == 0)
        reads = (drawn >= self.ignore) & ~writes | (pair == last)
        active = torch.where(writes, 2 + level, self.read + level)
        instructions = active.where(writes | reads, self.skip)
        bits = noise.gather(1, self._written(writes, level, pair)).where(reads, noise)

        present = pair <= last
        builder = BatchBuilder(self.parts, batch, self.tokens(longest), self.pad, generator.device)
        builder.write(2 * pair, instructions, present)
        builder.write(2 * pair + 1, bits, present)
        builder.expect(2 * pair, bits, "recall", present & reads)
        return builder.batch()

    def _written(self, writes: Tensor, level: Tensor, pair: Tensor) -> Tensor:
        """For each pair the last write to its level or a higher one; the first pair is one."""
        written = torch.zeros_like(pair)
        for lowest in range(self.levels):
            last = pair.where(writes & (level <= lowest), 0).cummax(1).values
            written = last.where(level == lowest, written)
        return written

    def truth(self, inputs: Sequence[int]) -> Truth:
        truth, places = Truth(), dict[int, int]()
        for place, (before, token) in enumerate(zip([self.pad, *inputs], inputs, strict=False)):
            if 2 <= before < self.read:
                places |= dict.fromkeys(range(before - 2, self.levels), place)
            reads = self.read <= token < self.skip
            truth.add(source=places.get(token - self.read) if reads else None)
        return truth

    def solve(self, inputs: Sequence[int]) -> list[int | None]:
        answers: list[int | None] = []
        bits: list[int | None] = [None] * self.levels
        for before, token in zip([self.pad, *inputs], inputs, strict=False):
            if 2 <= before < self.read:
                for level in range(before - 2, self.levels):
                    bits[level] = token
            answers.append(bits[token - self.read] if self.read <= token < self.skip else None)
        return answers
