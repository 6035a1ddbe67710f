"""Moving the hidden vmap axis to where an op wants it."""

from __future__ import annotations

from torch import Tensor


def fold(tensor: Tensor, axis: int | None, size: int) -> Tensor:
    """Merge the vmapped `axis` into the leading one: (n, ...) per example to (size * n, ...)."""
    moved = tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
    return moved.flatten(0, 1)


def unfold(tensor: Tensor, size: int) -> Tensor:
    """Undo `fold`: (size * n, ...) to (size, n, ...)."""
    return tensor.unflatten(0, (size, -1))
