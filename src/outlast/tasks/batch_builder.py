"""Builds a batch: every row is written at once, without a loop over rows or positions.

Rows differ in length, so the same thing stands at a different position in each row. A sampler
computes the positions as a (batch, n) tensor. A mask says which of the n a row has. The builder
writes them all in one operation, and the host never waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outlast.tasks.base import IGNORE, Batch


class BatchBuilder:
    """A batch under construction. At the start it is all padding and expects no answer.

    Positions, tokens, answers and masks are (batch, n), or broadcast to it.
    """

    def __init__(
        self, parts: tuple[str, ...], batch: int, tokens: int, pad: int, device: torch.device
    ) -> None:
        self.parts, self.tokens = parts, tokens
        # The extra column takes what a mask rules out. `batch` cuts it off.
        shape = (batch, tokens + 1)
        self._inputs = torch.full(shape, pad, dtype=torch.int64, device=device)
        self._targets = torch.full(shape, IGNORE, dtype=torch.int64, device=device)
        self._part = torch.full(shape, -1, dtype=torch.int8, device=device)

    def write(self, at: Tensor, token: Tensor | int, mask: Tensor | None = None) -> None:
        """Put tokens at positions."""
        self._put(self._inputs, at, token, mask)

    def expect(self, at: Tensor, answer: Tensor, part: str, mask: Tensor | None = None) -> None:
        """Expect answers at positions, as a test of the skill `part`."""
        self._put(self._targets, at, answer, mask)
        self._put(self._part, at, self.parts.index(part), mask)

    def _put(self, table: Tensor, at: Tensor, value: Tensor | int, mask: Tensor | None) -> None:
        if mask is not None:
            at = torch.where(mask, at, self.tokens)
        if isinstance(value, int):
            table.scatter_(1, at, value)
        else:
            table.scatter_(1, at, value.expand_as(at))

    def batch(self) -> Batch:
        """The finished batch."""
        tables = (self._inputs, self._targets, self._part)
        return Batch(*(table[:, : self.tokens].contiguous() for table in tables))
