"""The seam every mixer stands behind.

``forward(x, state=None) -> (y, state)`` with x and y (batch, tokens, width): the same call
serves training on whole sequences, evaluation in chunks and generation token by token. The
state of `None` is the beginning of a sequence.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from outlast.specs import Spec

Pathway = Literal["recurrent", "attention", "pointwise"]
State = Any


class Mixer(nn.Module):
    """Base of every mixer. `ceiling` is the most tokens it can take; None means no limit."""

    spec: Spec
    pathway: ClassVar[Pathway]
    ceiling: int | None = None

    def forward(self, x: Tensor, state: State = None) -> tuple[Tensor, State]:
        raise NotImplementedError


class Linear(nn.Linear):
    """`nn.Linear` over the last axis that stays one matrix product under vmap.

    With an input of three axes vmap would batch over the rows too, and copy the weights for
    each of them; two axes make it a single product a seed.
    """

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        flat = F.linear(x.reshape(-1, x.shape[-1]), self.weight, self.bias)
        return flat.reshape(*x.shape[:-1], -1)
