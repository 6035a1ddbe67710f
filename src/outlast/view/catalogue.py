"""Which runs the page can show. Only `run.json` and `study.json` are read here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

from outlast.errors import OutlastError, RunFolderError
from outlast.runs.folder import CHECKPOINT, RESULTS, RUN, STUDY, has_file, why
from outlast.runs.records import RunRecord, read_run
from outlast.runs.study import read_study
from outlast.view.shipped import INDEX

#: how many folders deep runs are looked for below a folder that is none itself
DEPTH = 3
#: a file that every bundle of the page has
BUNDLE_MARK = "data/runs.json"


@dataclass(frozen=True)
class Entry:
    """One run. `problem` says why it cannot be read; `record` is None then."""

    id: str
    folder: Path
    study: str
    label: str
    record: RunRecord | None
    problem: str | None = None

    def describe(self) -> dict[str, Any]:
        """What the list of runs on the page needs to know."""
        about = {"id": self.id, "study": self.study, "label": self.label, "problem": self.problem}
        if self.record is None:
            return about
        record, short = self.record, self.record.short
        return about | {
            "task": short.task,
            "model": short.model,
            "methods": short.methods,
            "seeds": record.seeds,
            "parts": record.parts,
            "length": record.length,
            "steps": record.settings.steps,
            "parameters": record.parameters,
            "chance": record.chance,
            "tested": has_file(self.folder, RESULTS),
            "trained": has_file(self.folder, CHECKPOINT),
        }


def find_entries(folders: Sequence[Path]) -> list[Entry]:
    """The runs of run folders, studies, grids, or of any folder that holds some of these.

    A run that cannot be read is listed with its problem, if there is another that can.
    """
    found = [place for folder in folders for place in _find(folder, DEPTH)]
    if not found:
        names = ", ".join(map(str, folders))
        raise RunFolderError(f"{names}: there is no run ({RUN}) and no study ({STUDY}) in it")
    entries: dict[str, Entry] = {}
    for folder, study, label in dict.fromkeys(found):
        name = _new_id(folder, study, entries)
        entries[name] = _entry(name, folder, study, label)
    if all(entry.problem for entry in entries.values()):
        raise RunFolderError(str(next(iter(entries.values())).problem))
    return _with_distinct_labels(list(entries.values()))


def is_bundle(folder: Path) -> bool:
    """Whether a folder holds a bundle. That of a run called `run` has files named `run.json`."""
    return has_file(folder, BUNDLE_MARK) and has_file(folder, INDEX)


def _find(folder: Path, depth: int) -> list[tuple[Path, str, str]]:
    """Run folders with the title of their study and their label in it. Bundles hold none."""
    if has_file(folder, RUN):
        return [(folder, "", "")]
    if has_file(folder, STUDY):
        study = read_study(folder)
        title = study.title or study.study or folder.name
        arms = [(folder / arm.name, title, arm.label) for arm in study.arms]
        return [arm for arm in arms if has_file(arm[0], RUN)]
    if not depth or is_bundle(folder):
        return []
    try:
        inside = sorted(f for f in folder.iterdir() if f.is_dir() and not f.name.startswith("."))
    except OSError as error:
        raise RunFolderError(f"cannot look into {folder}: {why(error)}") from None
    return [place for subfolder in inside for place in _find(subfolder, depth - 1)]


def _entry(name: str, folder: Path, study: str, label: str) -> Entry:
    try:
        record = read_run(folder)
    except OutlastError as error:
        return Entry(name, folder, study, label or folder.name, None, str(error))
    words = " ".join((label or record.label).split())
    return Entry(name, folder, study, words or folder.name, record)


def _new_id(folder: Path, study: str, taken: Container[str]) -> str:
    """A short name for addresses and files, the same each time for the same folders."""
    path = folder.resolve()
    words = [path.parent.name, path.name] if study else [path.name]
    base = "--".join(re.sub(r"[^A-Za-z0-9_.]+", "-", word) for word in words).lstrip(".") or "run"
    numbered = (f"{base}-{number}" for number in count(2))
    return next(name for name in chain([base], numbered) if name not in taken)


def _with_distinct_labels(entries: list[Entry]) -> list[Entry]:
    """A label that two runs of one study share gets the run's id behind it."""
    uses = Counter((entry.study, entry.label) for entry in entries)
    return [
        entry
        if uses[entry.study, entry.label] == 1
        else replace(entry, label=f"{entry.label} ({entry.id})")
        for entry in entries
    ]
