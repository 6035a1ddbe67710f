"""`OutlastCache`: the state of an Outlast model as a cache of transformers.

Rows with as much padding on their left form a group. Each group is run by itself, without its
padding. So neither a recurrence nor a position ever sees the padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from outlast.errors import OutlastError


@dataclass(frozen=True)
class Group:
    """Rows of a batch with the same padding: their numbers (rows,), its length, their state."""

    rows: Tensor
    padding: int
    state: Any = None


class OutlastCache(Cache):  # type: ignore[misc]
    """Recurrent states, keys and values of a batch after the tokens so far.

    Args:
        total: The most tokens that a row will have, padding included. Only a model that was trained
            with `random_positions` needs it: there it decides the positions.
    """

    def __init__(self, total: int | None = None) -> None:
        super().__init__(layers=[])
        self.total = total
        #: tokens of each row so far, padding included
        self.tokens = 0
        self.groups: list[Group] = []

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"OutlastCache(tokens={self.tokens}, batch_size={self.batch_size})"

    def begin(self, padding: Tensor | None, batch: int, device: torch.device) -> None:
        """Form the groups of a new batch; `padding` (batch,) is how much each row has."""
        rows = torch.arange(batch, device=device)
        if padding is None:
            self.groups = [Group(rows, 0)]
        else:
            lengths = padding.unique().tolist()
            self.groups = [Group(rows[padding == length], length) for length in lengths]

    def select(self, index: Tensor) -> None:
        """Make a new batch of old rows, (rows,): each may be taken once, often or never."""
        groups = []
        for group in self.groups:
            place = torch.full((self.batch_size,), -1, device=group.rows.device)
            place[group.rows] = torch.arange(len(group.rows), device=group.rows.device)
            places = place[index.to(place.device)]
            rows = (places >= 0).nonzero()[:, 0]
            if len(rows):
                groups.append(Group(rows, group.padding, _take(group.state, places[rows])))
        self.groups = groups

    # ---- what transformers asks for --------------------------------------------------------------

    @property
    def batch_size(self) -> int:
        return sum(len(group.rows) for group in self.groups) or -1

    @property
    def is_croppable(self) -> bool:
        return False

    @property
    def is_initialized(self) -> bool:
        return bool(self.groups)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.tokens

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.select(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self.select(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.select(torch.arange(self.batch_size).repeat_interleave(repeats))

    def reset(self) -> None:
        self.tokens, self.groups = 0, []

    def crop(self, tokens_to_remove: int) -> None:
        raise OutlastError("a recurrent state cannot go back: an OutlastCache cannot be cropped")

    def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise OutlastError("an OutlastCache holds the state of an Outlast model, and of no other")


def _take(state: Any, index: Tensor) -> Any:
    """The state of some rows. A tensor without a batch, such as positions, has one axis."""
    if isinstance(state, Tensor):
        return state[index] if state.dim() > 1 else state
    if isinstance(state, tuple):
        inner = [_take(item, index) for item in state]
        return type(state)(*inner) if hasattr(state, "_fields") else tuple(inner)
    return state
