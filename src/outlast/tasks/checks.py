"""Checks of constructor arguments, so that every task refuses a value in the same words."""

from __future__ import annotations

from typing import Literal, get_args

from outlast.errors import bad_value, require

#: `outcome` asks for the final state alone, `aligned` for the running state as well
Supervision = Literal["outcome", "aligned"]


def check_whole(field: str, value: object, least: int) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise bad_value(field, value, f"a whole number >= {least}")


def check_share(field: str, value: object) -> None:
    """Refuse what is not a probability."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1:  # type: ignore[operator]
        raise bad_value(field, value, "a number from 0 to 1")


def check_choice(field: str, value: object, choices: object) -> None:
    """Refuse what a ``Literal`` does not list; a spec is checked before, a plain call is not."""
    require(value in get_args(choices), field, value, " | ".join(get_args(choices)))


def check_keys(keys: object, length: int) -> None:
    """Keys are distinct within a sequence, so there must be one for every pair."""
    if not isinstance(keys, int) or isinstance(keys, bool) or keys < length:
        raise bad_value("keys", keys, f"a whole number >= length={length}, as keys are distinct")
