"""Errors for people. Each names the field, the value and what is accepted."""

from __future__ import annotations

from typing import get_args


class OutlastError(Exception):
    """Any error that a user can fix. The command line prints it without a traceback."""


class SpecError(OutlastError, ValueError):
    """A spec, or a value in it, that cannot be understood."""


class RunFolderError(OutlastError):
    """A run folder that is missing, damaged, foreign, in use, or in the way."""


class TrainingError(OutlastError):
    """Training that cannot go on, such as a loss that is not finite."""


def short_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory was too small. On a CPU torch raises a plain one."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and "allocate memory" in str(error))


def bad_value(field: str, value: object, accepted: str) -> SpecError:
    """For a value that is not accepted: ``modulus=1: expected a whole number >= 2``."""
    return SpecError(f"{field}={value}: expected {accepted}")


def require(condition: bool, field: str, value: object, accepted: str) -> None:
    """Refuse a value that does not meet a condition."""
    if not condition:
        raise bad_value(field, value, accepted)


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


def conflict(field: str, first: str, second: str) -> SpecError:
    """For a value given in two places: ``lr is given twice: --lr 0.1 and --grid lr=...``."""
    return SpecError(f"{field} is given twice: {first} and {second}; give it once")


def incompatible(first: str, second: str, reason: str) -> SpecError:
    """For two values that exclude each other: ``gate=none cannot be combined with ...``."""
    return SpecError(f"{first} cannot be combined with {second}: {reason}")
