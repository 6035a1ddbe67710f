"""Which runs the page can show. Only `run.json` and `study.json` are read here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

from outlast.errors import OutlastError, RunFolderError
from outlast.runs.folder import CHECKPOINT, RESULTS, RUN, STUDY, has_file, why
from outlast.runs.records import RunRecord, read_run
from outlast.runs.study import read_study
from outlast.view.shipped import INDEX

#: how many folders deep runs are looked for below a folder that is none itself
DEPTH = 3
#: a file that every bundle of the page has
BUNDLE_MARK = "data/runs.json"
#: a run folder, the title of its study and its label in it
Place = tuple[Path, str, str]


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
    places: dict[Path, Place] = {}
    for place in found:
        places.setdefault(place[0].resolve(), place)
    ids = _ids({path: 2 if study else 1 for path, (_, study, _) in places.items()})
    entries = [_entry(ids[path], *place) for path, place in places.items()]
    if all(entry.problem for entry in entries):
        raise RunFolderError(str(entries[0].problem))
    return _with_distinct_labels(entries)


def is_bundle(folder: Path) -> bool:
    """Whether a folder holds a bundle. That of a run called `run` has files named `run.json`."""
    return has_file(folder, BUNDLE_MARK) and has_file(folder, INDEX)


def _find(folder: Path, depth: int) -> list[Place]:
    """The runs in a folder. Bundles hold none."""
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
        inside = [f for f in folder.iterdir() if f.is_dir() and not f.name.startswith(".")]
        inside.sort(key=_rank)
    except OSError as error:
        raise RunFolderError(f"cannot look into {folder}: {why(error)}") from None
    return [place for subfolder in inside for place in _find(subfolder, depth - 1)]


def _rank(folder: Path) -> tuple[str, str]:
    """Sorts folders by name, numbers by size: r2 is before r10."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(255), folder.name), folder.name


def _entry(name: str, folder: Path, study: str, label: str) -> Entry:
    try:
        record = read_run(folder)
    except OutlastError as error:
        return Entry(name, folder, study, label or folder.name, None, str(error))
    words = " ".join((label or record.label).split())
    return Entry(name, folder, study, words or folder.name, record)


def _ids(depths: dict[Path, int]) -> dict[Path, str]:
    """Short names for addresses and files: the last parts of each path, at least so many.

    Paths that end alike get more parts, whatever their order: an old link never opens another run.
    """
    depths = dict(depths)
    while True:
        ends = {path: path.parts[-depth:] for path, depth in depths.items()}
        uses = Counter(ends.values())
        if len(uses) == len(ends):
            break
        depths = {path: depths[path] + (uses[end] > 1) for path, end in ends.items()}
    names = {path: _name(end) for path, end in ends.items()}
    uses_of_names = Counter(names.values())
    return {
        path: name
        if uses_of_names[name] == 1
        else f"{name}-{crc32('/'.join(ends[path]).encode()):08x}"
        for path, name in names.items()
    }


def _name(parts: Sequence[str]) -> str:
    """Parts of a path as one word, without the signs that addresses and files do not take."""
    return "--".join(re.sub(r"[^A-Za-z0-9_.]+", "-", p) for p in parts).lstrip(".") or "run"


def _with_distinct_labels(entries: list[Entry]) -> list[Entry]:
    """A label that two runs of one study share gets the run's id behind it."""
    uses = Counter((entry.study, entry.label) for entry in entries)
    return [
        entry
        if uses[entry.study, entry.label] == 1
        else replace(entry, label=f"{entry.label} ({entry.id})")
        for entry in entries
    ]
