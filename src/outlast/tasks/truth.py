"""What a row of tokens means, token by token: for analyses of what a model does with it."""

from __future__ import annotations

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


def as_table(truths: list[Truth], device: torch.device) -> TruthTable:
    """The truths of all rows of a batch."""

    def table(name: str) -> Tensor:
        rows = [[ABSENT if v is None else v for v in getattr(t, name)] for t in truths]
        return torch.tensor(rows, dtype=torch.int64, device=device)

    return TruthTable(*(table(column.name) for column in fields(Truth)))
