"""A look at a block of queries as a pure function of tensors, and its gradient.

Both paths that compute a block again in the backward pass need this form. The weights are inputs,
so that there may be many seeds of them. Inputs that are None are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

#: the output of the queries (batch, heads, queries, head width), and the carry of the weights
Output = tuple[Tensor, Tensor | None]
PureLook = Callable[..., Any]


class Inputs(NamedTuple):
    """What a look reads: q (b, h, tq, d) over k, v (b, h, tk, d), the last query on the last key.

    `positions` (tk,) are those of the keys, `carry` (b, h, keys so far) is that of the weights,
    `token_features` (b, h, tk, features) are those of the scheme. `key` () is that of dropout.
    `window` () is how many keys a query sees, itself among them.
    """

    positions: Tensor
    carry: Tensor | None
    token_features: Tensor | None
    q: Tensor
    k: Tensor
    v: Tensor
    key: Tensor | None = None
    window: Tensor | None = None

    def until(self, query: int) -> Inputs:
        """The inputs of the queries before this one of them."""
        seen = self.k.shape[-2] - self.q.shape[-2] + query
        features = self.token_features
        return self._replace(
            positions=self.positions[:seen],
            token_features=None if features is None else features[..., :seen, :],
            q=self.q[..., :query, :],
            k=self.k[..., :seen, :],
            v=self.v[..., :seen, :],
        )

    def rows(self, part: slice) -> Inputs:
        """The inputs of a part of the batch."""
        tables: dict[str, Any] = self._asdict()
        for name, table in tables.items():
            if name not in ("positions", "key", "window") and table is not None:
                tables[name] = table[part]
        return Inputs(**tables)


def weights_of(look: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a look, by name."""
    return dict(look.named_parameters()) | dict(look.named_buffers())


def function(look: nn.Module, present: Sequence[bool]) -> PureLook:
    """The look as a function of its weights and of the inputs that are present.

    It returns the output of the queries, and the carry only if there is one.
    """
    names = list(weights_of(look))

    def run(*tensors: Tensor) -> Any:
        weights = dict(zip(names, tensors, strict=False))
        rest = iter(tensors[len(weights) :])
        inputs = Inputs(*(next(rest) if is_present else None for is_present in present))  # type: ignore[arg-type]
        with torch.autocast(tensors[-1].device.type, enabled=False):
            y, carry = functional_call(look, weights, (inputs,))
        return y if carry is None else (y, carry)

    return run


def float_gradients(run: PureLook, grads: tuple[Tensor, ...], tensors: Sequence[Tensor]) -> Any:
    """The gradients of the floating-point tensors: not of positions, not of random keys."""

    def of_floats(*floats: Tensor) -> Any:
        rest = iter(floats)
        return run(*(next(rest) if t.is_floating_point() else t for t in tensors))

    vjp: Any = torch.func.vjp(of_floats, *(t for t in tensors if t.is_floating_point()))
    output, pull = vjp
    return pull(grads if isinstance(output, tuple) else grads[0])


def all_gradients(gradients: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """The result of `float_gradients`, with None for the tensors that have no gradient."""
    rest = iter(gradients)
    return [next(rest) if t.is_floating_point() else None for t in tensors]


def as_output(result: Any) -> Output:
    """The result of a pure look in the form of the look itself."""
    return result if isinstance(result, tuple) else (result, None)
