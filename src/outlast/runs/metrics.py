"""The metrics of a run: one line of `metrics.jsonl` for each seed and block, or for an event.

The file grows while a run trains. A line that is damaged is a `RunFolderError` that names the file,
the line and the field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from outlast.errors import RunFolderError
from outlast.runs.folder import METRICS, why, write_text
from outlast.runs.reading import checked, parse_json, read_text


class MetricLine(Struct, frozen=True, omit_defaults=True):
    """What one seed did in one block: mean losses and accuracies by part, or a probe."""

    step: int
    seed: int
    loss: Mapping[str, float | None] | None = None
    accuracy: Mapping[str, float | None] | None = None
    #: joint accuracy by multiple of the training length, or bits per byte
    probe: Mapping[str, float] | None = None
    probe_bits: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        for multiple in (*(self.probe or ()), *(self.probe_bits or ())):
            if not re.fullmatch(r"[0-9.]+(e[+-]?[0-9]+)?", multiple):
                raise ValueError(f"probe: {multiple!r:.80} is no multiple of the training length")


@dataclass(frozen=True)
class EventLine:
    """Something that happened to a seed, such as the switch of DAT; `details` are the event's."""

    step: int
    seed: int
    event: str
    details: dict[str, Any] = field(default_factory=dict)


Line = MetricLine | EventLine


def read_metrics(folder: Path) -> list[Line]:
    """Every line of the metrics; a last line that a kill cut short is left out."""
    path = folder / METRICS
    texts = _metric_texts(path)
    lines: list[Line] = []
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        place = f"{path}, line {number}"
        try:
            values = parse_json(text)
        except ValueError as error:
            if number == len(texts) and isinstance(error, json.JSONDecodeError):
                break
            raise RunFolderError(f"cannot read {place}: damaged JSON ({error})") from None
        lines.append(_metric_line(values, place))
    return lines


def metrics_since(folder: Path, offset: int) -> tuple[list[Line], int]:
    """The lines of the metrics behind a place in the file, and the place behind the last of them.

    A last line that is still being written is left for the next time.
    """
    path = folder / METRICS
    try:
        with path.open("rb") as file:
            file.seek(offset)
            whole, end, _ = file.read().rpartition(b"\n")
    except FileNotFoundError:
        return [], offset
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {why(error)}") from None
    texts = whole.decode("utf-8", errors="replace").splitlines()
    place = f"{path}, from byte {offset}"
    try:
        lines = [_metric_line(parse_json(text), place) for text in texts if text.strip()]
    except ValueError as error:
        raise RunFolderError(f"cannot read {place}: damaged JSON ({error})") from None
    return lines, offset + len(whole) + len(end)


def append_metrics(folder: Path, lines: Iterable[Line]) -> None:
    """Add lines to the metrics."""
    path = folder / METRICS
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(_metric_text(lines))
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror}") from error


def write_metrics(folder: Path, lines: Iterable[Line]) -> None:
    """Write all lines of the metrics anew."""
    write_text(folder / METRICS, _metric_text(lines))


def cut_metrics(folder: Path, step: int) -> None:
    """Take back what was written after `step`: it will be written again."""
    texts = [text for text in _metric_texts(folder / METRICS) if text.strip()]
    lines = read_metrics(folder)  # one fewer, if a kill cut the last text short
    kept = [text for text, line in zip(texts, lines, strict=False) if line.step <= step]
    write_text(folder / METRICS, "".join(f"{text}\n" for text in kept))


def _metric_texts(path: Path) -> list[str]:
    try:
        return read_text(path, errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {why(error)}") from None


def _metric_line(values: Any, place: str) -> Line:
    if not isinstance(values, dict) or "event" not in values:
        return checked(values, MetricLine, place)
    details = {k: v for k, v in values.items() if k not in ("step", "seed", "event")}
    known = {"step": values.get("step"), "seed": values.get("seed"), "event": values["event"]}
    return checked(known | {"details": details}, EventLine, place)


def _metric_text(lines: Iterable[Line]) -> str:
    """Lines as the file has them: numbers that are not finite are written as Python does."""
    texts = []
    for line in lines:
        if isinstance(line, EventLine):
            known = {"step": line.step, "seed": line.seed, "event": line.event}
            texts.append(json.dumps(known | line.details))
        else:
            texts.append(json.dumps(msgspec.to_builtins(line)))
    return "".join(text + "\n" for text in texts)
