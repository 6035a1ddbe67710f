"""Moving the hidden vmap axis to where an op wants it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def fold(tensor: Tensor, axis: int | None, size: int) -> Tensor:
    """Merge the vmapped `axis` into the leading one: (n, ...) per example to (size * n, ...)."""
    moved = tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
    return moved.flatten(0, 1)


def unfold(tensor: Tensor, size: int) -> Tensor:
    """Undo `fold`: (size * n, ...) to (size, n, ...)."""
    return tensor.unflatten(0, (size, -1))


def unfold_all(out: Any, size: int) -> tuple[Any, Any]:
    """What a vmap rule returns, of an op's result or results: each unfolded, and where."""
    if isinstance(out, Tensor):
        return unfold(out, size), 0
    return tuple(unfold(o, size) for o in out), (0,) * len(out)


def folded(op: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """The vmap rule of an op whose tensors all have the seeds first: more of them in one call.

    Arguments that are no tensors are the same for all.
    """

    def rule(info: Any, axes: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        size = info.batch_size
        out = op(
            *(
                fold(a, axis, size) if isinstance(a, Tensor) else a
                for a, axis in zip(args, axes, strict=True)
            )
        )
        return unfold_all(out, size)

    return rule
