"""The interface of every mixer.

``forward(x, state=None) -> (y, state)`` with x and y (batch, tokens, width). The same call serves
training on whole sequences, evaluation in chunks and generation token by token. The state `None` is
the beginning of a sequence. For a recurrent mixer, zeros in the shape of its state are the same.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outlast.kernels import pointwise
from outlast.kernels.linear import over_last
from outlast.kernels.norm import add_norm, norm, rms
from outlast.specs import Spec

Pathway = Literal["recurrent", "attention", "pointwise"]
State = Any

linear = over_last


class Context(NamedTuple):
    """What a mixer knows of the current pass beside its input.

    `positions` (tokens,) are the increasing positions of the tokens, if they are not counted. `key`
    () is the key of the mixer's random numbers, if it has any. `total` is how many tokens the
    sequence will have, if that is known: what is kept of each token can get its room at once.
    `window` () is how many keys a query of attention sees, itself among them; without it all keys
    so far.
    """

    positions: Tensor | None = None
    key: Tensor | None = None
    total: int | None = None
    window: Tensor | None = None


class Mixer(nn.Module):
    """Base of every mixer. `ceiling` is the most tokens it can take; None means no limit."""

    spec: Spec
    pathway: ClassVar[Pathway]
    ceiling: int | None = None
    #: the most tokens that may be given in chunks; past it all tokens must be given at once
    chunks_to: int | None = None
    #: the share that is dropped in training
    dropout: float = 0.0
    #: whether it keeps to the window of its context
    takes_window: ClassVar[bool] = False
    #: of the current pass; the model sets it
    context: Context = Context()

    @property
    def holds_state(self) -> bool:
        """Whether it is a recurrence, whose output can hold a state for any number of tokens.

        Analyses look for a running state there. A mixer on the recurrent pathway that sees a few
        tokens alone sets this to False.
        """
        return self.pathway == "recurrent"

    def forward(self, x: Tensor, state: State = None) -> tuple[Tensor, State]:
        raise NotImplementedError

    def fixable(self) -> dict[str, tuple[str, slice]]:
        """Parts of its weights that a method can fix: for each, a weight's name and some rows."""
        return {}

    def unbiased(self, x: Tensor, state: State = None) -> tuple[Tensor, Tensor | None, State]:
        """y without its last bias, that bias (width,) if there is one, and the state.

        The caller can add y and the bias in one pass.
        """
        y, state = self(x, state)
        return y, None, state


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """gelu(x W^T + b), (batch, tokens, out). Fused, the bias needs no extra pass."""
    if pointwise.fused(x, bias):
        return pointwise.bias_gelu(linear(x, weight), bias)
    return F.gelu(linear(x, weight, bias))


def linear_glu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """value * silu(gate), [value, gate] = x W^T + b, (batch, tokens, out / 2); fused as above."""
    if pointwise.fused(x, bias):
        return pointwise.bias_glu(linear(x, weight), bias)
    value, gate = linear(x, weight, bias).chunk(2, -1)
    return value * F.silu(gate)


class Linear(nn.Linear):
    """`nn.Linear` through `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class RMSNorm(nn.Module):
    """x over its root mean square, times a learned scale (Zhang & Sennrich, 1910.07467).

    It is one pass where a kernel is available, sums before it included.
    """

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return rms(x, self.weight, self.eps)[1]

    def after(
        self, x: Tensor, y: Tensor, z: Tensor | None = None, *, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """x + y (+ z) (+ bias), and this norm of it."""
        return rms(x, self.weight, self.eps, (y,) if z is None else (y, z), bias)[:2]

    def instead(
        self, x: Tensor, *added: Tensor, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """This norm of x + added, in the type of x and in the type of a matmul.

        They are one tensor if the types are the same.
        """
        _, normed, kept = rms(x, self.weight, self.eps, added, bias, keep=True)
        return kept, normed


class Norm(nn.LayerNorm):
    """`nn.LayerNorm` over the last axis through our `norm`: one pass where it has a kernel."""

    def forward(self, x: Tensor) -> Tensor:
        return norm(x, self.weight, self.bias, self.eps)

    def after(
        self, x: Tensor, y: Tensor, z: Tensor | None = None, *, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """x + y (+ z) (+ bias), and this norm of it."""
        return add_norm(x, y, self.weight, self.bias, self.eps, z, bias)

    def instead(
        self, x: Tensor, *added: Tensor, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """As `RMSNorm.instead`."""
        normed = self.after(x, *added, bias=bias)[1] if added else self(x)
        return normed.to(x.dtype), normed
