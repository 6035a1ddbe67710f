"""The seam every mixer stands behind.

``forward(x, state=None) -> (y, state)`` with x and y (batch, tokens, width): the same call
serves training on whole sequences, evaluation in chunks and generation token by token. The
state of `None` is the beginning of a sequence.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
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


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` over the last axis that stays one matrix product a seed under vmap.

    With an input of three axes vmap would batch over the rows too, and copy the weights for each.
    """
    flat = F.linear(x.reshape(-1, x.shape[-1]), weight, bias)
    return flat.reshape(*x.shape[:-1], -1)


class Linear(nn.Linear):
    """`nn.Linear` through `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class RMSNorm(nn.Module):
    """x over its root mean square, times a learned scale (Zhang & Sennrich, 1910.07467)."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight


class Norm(nn.LayerNorm):
    """`nn.LayerNorm` whose scale and shift are one pass under vmap instead of two."""

    def forward(self, x: Tensor) -> Tensor:
        plain = F.layer_norm(x, self.normalized_shape, eps=self.eps)
        return torch.addcmul(self.bias, plain, self.weight)
