"""Reading JSON files of a run folder: what is damaged is named by its file and its field."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from outlast.errors import RunFolderError, bad_value
from outlast.runs.folder import is_text, require_regular, why

#: the format that is written; format 1 had other names of settings
FORMAT = 2
READABLE = (1, FORMAT)
#: the most levels of lists and objects in a file; ours have fewer than ten
DEEPEST = 100
#: the most digits of a whole number; a longer one is taken as text, and so refused by its field
DIGITS = 20
#: the most characters of a value that an error shows
SHOWN = 80

T = TypeVar("T")


def read_text(path: Path, errors: str = "strict") -> str:
    """The text of a file. A pipe or a device is an error: reading it might never end."""
    require_regular(path)
    return path.read_text(encoding="utf-8", errors=errors)


def parse_json(text: str) -> Any:
    """The value of a JSON text; a `ValueError` says what is wrong with it."""
    try:
        values = json.loads(text, parse_int=_whole_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if text.count("[") + text.count("{") > DEEPEST or "\\ud" in text or "\\uD" in text:
        _check_plain(values)
    return values


def _whole_number(text: str) -> int | str:
    return int(text) if len(text.lstrip("-")) <= DIGITS else text


def _check_plain(values: Any) -> None:
    """Raise if values are nested too deeply, or hold text that cannot be written as UTF-8."""
    left = [("", 0, values)]
    while left:
        field, level, value = left.pop()
        if level > DEEPEST:
            raise ValueError(f"{field[:SHOWN]}... is nested too deeply")
        if isinstance(value, str) and not is_text(value):
            raise ValueError(f"{field}={ascii(value)[:SHOWN]}: expected text in UTF-8")
        if isinstance(value, dict):
            left += [(name, 0, name) for name in value]  # a name is text, too
            left += [(f"{field}.{n}".strip("."), level + 1, v) for n, v in value.items()]
        if isinstance(value, list):
            left += [(f"{field}[{i}]", level + 1, v) for i, v in enumerate(value)]


def read_object(path: Path, purpose: str, by_hand: bool = False) -> dict[str, Any]:
    """The JSON object in a file of ours; without the file its folder is not `purpose`.

    A file that may be written by hand need not name its format.
    """
    try:
        values = parse_json(read_text(path))
    except FileNotFoundError:
        raise RunFolderError(f"{path.parent} has no {path.name}: it is not {purpose}") from None
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {why(error)}") from None
    except ValueError as error:  # of JSON, or of bytes that are no text
        raise RunFolderError(f"cannot read {path}: damaged JSON ({error})") from None
    if not isinstance(values, dict):
        raise RunFolderError(f"cannot read {path}: expected a JSON object")
    if by_hand:
        values.setdefault("format", FORMAT)
    check_format(values, path)
    return values


def check_format(values: Mapping[str, Any], path: Path) -> None:
    """Raise if a file is of a format that this version does not read."""
    number = values.get("format")
    if number not in READABLE:
        formats = " and ".join(map(str, READABLE))
        raise RunFolderError(
            f"cannot read {path}: its format is {number!r:.{SHOWN}}; this version of "
            f"outlast reads {formats}"
        )


def checked(values: Any, kind: type[T], place: object) -> T:
    """Plain values as a record. A value of the wrong type is an error that names its field."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise RunFolderError(f"cannot read {place}: {_explain(str(error), values)}") from None


#: what a user knows the types of JSON as
TYPES = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def _explain(message: str, values: Any) -> str:
    """An error of msgspec in words such as ``seeds[0]="a": expected a whole number``."""
    problem, _, path = message.partition(" - at ")
    field = path.strip("`").removeprefix("$").removeprefix(".")
    if missing := re.fullmatch(r"Object missing required field `(.+)`", problem):
        return f"{field or 'it'} has no {missing[1]}"
    wrong_type = re.fullmatch(r"Expected `(.+)`, got `.+`", problem)
    if wrong_type is None:
        return f"{field}: {problem}" if field else problem
    accepted = " or ".join(TYPES.get(name, name) for name in wrong_type[1].split(" | "))
    if not field:
        return f"expected {accepted}"
    if field.endswith("[...]"):  # some value of an object; which one is not said
        field, accepted = field.removesuffix("[...]"), f"{accepted} for each name"
    for key in re.findall(r"[^.\[\]]+", field):
        values = values[int(key) if isinstance(values, list) else key]
    return str(bad_value(field, _shown(values), accepted))


def _shown(value: Any) -> str:
    """A value as JSON has it, cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


# ---- values ------------------------------------------------------------------------------------


def check_shares(field: str, shares: Mapping[str, float] | None) -> None:
    """Raise ValueError if a number is no share."""
    for name, share in (shares or {}).items():
        if not 0 <= share <= 1:
            raise ValueError(f"{field}.{name}={share}: expected a number from 0 to 1")


def check_finite(field: str, number: float) -> None:
    """Raise ValueError if a number is not finite."""
    if not math.isfinite(number):
        raise ValueError(f"{field}={number}: expected a finite number")


def check_subfolder(kind: str, name: str) -> None:
    """Raise ValueError if a name would lead out of the folder that it stands in."""
    if name in {"", ".", ".."} or "/" in name or "\\" in name:
        raise ValueError(f"{kind} name {name!r} is not the name of a subfolder")
