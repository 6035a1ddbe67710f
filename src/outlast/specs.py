"""The notation: one line for a task, a method or a model.

A *spec* is ``name(argument=value, ...)``; a *layout* joins specs into a model::

    composite(modulus=10, layout=chained)            a task
    dat(mode=skip, switch=below(0.01))               a method
    4 x (lstm > attention(rope) > mlp) @ 128         a model of width 128

In a layout ``>`` is one sublayer after another. ``|`` is side by side on the same input; it binds
tighter than ``>``. ``n x`` repeats. A closing ``@ width`` sets the width of the residual stream.
Options of the whole model may follow it (``@ 128, embedding=1, norm=rms``): see `Layout`.

Values are numbers, ``true``/``false``/``none``, words, ``"quoted text"`` (with ``\\"`` for a quote
in it and ``\\\\`` for a backslash), lists ``[1, 2]`` and specs. A number with a point is a float:
``1.0`` may be a share of training and ``1`` a step. ``str()`` of a parsed object is the canonical
line, and parsing that line gives an equal object.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Union

from outlast.errors import SpecError, require, shortened

Value = Union[bool, int, float, str, None, "Spec", "list[Value]"]
Node = Union["Spec", "Serial", "Parallel", "Repeat"]

#: the options of a whole model, and the words each accepts
_OPTIONS: dict[str, tuple[str, ...]] = {
    "embedding": (),
    "head": (),
    "norm": ("layer", "rms"),
    "residual": ("plain", "normalised"),
    "dropout": (),
}
_LITERALS = {"true": True, "false": False, "none": None}
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<text>"(?:[^"\\]|\\(?s:.))*"|'(?:[^'\\]|\\(?s:.))*')
      | (?P<sign>[()\[\],=>|@×])
    )""",
    re.VERBOSE,
)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_WHOLE = re.compile(r"[+-]?[0-9]+\Z")
#: the largest whole number, far more than can be trained
LARGEST = 10**12
#: the largest size of a number that a float32 holds, and of one whose square it holds
LARGEST_FLOAT, LARGEST_FACTOR = 1e38, 1e15
#: the most digits of a number, levels of brackets, and signs of an error's quote on either side
_DIGITS, _LEVELS, _QUOTED = 50, 50, 60


@dataclass(frozen=True)
class Spec:
    """``name(args, key=value)``. Hashable only if its values are; compared by value."""

    name: str
    args: tuple[Value, ...] = ()
    kwargs: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        inside = [write_value(v) for v in self.args] + [
            f"{k}={write_value(v)}" for k, v in self.kwargs
        ]
        return f"{self.name}({', '.join(inside)})" if inside else self.name


@dataclass(frozen=True)
class Serial:
    """``a > b > c``."""

    nodes: tuple[Node, ...]

    def __str__(self) -> str:
        return " > ".join(_inside(n, Serial) for n in self.nodes)


@dataclass(frozen=True)
class Parallel:
    """``a | b``: both read the same input, and their outputs are added."""

    nodes: tuple[Node, ...]

    def __str__(self) -> str:
        return " | ".join(_inside(n, Serial, Parallel) for n in self.nodes)


@dataclass(frozen=True)
class Repeat:
    """``n x (...)``: n copies, each with its own weights."""

    times: int
    node: Node

    def __str__(self) -> str:
        return f"{self.times} x ({self.node})"


@dataclass(frozen=True)
class Layout:
    """A whole model line: the tree of sublayers, the width and the options, where given.

    `embedding` is how the token embedding starts: a standard deviation, or ``uniform(bound)``.
    `head` is the number of outputs. `norm` is ``layer`` (the default) or ``rms``. `residual` is
    what the stream carries past a sublayer: ``plain`` (the default), x + f(norm(x)), or
    ``normalised``, norm(x) + f(norm(x)). `dropout` is the share of the token embedding that is
    dropped in training.
    """

    node: Node
    width: int | None = None
    embedding: float | Spec | None = None
    head: int | None = None
    norm: str | None = None
    residual: str | None = None
    dropout: float | None = None

    @property
    def options(self) -> dict[str, Value]:
        """The options that are set."""
        values = {name: getattr(self, name) for name in _OPTIONS}
        return {name: value for name, value in values.items() if value is not None}

    def __str__(self) -> str:
        width = "" if self.width is None else f" @ {self.width}"
        return str(self.node) + width + "".join(f", {o}" for o in self.written_options())

    def written_options(self) -> list[str]:
        """The options as they are written: ``norm=rms``."""
        return [f"{name}={write_value(value)}" for name, value in self.options.items()]


