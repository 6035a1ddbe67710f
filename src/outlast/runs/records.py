"""The files of a run folder as types: one reader and one writer for each.

Reading checks every field. A file that is damaged, or of another format, is a `RunFolderError`
that names the file, the line where there are lines, and the field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec
from msgspec import Struct

from outlast.errors import RunFolderError, SpecError
from outlast.runs.folder import METRICS, RUN, require_name, why, write_json, write_text
from outlast.runs.reading import (
    FORMAT,
    check_finite,
    check_shares,
    check_subfolder,
    checked,
    parse_json,
    read_object,
    read_text,
)
from outlast.runs.spec import RunSpec, Settings, Start

# ---- run.json ----------------------------------------------------------------------------------


class Shown(Struct, frozen=True):
    """The specs of a run in their short form, without defaults, as a person reads them."""

    task: str
    model: str
    methods: tuple[str, ...] = ()


class CorpusRecord(Struct, frozen=True):
    """What is known of the text that a run is trained on."""

    #: of its documents, of which of them are for the test, and of the tokenizer
    checksum: str
    #: bits per byte of the test text without a model, by the name of the way
    baselines: dict[str, float] = {}


class RunRecord(Struct, frozen=True, kw_only=True):
    """What `run.json` holds: the run's spec, and what a reader wants to know beside it."""

    format: int = FORMAT
    #: the version of outlast that wrote it
    outlast: str = ""
    task: str
    model: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: Settings
    label: str
    shown: Shown | None = None
    #: the skills that the task tests, and those that only help training
    parts: tuple[str, ...] = ()
    auxiliary: tuple[str, ...] = ()
    #: the longest length trained on
    length: int
    #: weights of one seed
    parameters: int = 0
    #: the share of sequences that guessing gets right, by part and jointly
    chance: dict[str, float] = {}
    corpus: CorpusRecord | None = None
    versions: dict[str, str] = {}
    created: str = ""
    device: str = ""
    #: folder names of the runs it was created with, in order; they are resumed together
    pack: tuple[str, ...] = ()
    #: the weights that its seeds began with; without it they drew their own
    start_from: Start | None = None

    def __post_init__(self) -> None:
        for name in self.pack:
            check_subfolder("run", name)
        if self.length < 1:
            raise ValueError(f"length={self.length}: expected a whole number >= 1")
        check_shares("chance", self.chance)

    @property
    def spec(self) -> RunSpec:
        """What decides the run."""
        return RunSpec(
            self.task,
            self.model,
            self.methods,
            self.seeds,
            self.settings,
            self.label,
            self.start_from,
        )

    @property
    def short(self) -> Shown:
        """The specs as a person reads them."""
        return self.shown or Shown(self.task, self.model, self.methods)


def read_run(folder: Path) -> RunRecord:
    """What was run, as `run.json` says."""
    path = folder / RUN
    require_name(folder)
    values = read_object(path, "a run folder")
    try:
        if isinstance(values.get("settings"), dict):  # some may have names of before
            values["settings"] = asdict(Settings.read(values["settings"]))
        record = checked(values, RunRecord, path)
        _ = record.spec  # checks the seeds
    except SpecError as error:
        raise RunFolderError(f"cannot read {path}: {error}") from None
    return record


def write_run(folder: Path, record: RunRecord) -> None:
    """Write `run.json`."""
    write_record(folder / RUN, record)


# ---- metrics.jsonl -----------------------------------------------------------------------------


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


# ---- results.json ------------------------------------------------------------------------------


#: bits per byte over all bytes that count, beside those of the parts
ALL = "all"


class ResultRow(TypedDict):
    """One seed at one length; `exact` and `answers` are None where it could not be tested.

    A task of text has `bits`, `bytes` and `positions` instead.
    """

    #: absent where a single model is measured
    seed: NotRequired[int]
    #: the step a seed was left at, if it was parked or had succeeded
    parked: NotRequired[int]
    succeeded: NotRequired[int]
    #: another version of the task, such as `sparse`; None is the one trained on
    variant: str | None
    length: int | float
    #: of the training length
    multiple: int | float
    tokens: NotRequired[int | None]
    #: share of sequences with every answer right, by part and jointly
    exact: dict[str, float] | None
    #: share of answers right, by part
    answers: NotRequired[dict[str, float] | None]
    #: mean total variation distance of the outputs to the right distribution, by asked part
    distance: NotRequired[dict[str, float]]
    #: bits per byte of text, of `all` bytes that count and by part
    bits: NotRequired[dict[str, float] | None]
    #: how many bytes these are
    bytes: NotRequired[dict[str, int] | None]
    #: bits per byte by position: by the last of the positions 1, 2, 3 to 4, 5 to 8 and so on
    positions: NotRequired[dict[str, float] | None]
    #: share of answers whose logits were NaN or all -inf, if any; they are counted as wrong. In a
    #: text it is that of tokens with NaN, context included; a part with one has no bits
    nan: NotRequired[float]
    #: what was taken as the logits of a model of someone else, if it returned no plain tensor
    logits_from: NotRequired[str]
    #: why it could not be tested
    reason: NotRequired[str | None]


def is_tested(row: ResultRow) -> bool:
    """Whether a row has a result."""
    return row["exact"] is not None or row.get("bits") is not None


class Results(Struct, frozen=True, kw_only=True):
    """What `results.json` holds: a test of every seed at every length."""

    format: int = FORMAT
    #: the step of the weights that were tested; a file written by hand may not say
    step: int | None = None
    sequences: int | None = None
    precision: str = "fp32"
    rows: tuple[ResultRow, ...]


def read_results(path: Path) -> Results:
    """The results in a file. One that was written by hand needs nothing but rows."""
    values = read_object(path, "tested yet", by_hand=True)
    if isinstance(rows := values.get("rows"), list):
        missing = {"variant": None, "exact": None}
        values["rows"] = [missing | row if isinstance(row, dict) else row for row in rows]
    results = checked(values, Results, path)
    for index, row in enumerate(results.rows):
        if "seed" not in row:
            raise RunFolderError(f"cannot read {path}: rows[{index}] has no seed")
        try:
            check_shares(f"rows[{index}].exact", row["exact"])
            check_shares(f"rows[{index}].distance", row.get("distance"))
            for part, bits in (row.get("bits") or {}).items():
                check_finite(f"rows[{index}].bits.{part}", bits)
            check_finite(f"rows[{index}].multiple", row["multiple"])
            check_finite(f"rows[{index}].length", row["length"])
        except ValueError as error:
            raise RunFolderError(f"cannot read {path}: {error}") from None
    return results


def write_results(path: Path, results: Results) -> None:
    """Write results: as `results.json` of a folder or as any other file."""
    write_record(path, results)


# ---- all of them -------------------------------------------------------------------------------


def write_record(path: Path, record: Struct) -> None:
    """Write a record as a JSON file of today's format, whatever format it was read from."""
    write_json(path, msgspec.to_builtins(record) | {"format": FORMAT})
