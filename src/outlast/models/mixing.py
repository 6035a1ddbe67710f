"""Tokens that sequences of a batch exchange inside a model, between two sublayers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Mix(NamedTuple):
    """Which tokens are exchanged, where in the model, and for whose.

    `point` () is the sublayer, or set of branches, after which it happens. Row i of the batch gets
    tokens of row i + `shift` (), counted around, at the places that `mask` (batch, tokens) marks.
    """

    point: Tensor
    shift: Tensor
    mask: Tensor

    def after(self, number: int, x: Tensor) -> Tensor:
        """The stream x (batch, tokens, width) after a sublayer; as it is if it is another one."""
        others = x.index_select(0, partners(self.shift, len(x)))
        here = self.mask & (self.point == number)
        return torch.where(here[..., None], others, x)


def partners(shift: Tensor, batch: int) -> Tensor:
    """The row whose tokens each row gets, (..., batch)."""
    return (torch.arange(batch, device=shift.device) + shift[..., None]) % batch
