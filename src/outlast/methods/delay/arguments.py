"""What `delay` and its handle accept. An error names the argument, the value and what is right."""

from __future__ import annotations

import copy
import sys
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

from outlast.arguments import as_whole, shown
from outlast.errors import SpecError, bad_value
from outlast.methods.triggers import as_step, make_trigger
from outlast.specs import Spec, parse_value

#: a step that no training reaches
FOREVER = 10**12
STEP = "a step >= 0, or a share of steps= from 0 to 1"
LARGEST = sys.float_info.max
SAVED = "what state_dict() of a delay returned"


def read_switch(switch: object, steps: int | None) -> int | Spec:
    """A step, or the spec of a trigger such as ``below(0.01)``."""
    value: object = parse_value(switch) if isinstance(switch, str) else switch
    if isinstance(value, str):  # a word such as plateau
        value = Spec(value)
    if isinstance(value, Spec):
        _check_trigger(value)
        return value
    return read_step("switch", value, steps, f'{STEP}, or "below(0.01)" or "plateau"')


def _check_trigger(spec: Spec) -> None:
    """Refuse a bad trigger here: later the error would be one of the method `dat`."""
    try:
        needs_held_out = bool(make_trigger(spec, 1).held_out)
    except SpecError as error:
        text = str(error)
        raise SpecError(text if text.startswith("switch") else f"switch: {text}") from None
    if needs_held_out:
        raise bad_value(
            "switch",
            spec,
            '"below(0.01)" or "plateau": only a run of our own has held-out sequences of its task',
        )


def read_step(field: str, value: object, steps: int | None, accepted: str = STEP) -> int:
    """A step, or a share of `steps`, as a step."""
    if isinstance(value, float | np.floating):
        if not 0 <= value <= 1:
            raise bad_value(field, shown(value), accepted)
        if steps is None:
            raise SpecError(
                f"{field}={value}: a share of training needs steps=, the number of steps"
            )
        return as_step(float(value), steps, field)
    try:
        return as_whole(field, value, 0, FOREVER)
    except SpecError:
        raise bad_value(field, shown(value), accepted) from None


def read_loss(loss: object) -> float:
    """A loss as a float; it may be NaN or infinite."""
    is_number = isinstance(loss, Tensor | np.ndarray | Real)  # numpy's numbers are real ones
    kind = str(getattr(loss, "dtype", type(loss).__name__))
    try:
        if is_number and "bool" not in kind and "complex" not in kind:
            return float(loss.detach() if isinstance(loss, Tensor) else loss)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise bad_value("loss", shown(loss), "a number or a tensor with one element")


def read_saved(saved: object, first_state: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The steps and the state that were saved. `first_state` is the state before any step."""
    state = saved.get("state") if isinstance(saved, dict) else None
    if not isinstance(saved, dict) or not isinstance(state, dict):
        raise bad_value("saved", shown(saved), SAVED)
    if state.keys() != first_state.keys():
        raise bad_value("saved", shown(saved), f"{SAVED}, with a state of {', '.join(first_state)}")
    steps = as_whole("saved: steps", saved.get("steps"), 0, FOREVER)
    for name, value in state.items():
        if not _is_like(first_state[name], value):
            raise bad_value(f"saved: {name}", shown(value), SAVED)
    if state["switched"] is not None:
        as_whole("saved: switched", state["switched"], 0, steps)
    return steps, copy.deepcopy(state)


def _is_like(first: object, value: object) -> bool:
    """Whether a saved value may have come from the value that a state begins with."""
    if isinstance(first, dict):  # of a trigger: losses and steps
        is_dict = isinstance(value, dict) and all(isinstance(name, str) for name in value)
        return is_dict and all(_is_finite(number) for number in value.values())  # type: ignore[attr-defined]
    if isinstance(first, int):
        return type(value) is int and 0 <= value <= FOREVER
    return value is None or _is_finite(value)


def _is_finite(value: object) -> bool:
    """Whether a value is a float, or a whole number as it stands in JSON for one."""
    return type(value) in (int, float) and -LARGEST <= value <= LARGEST  # type: ignore[operator]
