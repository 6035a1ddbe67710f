"""Rules that items must hold to, and what comes of a rule on one item.

A rule is a plain function of a subject. It returns if the subject conforms and raises if not. Its
docstring is what a person reads: the first line says the rule, `Why:` says what goes wrong without
it, and `Fix:` says what to do. A rule that says nothing about a subject raises `NotApplicable`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

Subject = TypeVar("Subject")
Status = Literal["passed", "failed", "not applicable"]


class Violation(AssertionError):  # noqa: N818 (of a rule)
    """An item does not conform to a rule."""


class NotApplicable(Exception):  # noqa: N818 (no error)
    """A rule says nothing about this subject; the text says why."""


def require(condition: object, problem: str) -> None:
    """Refuse a subject that does not meet a condition."""
    if not condition:
        raise Violation(problem)


@dataclass(frozen=True)
class Result:
    """What came of one rule on one line: passed, failed or not applicable, with the reason."""

    rule: str
    line: str
    status: Status
    reason: str = ""


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """One rule, made of a function and its docstring."""

    function: Callable[[Subject], None]

    @property
    def name(self) -> str:
        """The name of the function as words: ``chunks equal the whole``."""
        return self.function.__name__.replace("_", " ")

    @property
    def text(self) -> str:
        """The rule in a sentence."""
        paragraph, *_ = (inspect.getdoc(self.function) or "").split("\n\n")
        return " ".join(paragraph.split())

    @property
    def why(self) -> str:
        """What goes wrong with an item that does not conform."""
        return self._labelled("Why:")

    @property
    def fix(self) -> str:
        """What to do about it."""
        return self._labelled("Fix:")

    def _labelled(self, label: str) -> str:
        _, _, rest = (inspect.getdoc(self.function) or "").partition(label)
        return " ".join(rest.partition("Fix:")[0].split())

    def __call__(self, subject: Subject) -> None:
        """Raise if a subject does not conform. What it does not apply to conforms."""
        try:
            with _setting(subject):
                self.function(subject)
        except NotApplicable:
            return

    def result(self, subject: Subject, line: str) -> Result:
        """What comes of the rule on a subject. An item may raise anything."""
        try:
            with _setting(subject):
                self.function(subject)
        except NotApplicable as error:
            return Result(self.name, line, "not applicable", str(error))
        except AssertionError as error:
            return Result(self.name, line, "failed", _one_line(error))
        except Exception as error:  # of the item
            return Result(self.name, line, "failed", raised(error))
        return Result(self.name, line, "passed")


def _setting(subject: Any) -> AbstractContextManager[None]:
    """What a subject wants to be tested under, if anything."""
    setting: Callable[[], AbstractContextManager[None]] = getattr(subject, "setting", nullcontext)
    return setting()


def raised(error: Exception) -> str:
    """What an item raised, in one line."""
    return f"it raised {type(error).__name__}: {_one_line(error)}"


def _one_line(error: BaseException, most: int = 300) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


class RuleSet(Generic[Subject]):
    """Rules for one kind of subject, in the order in which they are written."""

    def __init__(self) -> None:
        self._rules: list[Rule[Subject]] = []

    def rule(self, function: Callable[[Subject], None]) -> Rule[Subject]:
        """Decorator: the function is a rule of this set."""
        rule = Rule(function)
        self._rules.append(rule)
        return rule

    def __iter__(self) -> Iterator[Rule[Subject]]:
        return iter(self._rules)
