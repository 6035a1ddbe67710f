"""What a model's call accepts. An error names the argument, the value and what is right."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Real

import torch
from torch import Tensor

from outlast.arguments import shown
from outlast.errors import bad_value
from outlast.kernels.dispatch import hides_numbers

#: what torch's embedding takes
TOKENS = (torch.int64, torch.int32)
#: far more than a gate needs; it is finite in every type of float
LARGEST_GATE = 1e4


def describe_tensor(tensor: Tensor) -> str:
    """A tensor by its shape, type and device, as an error shows it."""
    if tensor.is_nested:
        return "a nested tensor"
    shape, kind = "x".join(map(str, tensor.shape)), str(tensor.dtype).removeprefix("torch.")
    layout = "" if tensor.layout == torch.strided else f" of layout {tensor.layout}"
    return f"a tensor{layout} of shape ({shape}), {kind}, on {tensor.device}"


def check_tokens(tokens: object, device: torch.device) -> None:
    """Refuse what is no table of whole numbers on the model's device."""
    accepted = f"whole numbers (batch, tokens) as a tensor on {device}"
    if not isinstance(tokens, Tensor):
        raise bad_value("tokens", shown(tokens), accepted)
    plain = not tokens.is_nested and tokens.layout == torch.strided and tokens.dim() == 2
    if not plain or 0 in tokens.shape:
        expected = f"{accepted}, with batch >= 1 and tokens >= 1"
        raise bad_value("tokens", describe_tensor(tokens), expected)
    if tokens.dtype not in TOKENS or tokens.device != device:
        raise bad_value("tokens", describe_tensor(tokens), f"{accepted}, int64 or int32")


def check_positions(positions: object, tokens: Tensor) -> None:
    """Refuse positions that do not belong to the tokens, or that do not increase."""
    count = tokens.shape[1]
    accepted = f"increasing whole numbers >= 0 as a tensor, a position for each of {count} tokens"
    if not isinstance(positions, Tensor):
        raise bad_value("positions", shown(positions), accepted)
    plain = not positions.is_nested and positions.layout == torch.strided
    if not plain or positions.shape != (count,) or positions.dtype not in TOKENS:
        raise bad_value("positions", describe_tensor(positions), accepted)
    if positions.is_meta != tokens.is_meta:
        raise bad_value("positions", describe_tensor(positions), accepted)
    if positions.device.type != "cpu" or hides_numbers(positions):
        return  # to look would wait for the device
    if positions[0] < 0 or (positions.diff() <= 0).any():
        raise bad_value("positions", shown(positions.tolist()), accepted)


def check_key(key: object) -> None:
    """Refuse what is no key of dropout."""
    _check_number("key", key, "a whole number as a tensor of int64 without an axis, or None")


def check_window(window: object) -> None:
    """Refuse what is no window of attention."""
    accepted = "a whole number >= 1 as a tensor of int64 without an axis, or None"
    number = _check_number("window", window, accepted)
    if not hides_numbers(number) and not number.is_cuda and number < 1:  # a GPU would have to wait
        raise bad_value("window", int(number), accepted)


def _check_number(name: str, number: object, accepted: str) -> Tensor:
    if not isinstance(number, Tensor):
        raise bad_value(name, shown(number), accepted)
    if (
        number.is_meta
        or number.is_nested
        or number.layout != torch.strided
        or number.dim()
        or number.dtype != torch.int64
    ):
        raise bad_value(name, describe_tensor(number), accepted)
    return number


def check_state(state: object, sublayers: int, tokens: Tensor) -> None:
    """Refuse a state that another model returned, or the same model for another batch."""
    batch = tokens.shape[0]
    accepted = (
        f"what this model returned beside the logits of the tokens before: a tuple of {sublayers} "
        f"states, for a batch of {batch}"
    )
    if not isinstance(state, tuple | list) or len(state) != sublayers:
        raise bad_value("state", shown(state), accepted)
    for table in _tables(state):
        if type(table) is int:  # a mixer may count tokens
            continue
        if not isinstance(table, Tensor):
            raise bad_value("state", shown(table), accepted)
        # positions (tokens,) have no batch
        if table.device != tokens.device or (table.dim() > 1 and table.shape[0] != batch):
            raise bad_value("state", describe_tensor(table), accepted)


def read_gate(value: object) -> float:
    """A number from 0 to `LARGEST_GATE` as a float."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= LARGEST_GATE:  # type: ignore[operator]
        accepted = f"a number from 0 (closed) over 1 (open) to {LARGEST_GATE:g}"
        raise bad_value("value", shown(value), accepted)
    return float(value)  # type: ignore[arg-type]


def wrong_token(tokens: Tensor, vocabulary: int) -> Exception:
    """The error for a token that has no embedding."""
    low, high = (int(bound) for bound in tokens.aminmax())
    accepted = f"whole numbers from 0 to {vocabulary - 1}, the vocabulary of the task"
    return bad_value("tokens", low if low < 0 else high, accepted)


def _tables(state: object) -> Iterator[object]:
    """Everything in a state that is no tuple and not None."""
    if isinstance(state, tuple | list):
        for item in state:
            yield from _tables(item)
    elif state is not None:
        yield state
