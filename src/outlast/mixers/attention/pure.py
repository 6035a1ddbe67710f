"""A look at a block of queries as a pure function of tensors, and its gradient.

Both paths that compute a block again in the backward pass need this form. The weights are inputs,
so that there may be many seeds of them. Arguments that are None are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

#: the output of the queries (batch, heads, queries, head width), and the carry of the weights
Output = tuple[Tensor, Tensor | None]
PureLook = Callable[..., Any]


def weights_of(look: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a look, by name."""
    return dict(look.named_parameters()) | dict(look.named_buffers())


def pure(look: nn.Module, names: Sequence[str], present: Sequence[bool]) -> PureLook:
    """The look as a function of its weights, by these names, and of the arguments present.

    It returns the output of the queries, and the carry only if there is one.
    """

    def run(*tensors: Tensor) -> Any:
        weights = dict(zip(names, tensors, strict=False))
        rest = iter(tensors[len(weights) :])
        arguments = tuple(next(rest) if is_present else None for is_present in present)
        with torch.autocast(tensors[-1].device.type, enabled=False):
            y, carry = functional_call(look, weights, arguments)
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
