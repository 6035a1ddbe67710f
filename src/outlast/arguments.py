"""Values of a spec against the annotations of a signature: checked, written back, described."""

from __future__ import annotations

import difflib
import operator
import types
from collections.abc import Callable, Iterable
from contextlib import suppress
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from outlast.errors import SpecError, about, bad_value, require
from outlast.specs import LARGEST_FLOAT, Spec, Value, check_size, write_value


def coerce(value: Any, annotation: Any, field: str) -> Any:
    """The value in the type of the annotation. An error names the field and what is accepted."""
    origin, inside = get_origin(annotation), get_args(annotation)
    check_size(field, value, LARGEST_FLOAT)
    if annotation is Any:
        return value
    if origin in (Union, types.UnionType):
        for option in inside:
            try:
                return coerce(value, option, field)
            except SpecError:
                continue
    elif origin is Literal:
        if value in inside:
            return value
        if isinstance(value, str):
            raise SpecError(
                f"{field}={value}: expected {describe(annotation)}{_did_you_mean(value, inside)}"
            )
    elif origin is tuple:
        items = value if isinstance(value, (list, tuple)) else [value]
        return tuple(coerce(v, inside[0], field) for v in items)
    elif origin is dict:
        if isinstance(value, dict):
            return {k: coerce(v, inside[1], f"{field}.{k}") for k, v in value.items()}
        if isinstance(value, Spec) and value.name == "weights" and not value.args:
            return {k: coerce(v, inside[1], f"{field}.{k}") for k, v in value.kwargs}
    elif annotation is Spec:
        if isinstance(value, Spec):
            return value
        if isinstance(value, str):
            return Spec(value)
    elif annotation is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    elif annotation is None or annotation is types.NoneType:
        if value is None:
            return None
    elif isinstance(annotation, type) and type(value) is annotation:
        return value
    raise bad_value(field, write_value(value), describe(annotation))


def build_from(spec: Spec, factory: Callable[..., Any], fields: dict[str, type], field: str) -> Any:
    """Call `factory` with the arguments of a spec that stands behind ``field=``."""
    arguments = [*zip(fields, spec.args, strict=False), *spec.kwargs]
    names = [name for name, _ in arguments]
    twice = len(set(names)) < len(names)
    if twice or not set(names) <= set(fields) or len(spec.args) > len(fields):
        raise SpecError(f"{field}={spec}: expected {spec.name}({', '.join(fields)})")
    values = {k: coerce(v, fields[k], f"{field}: {k}") for k, v in arguments}
    with about(field, spec.name):
        return factory(**values)


def to_value(value: Any) -> Value:
    """The inverse of `coerce`: how a bound argument is written."""
    if isinstance(value, tuple):
        return [to_value(v) for v in value]
    if isinstance(value, dict):
        return Spec("weights", (), tuple((k, to_value(v)) for k, v in value.items()))
    if isinstance(value, Spec) and not value.args and not value.kwargs:
        return value.name
    return value  # type: ignore[no-any-return]


def describe(annotation: Any, item: str = "a spec such as name(argument=value)") -> str:
    """What an annotation accepts, in words; `item` is what a spec in it stands for."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        options = [o for o in inside if not (o is int and float in inside)]
        return " or ".join(describe(option, item) for option in options)
    if origin is Literal:
        return " | ".join(str(option) for option in inside)
    if origin is tuple:
        one, of, rest = describe(inside[0]).removeprefix("a ").partition(" of ")
        return f"a list of {one}s{of}{rest}"
    if origin is dict:
        return "weights(name=number, ...)"
    words: dict[Any, str] = {
        int: "a whole number",
        float: "a number",
        bool: "true | false",
        str: "a word",
        Spec: item,
        types.NoneType: "none",
        None: "none",
    }
    return words.get(annotation, "a value")


def _did_you_mean(value: str, options: Iterable[object]) -> str:
    close = difflib.get_close_matches(value, [str(o) for o in options], n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def check_whole(field: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse what is not a whole number of at least `least` and at most `most`."""
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not fits or (most is not None and value > most):  # type: ignore[operator]
        bound = f">= {least}" if most is None else f"from {least} to {most}"
        raise bad_value(field, value, f"a whole number {bound}")
    check_size(field, value)


def as_whole(field: str, value: object, least: int, most: int | None = None) -> int:
    """A whole number from `least` to `most` as an int, also if it is one of numpy or torch."""
    number: int | None = None
    if "bool" not in (type(value).__name__, str(getattr(value, "dtype", "")).split(".")[-1]):
        with suppress(Exception):  # no number, or a tensor without one: errors of many types
            number = operator.index(value)  # type: ignore[arg-type]
    if number is None or number < least or (most is not None and number > most):
        bound = f">= {least}" if most is None else f"from {least} to {most}"
        # of a whole number the type says nothing, least of all about one of the command line
        word = shown(value) if number is None else number
        raise bad_value(field, word, f"a whole number {bound}")
    return number


def as_path(field: str, value: object) -> Path:
    """A path from text or a path object, one that the system can look up."""
    if not isinstance(value, str | PathLike) or isinstance(path := fspath(value), bytes):
        raise bad_value(field, shown(value), "a path: text or pathlib.Path")
    if not path:
        raise bad_value(field, shown(value), "a path that is not empty")
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # what is to be there is not for us to say
    except (OSError, ValueError) as error:  # too long, a NUL in it, no right to enter
        reason = getattr(error, "strerror", None) or error
        raise bad_value(field, shown(value), f"a path that can be used: {reason}") from None
    return Path(path)


def shown(value: object) -> str:
    """A value of any type as an error shows it: on one line, cut short, with its type."""
    if value is None or isinstance(value, bool):
        return repr(value)
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a repr of someone else's
        text = "..."
    kind = type(value).__name__
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return text if isinstance(value, str | bytes) else f"{text} ({kind})"


def check_share(field: str, value: object) -> None:
    """Refuse what is not a probability."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1:  # type: ignore[operator]
        raise bad_value(field, value, "a number from 0 to 1")


def check_flag(field: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise bad_value(field, shown(value), "True or False")


def check_choice(field: str, value: object, choices: object) -> None:
    """Refuse what a ``Literal`` does not list; a spec is checked before, a plain call is not."""
    require(value in get_args(choices), field, value, " | ".join(get_args(choices)))
