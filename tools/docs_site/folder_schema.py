"""The page of the run folder, from the types that read and write it."""

from __future__ import annotations

import ast
import inspect
import re
import typing
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import msgspec

from docs_site.markdown import code, from_docstring, table
from outlast.runs import records, study
from outlast.runs.analyses import AnalysisTable
from outlast.runs.folder import (
    ANALYSIS,
    CHECKPOINT,
    KEPT,
    KEPT_SUFFIX,
    LOCK,
    METRICS,
    PREVIOUS_RESULTS,
    RESULTS,
    RUN,
    STUDY,
    SWEEP,
    TRACKERS,
)
from outlast.runs.reading import FORMAT
from outlast.runs.spec import Settings
from outlast.sweep.attempts import ATTEMPTS, CLAIM, CLAIMED, HIDDEN
from outlast.sweep.halving import SCORES
from outlast.sweep.record import SweepRecord
from outlast.trackers.lane import Entry

FILES = [
    (RUN, "what was run: the spec, and what a reader wants to know beside it"),
    (METRICS, "a line for each seed and block: losses, accuracies and probes; and events"),
    (CHECKPOINT, "the state of training, all seeds in one file"),
    (f"{KEPT}/STEP{KEPT_SUFFIX}", "weights along the way, with `--keep-checkpoints`"),
    (RESULTS, "a test of every seed at every length"),
    (PREVIOUS_RESULTS, "results with more lengths or sequences than those that replaced them"),
    (f"{ANALYSIS}/NAME.json", "a table of `outlast analyse`"),
    (TRACKERS, "how each tracker of `--track` knows the run, by the line of the tracker"),
    (STUDY, "in the folder of a study: its question, arms and claims; each arm is a run folder"),
    (SWEEP, "in the folder of a sweep: what is swept; each run of it is a run folder"),
    (
        SCORES,
        "in the folder of a sweep with `--halving`: `at`, the length in multiples; `rounds`, each "
        "with `round`, its number, the `scores` by run, and the runs `kept`, best first",
    ),
    (
        f"{HIDDEN}/{ATTEMPTS}/PACK/NAME",
        "in the folder of a sweep: an attempt at a pack of runs; deleted once the pack is recorded",
    ),
    (
        f"{HIDDEN}/{CLAIMED}/PACK",
        f"the attempt that is recorded: its runs move to their place, and {code(CLAIM)} stays, so "
        "that the pack is not trained again",
    ),
    (LOCK, "held by the process that trains the run"),
]
RECORDS: dict[str, list[type]] = {
    RUN: [records.RunRecord, records.Shown, records.CorpusRecord, Settings],
    METRICS: [records.MetricLine, records.EventLine],
    RESULTS: [records.Results, records.ResultRow],
    f"{ANALYSIS}/NAME.json": [AnalysisTable],
    TRACKERS: [Entry],
    STUDY: [
        study.StudyRecord,
        study.ArmRecord,
        study.Claim,
        study.ScreenRecord,
        study.RoundRecord,
    ],
    SWEEP: [SweepRecord],
}


def folder_page() -> str:
    """Every file of a run folder, and every field of its records."""
    pieces = [
        "# The run folder\n",
        "A run folder is the only thing that passes from training to everything after it. Its "
        "files are JSON and safetensors. No file is a pickle. Each is written whole or not at all. "
        f"Today's format is number {FORMAT}; older ones are read too. The tables below are "
        "generated from the types that read and write the files.\n",
        table(["file", "what it holds"], [(code(name), text) for name, text in FILES]),
    ]
    for file, types in RECORDS.items():
        pieces += [f"## {file}\n", *(_record(each) for each in types)]
    return "\n".join(pieces)


def _record(record: type) -> str:
    comments, defaults = field_comments(record), _defaults(record)
    rows = [
        (code(name), code(type_words(kind)), defaults.get(name, "(needed)"), comments.get(name, ""))
        for name, kind in typing.get_type_hints(record, include_extras=True).items()
    ]
    doc = from_docstring(inspect.getdoc(record) or "")
    return f"### {record.__name__}\n\n{doc}\n" + table(
        ["field", "type", "default", "meaning"], rows
    )


def type_words(kind: Any) -> str:
    """A type as it is written: ``dict[str, float] | None``."""
    if typing.get_origin(kind) is typing.NotRequired:
        kind = typing.get_args(kind)[0]
    if isinstance(kind, type) and not typing.get_args(kind):
        return kind.__name__
    return re.sub(r"\b(?:typing|collections\.abc|outlast(?:\.\w+)*)\.", "", str(kind))


def field_comments(record: type) -> dict[str, str]:
    """What the lines ``#: ...`` before a field say of it."""
    source = inspect.getsource(record)
    lines = source.splitlines()
    comments: dict[str, str] = {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            before: list[str] = []
            number = node.lineno - 2
            while number >= 0 and lines[number].strip().startswith("#:"):
                before.insert(0, lines[number].strip().removeprefix("#:").strip())
                number -= 1
            comments[node.target.id] = " ".join(before)
    return comments


def _defaults(record: type) -> dict[str, str]:
    """The defaults of the fields that have one, as code."""
    if typing.is_typeddict(record):
        # of annotations that are strings, Python itself takes every key for a required one
        kinds = typing.get_type_hints(record, include_extras=True).items()
        optional = [name for name, kind in kinds if typing.get_origin(kind) is typing.NotRequired]
        return dict.fromkeys(optional, "(may be absent)")
    found = {}
    known = fields(record) if is_dataclass(record) else msgspec.structs.fields(record)
    for each in known:
        if each.default not in (MISSING, msgspec.NODEFAULT):
            found[each.name] = code(repr(each.default))
        elif each.default_factory not in (MISSING, msgspec.NODEFAULT):
            found[each.name] = code(repr(each.default_factory()))
    return found
