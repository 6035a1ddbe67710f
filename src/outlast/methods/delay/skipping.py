"""The output of a sublayer that is not run: zeros of the right shape, dtype and device.

The sublayer runs once for each new kind of call, and its output is remembered as an `Outline`.
Later calls of that kind cost nothing. A call is run every time if skipping it could lose something:

- an argument is not a plain tensor, number, string or tuple of these (a cache must be filled),
- the output has a shape that no argument has (the shape may depend on values),
- the output is a tuple that holds something else than None after its first tensor.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from outlast.errors import SpecError


class Outline(NamedTuple):
    """What is needed to make the output of a skipped call."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    tuple_type: type[tuple[Any, ...]] | None
    length: int

    def zeros(self) -> Any:
        zeros = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        if self.tuple_type is None:
            return zeros
        return _as_tuple(self.tuple_type, (zeros, *[None] * (self.length - 1)))


def outline(out: Any, call: Any) -> Outline | None:
    """The outline of an output, or None if the call must be run every time."""
    items = out if isinstance(out, tuple) else (out,)
    shapes = [tensor.shape for tensor in tensors(call)]
    if not items or not _is_plain(items[0]) or items[0].shape not in shapes:
        return None
    if any(item is not None for item in items[1:]):
        return None
    tuple_type = type(out) if isinstance(out, tuple) else None
    return Outline(items[0].shape, items[0].dtype, items[0].device, tuple_type, len(items))


def kind_of_call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """A key for calls that return outputs of the same outline; None for calls without one."""
    try:
        signature = _signature((args, tuple(kwargs.items())))
    except TypeError:
        return None
    devices = sorted({tensor.device.type for tensor in tensors((args, kwargs))})
    autocast = [(d, torch.get_autocast_dtype(d)) for d in devices if torch.is_autocast_enabled(d)]
    parameter = next(module.parameters(), None)
    dtype = None if parameter is None else parameter.dtype
    return signature, tuple(autocast), dtype, module.training


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)


def detach(value: Any) -> Any:
    """`value` with its tensors detached, also those in tuples."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, tuple):
        return _as_tuple(type(value), tuple(detach(item) for item in value))
    return value


def first_tensor(out: Any) -> Tensor:
    """What a sublayer adds: the tensor, or the first of a tuple."""
    first = out[0] if isinstance(out, tuple) and out else out
    if isinstance(first, Tensor):
        return first
    raise SpecError(
        "a held-back sublayer must return a tensor or a tuple that begins with one, "
        f"got {type(out).__name__}"
    )


def with_first_tensor(out: Any, first: Tensor) -> Any:
    """The same output with another first tensor."""
    return _as_tuple(type(out), (first, *out[1:])) if isinstance(out, tuple) else first


def _as_tuple(tuple_type: type[tuple[Any, ...]], items: tuple[Any, ...]) -> Any:
    make: Any = getattr(tuple_type, "_make", tuple_type)  # named tuples are built differently
    return make(items)


def _is_plain(value: Any) -> bool:
    return type(value) in (Tensor, nn.Parameter) and value.layout == torch.strided


def _signature(value: Any) -> Hashable:
    if isinstance(value, Tensor) and _is_plain(value):
        return value.shape, value.dtype, value.device
    if isinstance(value, tuple):
        return type(value), tuple(_signature(item) for item in value)
    if value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.device):
        return type(value), value
    raise TypeError
