"""Errors for people. Each names the field, the value and what is accepted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: the most characters of a value that an error shows
MOST_SHOWN = 200


class OutlastError(Exception):
    """Any error that a user can fix. The command line prints it without a traceback."""


class SpecError(OutlastError, ValueError):
    """A spec, or a value in it, that cannot be understood."""


class RunFolderError(OutlastError):
    """A run folder that is missing, damaged, foreign, in use, or in the way."""


class TrainingError(OutlastError):
    """Training that cannot go on, such as a loss that is not finite."""


class MissingExtraError(OutlastError, ImportError):
    """A part of outlast whose optional package is not installed."""

    def __init__(self, part: str, package: str, extra: str) -> None:
        super().__init__(f"{part} needs {package}: {how_to_install(extra)}")


def how_to_install(extra: str) -> str:
    """What installs an extra, in a clone of the repository or from a registry that has outlast."""
    return f"pip install -e '.[{extra}]' in a clone, or pip install 'outlast[{extra}]'"


def short_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory was too small. On a CPU torch raises a plain one."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and "allocate memory" in str(error))


def shortened(value: object, most: int = MOST_SHOWN) -> str:
    """A value as text, cut if it is long. Python refuses to write a number of 4,300 digits."""
    try:
        text = str(value)
    except ValueError:
        return f"a number of over {sys.get_int_max_str_digits():,} digits"
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def bad_value(field: str, value: object, accepted: str) -> SpecError:
    """For a value that is not accepted: ``modulus=1: expected a whole number >= 2``."""
    return SpecError(f"{field}={shortened(value)}: expected {accepted}")


def require(condition: bool, field: str, value: object, accepted: str) -> None:
    """Refuse a value that does not meet a condition."""
    if not condition:
        raise bad_value(field, value, accepted)


@contextmanager
def about(kind: str, name: str) -> Iterator[None]:
    """Errors about a value of an item name the item first, unless they do so already."""
    try:
        yield
    except SpecError as error:
        text = str(error)
        if text.startswith((f"{kind} ", f"{kind}:", f"{name} ", f"{name}(")):
            raise
        raise SpecError(f"{kind} {name}: {text}") from None


def conflict(field: str, first: str, second: str) -> SpecError:
    """For a value given in two places: ``lr is given twice: --lr 0.1 and --grid lr=...``."""
    return SpecError(f"{field} is given twice: {first} and {second}; give it once")


def incompatible(first: str, second: str, reason: str) -> SpecError:
    """For two values that exclude each other: ``gate=none cannot be combined with ...``."""
    return SpecError(f"{first} cannot be combined with {second}: {reason}")
