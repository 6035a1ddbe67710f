"""A look at a block of queries as a pure function of tensors, and its gradient.

Both ways that compute a block again in the backward pass want it so: with the weights as inputs,
among which there may be many seeds, and without the arguments that are None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

Found = tuple[Tensor, Tensor | None]
Run = Callable[..., Any]


def own(look: nn.Module) -> dict[str, Tensor]:
    """The weights and buffers of a look, by name."""
    return dict(look.named_parameters()) | dict(look.named_buffers())


def pure(look: nn.Module, names: Sequence[str], given: Sequence[bool]) -> Run:
    """The look as a function of its weights, by these names, and of the arguments that are given.

    It gives what the queries get, with the weights' carry only if there is one.
    """

    def run(*tensors: Tensor) -> Any:
        weights = dict(zip(names, tensors, strict=False))
        left = iter(tensors[len(weights) :])
        filled = tuple(next(left) if there else None for there in given)
        with torch.autocast(tensors[-1].device.type, enabled=False):
            y, after = functional_call(look, weights, filled)
        return y if after is None else (y, after)

    return run


def pulled(run: Run, grads: tuple[Tensor, ...], tensors: Sequence[Tensor]) -> Any:
    """The gradients of those tensors that can have one: not positions, not keys of chance."""

    def floats(*some: Tensor) -> Any:
        left = iter(some)
        return run(*(next(left) if t.is_floating_point() else t for t in tensors))

    found: Any = torch.func.vjp(floats, *(t for t in tensors if t.is_floating_point()))
    output, pull = found
    return pull(grads if isinstance(output, tuple) else grads[0])


def spread(found: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """What `pulled` found, with None for the tensors that have no gradient."""
    left = iter(found)
    return [next(left) if t.is_floating_point() else None for t in tensors]


def both(found: Any) -> Found:
    """What a pure look found, as the look itself gives it."""
    return found if isinstance(found, tuple) else (found, None)
