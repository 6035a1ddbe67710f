"""Values of every kind for the arguments of the Python API, and what an argument accepts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import outlast
from outlast.specs import Spec, parse_layout

Accepts = Callable[[Any], bool]
PARITY = "parity(length=4)"


class Unwritable:
    """Its `repr` raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Unconvertible:
    """It says that it is a number, and is none."""

    def __index__(self) -> int:
        raise RuntimeError("no index")

    def __float__(self) -> float:
        raise RuntimeError("no float")


#: each makes a new value; nothing that needs much memory or time where it is accepted
ODD: list[Callable[[], Any]] = [
    *[lambda v=v: v for v in (None, True, False, 0, -1, 1, 2, 3, 10, 1.0, 0.5, -0.5, 1.5)],
    *[lambda v=v: v for v in (math.nan, math.inf, -math.inf, 1j, 1e-20, Fraction(1, 2))],
    *[lambda v=v: v for v in ("", "x", "0", "3", "true", "none", "a\0b", "\ud800", "é", " ", "*")],
    *[lambda v=v: v for v in (b"", b"x", b"0", (), (1, 2), (2, 1), (-1, 2), (None, 2), (1, 2, 3))],
    *[lambda v=v: v for v in ((1.0, 2.0), (1, 10**400), range(3), Decimal(1), ..., NotImplemented)],
    *[lambda v=v: v for v in (int, nn.Linear, Path("x"), ValueError("x"), torch.float32, math)],
    *[list, dict, set, object, Unwritable, Unconvertible, torch.Generator],
    *[lambda: [1], lambda: [None], lambda: ["x"], lambda: [[[1]]], lambda: {"a": 1}, lambda: {3}],
    *[lambda: iter([1]), lambda: (n for n in (1, 2)), lambda: [10**400], lambda: lambda *_: None],
    *[lambda: np.int64(3), lambda: np.uint8(1), lambda: np.float32(0.5), lambda: np.bool_(True)],
    *[
        lambda: np.array(3),
        lambda: np.array([1, 2]),
        lambda: np.zeros((2, 2)),
        lambda: np.array("x"),
    ],
    *[lambda: np.float64("nan"), lambda: np.array([]), lambda: np.array([None, 1])],
    *[lambda: torch.tensor(3), lambda: torch.tensor(0.5), lambda: torch.tensor(True)],
    *[lambda: torch.zeros(2), lambda: torch.zeros(2, 3), lambda: torch.zeros(0)],
    *[lambda: torch.zeros(2, 3, dtype=torch.long), lambda: torch.tensor([1], dtype=torch.int32)],
    *[lambda: torch.tensor(3, device="meta"), lambda: torch.zeros(2, 3, device="meta")],
    *[lambda: torch.eye(2).to_sparse(), lambda: torch.ones((), dtype=torch.complex64)],
    *[lambda: torch.ones(2, requires_grad=True), lambda: torch.zeros(3, 2).T],
    lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
    *[lambda: nn.Linear(2, 2), lambda: outlast.task(PARITY), lambda: parse_layout("lstm @ 4")],
    *[lambda: Spec("parity"), lambda: torch.device("cpu"), lambda: torch.device("meta")],
]
#: where they are accepted, they take all memory, or training takes for ever
LARGE: list[Callable[[], Any]] = [
    *[lambda v=v: v for v in (2**31, 2**62, 2**63, 2**64, 10**18, 10**400, -(10**400), 10**5000)],
    *[lambda v=v: v for v in (1e30, -1e300, "9" * 60, "a" * 5000)],
]


@dataclass(frozen=True)
class Argument:
    """Sound values of an argument, odd ones of its own, and which values it accepts."""

    sound: tuple[Callable[[], Any], ...]
    accepts: Accepts
    odd: tuple[Callable[[], Any], ...] = ()
    large: bool = True
    #: the function calls the value; then no odd value is a function, which has errors of its own
    called: bool = False

    def draw(self, chance: random.Random, oddness: float) -> Any:
        value = self._draw(chance, oddness)
        while self.called and self._is_other_function(value):
            value = self._draw(chance, oddness)
        return value

    def _is_other_function(self, value: Any) -> bool:
        is_function = callable(value) and not isinstance(value, type)
        return is_function and not self.accepts(value)

    def _draw(self, chance: random.Random, oddness: float) -> Any:
        if chance.random() >= oddness:
            return chance.choice(self.sound)()
        if self.odd and chance.random() < 0.5:
            return chance.choice(self.odd)()
        return chance.choice([*ODD, *LARGE] if self.large else ODD)()


def sound(
    *values: Any,
    accepts: Accepts,
    odd: tuple[Any, ...] = (),
    large: bool = True,
    called: bool = False,
) -> Argument:
    """An argument with these sound values; callables make a new value each time."""

    def maker(value: Any) -> Callable[[], Any]:
        is_maker = callable(value) and getattr(value, "__name__", "") == "<lambda>"
        return value if is_maker else lambda: value

    return Argument(tuple(map(maker, values)), accepts, tuple(map(maker, odd)), large, called)


# ---- what is accepted, said a second time --------------------------------------------------------


def as_int(value: Any) -> int | None:
    """The whole number that a value of Python, numpy or torch stands for, if it is one."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, np.ndarray):
        return int(value) if value.ndim == 0 and value.dtype.kind in "iu" else None
    if not isinstance(value, Tensor) or value.is_nested or value.is_meta or value.is_complex():
        return None
    is_whole = not value.is_floating_point() and value.dtype != torch.bool
    return int(value) if is_whole and value.layout == torch.strided and value.numel() == 1 else None


def whole(low: int, high: float = math.inf) -> Accepts:
    def accepts(value: Any) -> bool:
        number = as_int(value)
        return number is not None and low <= number <= high

    return accepts


def number(low: float, high: float) -> Accepts:
    def accepts(value: Any) -> bool:
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        return is_number and bool(low <= value <= high)

    return accepts


def instance(*types: type) -> Accepts:
    return lambda value: isinstance(value, types)


def either(*options: Accepts) -> Accepts:
    return lambda value: any(option(value) for option in options)


def nothing(value: Any) -> bool:
    return value is None
