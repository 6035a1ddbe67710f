"""Moving the hidden vmap axis to where an op wants it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

#: `(op, info, axes, *arguments)` to the results and the vmapped axis of each
VmapRule = Callable[..., tuple[Any, Any]]


def lead(tensor: Tensor, axis: int | None, size: int) -> Tensor:
    """Put the vmapped `axis` first, [size, ...]; a tensor without one is expanded."""
    return tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)


def fold(tensor: Tensor, axis: int | None, size: int) -> Tensor:
    """Merge the vmapped `axis` into the leading one: [n, ...] per example to [size * n, ...]."""
    return lead(tensor, axis, size).flatten(0, 1)


def unfold(results: Any, size: int) -> tuple[Any, Any]:
    """Undo `fold` for one result or several: each [size, n, ...], and its vmapped axis, 0."""
    if isinstance(results, Tensor):
        return results.unflatten(0, (size, -1)), 0
    return tuple(r.unflatten(0, (size, -1)) for r in results), (0,) * len(results)


def fold_seeds(
    op: Callable[..., Any], info: Any, axes: tuple[int | None, ...], *args: Any
) -> tuple[Any, Any]:
    """The rule of an op whose tensors all have seeds or batch first: more of them in one call.

    Arguments that are no tensors are the same for all.
    """
    size = info.batch_size
    folded = (
        fold(arg, axis, size) if isinstance(arg, Tensor) else arg
        for arg, axis in zip(args, axes, strict=True)
    )
    return unfold(op(*folded), size)