def parse(text: str | Spec) -> Spec:
    """Read ``name(argument=value, ...)``."""
    if isinstance(text, Spec):
        return text
    reader = _Reader(text, "spec")
    spec = reader.spec()
    reader.end()
    return spec


def parse_value(text: str) -> Value:
    """Read one value, as it may stand behind ``=``."""
    reader = _Reader(text, "value")
    value = reader.value()
    reader.end()
    return value


def parse_layout(text: str | Layout) -> Layout:
    """Read a model line such as ``4 x (lstm | attention > mlp) @ 128``."""
    if isinstance(text, Layout):
        return text
    reader = _Reader(text, "model")
    node = reader.serial()
    width: int | None = None
    options: dict[str, Any] = {}
    if reader.take("@"):
        width = reader.whole("width", "a width, such as @ 128")
        while reader.take(","):
            name = reader.peek()[1]
            if not reader.take(*(o for o in _OPTIONS if o not in options)):
                raise reader.fail(f"{'=..., '.join(_OPTIONS)}=..., each at most once")
            reader.need("=")
            options[name] = _option(name, reader.value())
    elif reader.peek() == ("sign", ","):
        raise reader.fail("a width before any option, such as @ 128")
    reader.end()
    return Layout(node, width, **options)


def check_size(field: str, value: object, largest: float = LARGEST_FACTOR) -> None:
    """Refuse a number that is too large or too small to train with; other values pass.

    Every number of a spec and of the settings passes here, so what uses it cannot overflow. A
    number that is not whole may be from 1 / `largest` to `largest` in size.
    """
    if isinstance(value, float):
        fits = value == 0 or 1 / largest <= abs(value) <= largest
        accepted = f"a number of size {1 / largest:g} to {largest:g}, or 0"
        require(fits, field, value, accepted)
    elif isinstance(value, int):
        require(abs(value) <= LARGEST, field, value, f"a whole number up to {LARGEST:,}")
    elif isinstance(value, list):
        for item in value:
            check_size(field, item, largest)
    elif isinstance(value, Spec):
        for name, inner in [*(("", arg) for arg in value.args), *value.kwargs]:
            check_size(f"{field}.{name}".rstrip("."), inner, largest)


def _option(name: str, value: Value) -> Any:
    """The checked value of an option."""
    written = write_value(value)
    check_size(name, value)
    if name == "head":
        is_whole = isinstance(value, int) and _number(value) >= 1
        require(is_whole, name, written, "a number of outputs >= 1")
        return value
    if name == "dropout":
        require(0 <= _number(value) < 1, name, written, "a share from 0 to below 1")
        return _number(value)
    if name != "embedding":
        require(value in _OPTIONS[name], name, written, " | ".join(_OPTIONS[name]))
        return value
    inner = value.args if isinstance(value, Spec) and value.name == "uniform" else (value,)
    scale = _number(inner[0]) if len(inner) == 1 else math.nan
    require(scale > 0, name, written, "a scale > 0, or uniform(bound) with bound > 0")
    return Spec("uniform", (scale,)) if isinstance(value, Spec) else scale


def _number(value: Value) -> float:
    """A number as a float; nan for anything else, so that every comparison fails."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else math.nan  # type: ignore[arg-type]


def _inside(node: Node, *wrap: type) -> str:
    return f"({node})" if isinstance(node, wrap) else str(node)


def write_value(value: Value) -> str:
    """How a value is written behind ``=``."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case str():
            plain = _WORD.match(value) and value not in _LITERALS
            return value if plain else '"' + re.sub(r'([\\"])', r"\\\1", value) + '"'
        case list():
            return "[" + ", ".join(write_value(v) for v in value) + "]"
        case float():
            short = f"{value:g}"
            text = short if float(short) == value else repr(value)
            return f"{text}.0" if _WHOLE.match(text) else text
    return str(value)


