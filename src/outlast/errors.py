"""Errors that are meant to be read: each names the field, the value and what is accepted."""

from __future__ import annotations


class OutlastError(Exception):
    """Any error a user can mend; the command line prints it without a traceback."""


class SpecError(OutlastError, ValueError):
    """A spec, or a value in it, that cannot be understood."""


class RunFolderError(OutlastError):
    """A run folder that is missing, damaged, foreign, in use, or in the way."""


class TrainingError(OutlastError):
    """Training that cannot go on, such as a loss that is not finite."""


def short_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice: on a CPU it is a plain one of torch's."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and "allocate memory" in str(error))


def bad_value(field: str, value: object, accepted: str) -> SpecError:
    """The one wording for a value out of range: ``modulus=1: expected a whole number >= 2``."""
    return SpecError(f"{field}={value}: expected {accepted}")
