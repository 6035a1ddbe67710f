"""JSON objects from files, with errors that say which file, which line and which field."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.errors import RunFolderError

FORMAT = 1


@dataclass(frozen=True)
class Record:
    """One JSON object and where it came from; each getter checks what it hands out."""

    data: dict[str, Any]
    where: str

    def error(self, problem: str) -> RunFolderError:
        return RunFolderError(f"{self.where}: {problem}")

    def text(self, key: str, default: str | None = None) -> str:
        value = self.data.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.error(f"{key}: expected text, found {_shown(value)}")
        return " ".join(value.split())

    def optional(self, key: str) -> str | None:
        return None if self.data.get(key) is None else self.text(key)

    def number(self, key: str) -> float:
        return self.as_number(self.data.get(key), key)

    def optional_number(self, key: str) -> float | None:
        return None if self.data.get(key) is None else self.number(key)

    def numbers(self, key: str) -> dict[str, float] | None:
        """The numbers under ``key`` by name; entries that are null are left out."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(f"{key}: expected an object of numbers, found {_shown(value)}")
        pairs = ((k, v) for k, v in value.items() if v is not None)
        return {k: self.as_number(v, f"{key}.{k}", finite=False) for k, v in pairs}

    def items(self, key: str) -> list[Any]:
        value = self.data.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(f"{key}: expected a list, found {_shown(value)}")
        return value

    def whole_numbers(self, key: str) -> tuple[int, ...]:
        return tuple(int(self.as_number(value, key)) for value in self.items(key))

    def record(self, key: str) -> Record:
        return _object(self.data.get(key), f"{self.where}: {key}")

    def records(self, key: str) -> list[Record]:
        return [
            _object(value, f"{self.where}: {key}[{index}]")
            for index, value in enumerate(self.items(key))
        ]

    def as_number(self, value: object, key: str, finite: bool = True) -> float:
        """``value`` as a float; a number in quotes is one too (JSON keys are always text)."""
        try:
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                raise ValueError
            number = float(value)
            if finite and not math.isfinite(number):
                raise ValueError
        except ValueError:
            raise self.error(f"{key}: expected a number, found {_shown(value)}") from None
        return number


def read_record(path: Path) -> Record:
    """The JSON object in a file of ours."""
    text = _text(path)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise RunFolderError(f"{path}, line {error.lineno}: damaged JSON ({error.msg})") from None
    record = _object(value, str(path))
    found = record.data.get("format", FORMAT)
    if found != FORMAT:
        raise record.error(f"format {_shown(found)}; this version of Outlast reads {FORMAT}")
    return record


def read_lines(path: Path) -> Iterator[Record]:
    """Each line's JSON object; a last line still being written is left out."""
    if not path.is_file():
        return
    *lines, rest = _text(path).split("\n")
    for number, line in enumerate([*lines, rest], start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            if number > len(lines):  # no newline yet: the run is writing, or was stopped doing so
                return
            raise RunFolderError(f"{where}: damaged JSON ({error.msg})") from None
        yield _object(value, where)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path}: cannot be read ({error})") from None


def _object(value: object, where: str) -> Record:
    if not isinstance(value, dict):
        raise RunFolderError(f"{where}: expected a JSON object, found {_shown(value)}")
    return Record(value, where)


def _shown(value: object) -> str:
    """A value as an error shows it: short."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