class _Reader:
    """A cursor over the tokens of one line, with errors that point at the place."""

    def __init__(self, text: str, what: str) -> None:
        self.text, self.what = text, what
        self.tokens = list(self._scan())
        self.at = 0
        self._check_levels()

    def _scan(self) -> Iterator[tuple[str, str, int]]:
        position, text = 0, self.text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                column = len(text) - len(text[position:].lstrip())
                stray = text[column]
                problem = f"did not expect {stray!r}"
                if stray in "\"'":
                    problem = "this quote is not closed"
                elif text.count("(", 0, column) > text.count(")", 0, column):
                    problem += '; text that is no word needs quotes, such as folder="/tmp/logs"'
                raise self._error(problem, column)
            kind = str(match.lastgroup)
            yield kind, match.group(kind), match.start(kind)
            position = match.end()

    def _check_levels(self) -> None:
        """Refuse brackets in brackets in brackets; ``2 x 2 x`` nests as brackets do."""
        level = repeats = 0
        for _, token, column in self.tokens:
            repeats = repeats + (token in "x×") if token in "x×" or token.isdigit() else 0
            level += (token in "([") - (token in ")]")
            if level + repeats > _LEVELS:
                raise self._error(f"expected at most {_LEVELS} levels of brackets", column)

    def _error(self, problem: str, column: int) -> SpecError:
        start, end = max(0, column - _QUOTED), column + _QUOTED
        before, after = "..." * (start > 0), "..." * (end < len(self.text))
        quoted = f"{before}{self.text[start:end]}{after}"
        return SpecError(
            f"cannot read the {self.what} {shortened(repr(self.text))}: {problem}\n"
            f"    {quoted}\n    {' ' * (len(before) + column - start)}^"
        )

    def fail(self, expected: str) -> SpecError:
        if self.at < len(self.tokens):
            _, token, column = self.tokens[self.at]
            return self._error(f"expected {expected}, found {shortened(repr(token))}", column)
        return self._error(f"expected {expected}, found the end", len(self.text))

    def peek(self, ahead: int = 0) -> tuple[str, str]:
        i = self.at + ahead
        return self.tokens[i][:2] if i < len(self.tokens) else ("end", "")

    def take(self, *signs: str) -> bool:
        if self.peek()[1] in signs and self.peek()[0] in ("sign", "name"):
            self.at += 1
            return True
        return False

    def need(self, sign: str) -> None:
        if not self.take(sign):
            raise self.fail(f"{sign!r}")

    def end(self) -> None:
        if self.at < len(self.tokens):
            raise self.fail("the end")

    def number(self, expected: str) -> int | float:
        kind, text = self.peek()
        if kind != "number":
            raise self.fail(expected)
        if len(text) > _DIGITS:
            raise self.fail(f"a number of at most {_DIGITS} digits")
        number = int(text) if _WHOLE.match(text) else float(text)
        if abs(number) == math.inf:
            raise self.fail("a number that is not too large")
        self.at += 1
        return number

    def whole(self, field: str, expected: str) -> int:
        number = self.number(expected)
        require(isinstance(number, int) and number >= 1, field, number, "a whole number >= 1")
        check_size(field, number)
        return int(number)

    def spec(self) -> Spec:
        kind, name = self.peek()
        if kind != "name":
            raise self.fail("a name")
        self.at += 1
        args: list[Value] = []
        kwargs: dict[str, Value] = {}
        if self.take("("):
            while not self.take(")"):
                if self.peek()[0] == "name" and self.peek(1) == ("sign", "="):
                    key = self.peek()[1]
                    if key in kwargs:
                        raise self._error(f"{key!r} is given twice", self.tokens[self.at][2])
                    self.at += 2
                    kwargs[key] = self.value()
                elif kwargs:
                    raise self.fail("name=value (arguments without a name come first)")
                else:
                    args.append(self.value())
                if self.peek()[1] != ")" and not self.take(","):
                    raise self.fail("',' or ')'")
        return Spec(name, tuple(args), tuple(kwargs.items()))

    def value(self) -> Value:
        kind, text = self.peek()
        if kind == "number":
            return self.number("a number")
        if kind == "text":
            self.at += 1
            return re.sub(r"\\([\\\"'])", r"\1", text[1:-1])
        if self.take("["):
            items: list[Value] = []
            while not self.take("]"):
                items.append(self.value())
                if self.peek()[1] != "]" and not self.take(","):
                    raise self.fail("',' or ']'")
            return items
        if kind != "name":
            raise self.fail("a value")
        if text in _LITERALS and self.peek(1) != ("sign", "("):
            self.at += 1
            return _LITERALS[text]
        spec = self.spec()
        return spec if spec.args or spec.kwargs else spec.name

    def serial(self) -> Node:
        nodes = [self.parallel()]
        while self.take(">"):
            nodes.append(self.parallel())
        return nodes[0] if len(nodes) == 1 else Serial(tuple(nodes))

    def parallel(self) -> Node:
        nodes = [self.unit()]
        while self.take("|"):
            nodes.append(self.unit())
        return nodes[0] if len(nodes) == 1 else Parallel(tuple(nodes))

    def unit(self) -> Node:
        if self.peek()[0] == "number":
            times = self.whole("repeat", "a number")
            if not self.take("x", "×"):
                raise self.fail("'x', as in 4 x (lstm > mlp)")
            return Repeat(times, self.unit())
        if self.take("("):
            node = self.serial()
            self.need(")")
            return node
        return self.spec()
