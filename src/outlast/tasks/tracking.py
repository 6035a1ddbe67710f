"""Tasks that track a state: a row of items, then ``=``, at which an answer about the state is due.

Length n is the number of items; tensors are (batch, n + 1). Token ids: items, ``=``, padding. The
answer is due at ``=`` (part `state`). *Aligned* supervision asks for it after each item as well
(part `running`, which helps training and is not counted in a test); *outcome* does not.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from outlast.arguments import check_choice, check_whole
from outlast.tasks.base import Batch, BatchBuilder, Supervision, Task
from outlast.tasks.truth import Truth


class Tracking(Task):
    """Base of tasks with one answer about the state. A subclass calls `_set_up`."""

    symbols = "=·"

    def _set_up(self, items: int, classes: int, supervision: Supervision, length: int) -> None:
        """`items` is the number of different items, `classes` that of different answers."""
        check_choice("supervision", supervision, Supervision)
        check_whole("length", length, 2)
        self.items, self.classes = items, classes
        self.aligned = supervision == "aligned"
        self.lengths = (2, length)
        self.parts = ("state", "running") if self.aligned else ("state",)
        self.auxiliary = self.parts[1:]
        self.equals, self.pad = items, items + 1
        self.vocabulary = items + 2

    def tokens(self, length: int) -> int:
        return length + 1

    def _written(self, items: Tensor, answers: Tensor, lengths: Tensor) -> Batch:
        """The batch of these items (batch, longest), with the answers after each of them."""
        batch, longest = items.shape
        at = torch.arange(longest, device=items.device).expand(batch, -1)
        end = lengths[:, None]
        builder = BatchBuilder(self.parts, batch, self.tokens(longest), self.pad, items.device)
        builder.write(at, items, at < end)
        if self.aligned:
            builder.expect(at, answers, "running", at < end)
        builder.write(end, self.equals)
        builder.expect(end, answers.gather(1, end - 1), "state")
        return builder.batch()

    @abstractmethod
    def states(self, items: Sequence[int]) -> list[int]:
        """The state before the first item and after each, in plain Python."""

    def answer(self, state: int) -> int:
        """The answer that a state stands for."""
        return state

    def truth(self, inputs: Sequence[int]) -> Truth:
        truth = Truth()
        for token, state in zip(inputs, self._states_at(inputs), strict=True):
            truth.add(state if token <= self.equals else None)
        return truth

    def solve(self, inputs: Sequence[int]) -> list[int | None]:
        last_asked = self.equals if self.aligned else -1
        return [
            self.answer(state) if token == self.equals or token <= last_asked else None
            for token, state in zip(inputs, self._states_at(inputs), strict=True)
        ]

    def _states_at(self, inputs: Sequence[int]) -> list[int]:
        """The state after each token of a row."""
        states = self.states([token for token in inputs if token < self.items])
        seen, after = 0, []
        for token in inputs:
            seen += token < self.items
            after.append(states[seen])
        return after


def prefixes(steps: Tensor, compose: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The first step of each row, the first two composed, the first three, and so on.

    steps (batch, n, ...); `compose(earlier, later)` must be associative. It is called about log2(n)
    times, on all rows and places at once.
    """
    reach = 1
    while reach < steps.shape[1]:
        joined = compose(steps[:, :-reach], steps[:, reach:])
        steps = torch.cat([steps[:, :reach], joined], 1)
        reach *= 2
    return steps


def follow(earlier: Tensor, later: Tensor) -> Tensor:
    """Maps of a few states, (..., states): first the earlier one, then the later one."""
    return later.gather(-1, earlier)


class DeviceTable:
    """A table of whole numbers that lies on each device after its first use there."""

    def __init__(self, rows: Sequence[object]) -> None:
        self._table = torch.tensor(rows, dtype=torch.int64)
        self._copies: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        if device not in self._copies:
            self._copies[device] = self._table.to(device)
        return self._copies[device]
