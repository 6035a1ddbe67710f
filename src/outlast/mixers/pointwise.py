"""`mlp` and `glu`: what happens inside a token, between the mixers.

mlp: W₂ gelu(W₁ x).  glu: W₃ (W₁ x * silu(W₂ x)) (Shazeer, arXiv 2002.05202). In training `dropout`
applies to the input of the last map.
"""

from __future__ import annotations

from torch import Tensor

from outlast.errors import require
from outlast.mixers.base import Linear, Mixer, State, linear, linear_gelu, linear_glu
from outlast.mixers.randomness import check_dropout, drop
from outlast.registry import mixers


class _Pointwise(Mixer):
    """What the two have in common: a wider layer between two maps.

    Args:
        expand: How many times as wide the layer is inside.
        dropout: The share of inner values that is set to 0 in a step of training.
    """

    pathway = "pointwise"
    down: Linear

    def __init__(self, width: int, expand: float, dropout: float) -> None:
        super().__init__()
        require(expand > 0, "expand", expand, "a number > 0")
        self.inner = max(1, round(width * expand))
        self.dropout = check_dropout(dropout)

    def widened(self, x: Tensor) -> Tensor:
        """The inner activations, (batch, tokens, inner)."""
        raise NotImplementedError

    def forward(self, x: Tensor, state: State = None) -> tuple[Tensor, State]:
        return self.down(self._inner(x)), None

    def unbiased(self, x: Tensor, state: State = None) -> tuple[Tensor, Tensor | None, State]:
        return linear(self._inner(x), self.down.weight), self.down.bias, None

    def _inner(self, x: Tensor) -> Tensor:
        """The inner activations after dropout, (batch, tokens, inner)."""
        return drop(self.widened(x), self.dropout, self.context.key)


@mixers.register("mlp")
class MLP(_Pointwise):
    """Two linear maps with a GELU between; `expand` times as wide inside."""

    def __init__(self, width: int, expand: float = 4.0, dropout: float = 0.0) -> None:
        super().__init__(width, expand, dropout)
        self.up = Linear(width, self.inner)
        self.down = Linear(self.inner, width)

    def widened(self, x: Tensor) -> Tensor:
        return linear_gelu(x, self.up.weight, self.up.bias)


@mixers.register("glu")
class GLU(_Pointwise):
    """Gated linear unit with SiLU; `expand` defaults to the MLP's parameter count (8/3)."""

    def __init__(self, width: int, expand: float = 8 / 3, dropout: float = 0.0) -> None:
        super().__init__(width, expand, dropout)
        self.up = Linear(width, 2 * self.inner)
        self.down = Linear(self.inner, width)

    def widened(self, x: Tensor) -> Tensor:
        return linear_glu(x, self.up.weight, self.up.bias)
