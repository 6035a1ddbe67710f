"""What a row of tokens means, token by token: for analyses of what a model does with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import torch
from torch import Tensor

#: stands in a table where there is nothing to say
ABSENT = -1


@dataclass(frozen=True)
class Truth:
    """The meaning of one row, a list with an entry for each token; None: nothing to say.

    Args:
        state: The state to keep in mind after this token, such as the sum so far.
        source: At an answer that must be recalled, where in the row the token stands that holds it.
        key: The number of the key that a stored value, or a question, belongs to.
    """

    state: list[int | None] = field(default_factory=list)
    source: list[int | None] = field(default_factory=list)
    key: list[int | None] = field(default_factory=list)

    def add(
        self, state: int | None = None, source: int | None = None, key: int | None = None
    ) -> None:
        """Append the entries of the next token."""
        self.state.append(state)
        self.source.append(source)
        self.key.append(key)


class TruthTable(NamedTuple):
    """The meaning of a batch: each (batch, tokens), -1 where there is nothing to say."""

    state: Tensor
    source: Tensor
    key: Tensor


class TruthMemory:
    """The tables of the batches seen last: all seeds of a run are looked at on the same ones."""

    def __init__(self, batches: int = 16) -> None:
        self.batches = batches
        self.tables: dict[tuple[torch.Size, bytes], TruthTable] = {}

    def table(self, inputs: Tensor, truth: Callable[[list[int]], Truth]) -> TruthTable:
        """The truth of every row of (batch, tokens), on their device."""
        tokens = inputs.cpu()
        key = (tokens.shape, tokens.numpy().tobytes())
        if key not in self.tables:
            if len(self.tables) == self.batches:
                self.tables.pop(next(iter(self.tables)))
            self.tables[key] = _as_table(tokens, truth)
        return TruthTable(*(column.to(inputs.device) for column in self.tables[key]))


def _as_table(tokens: Tensor, truth: Callable[[list[int]], Truth]) -> TruthTable:
    """The truths of all rows of (batch, tokens); lists of Python are made of one row at a time."""
    tables = {column.name: torch.empty_like(tokens, dtype=torch.int64) for column in fields(Truth)}
    for number, row in enumerate(tokens):
        meaning = truth(row.tolist())
        for name, table in tables.items():
            values = [ABSENT if value is None else value for value in getattr(meaning, name)]
            table[number] = torch.tensor(values, dtype=torch.int64)
    return TruthTable(**tables)
