"""The page as files to share. What needs a model is computed beforehand, for some sequences."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outlast.errors import OutlastError, RunFolderError, bad_value, require
from outlast.runs.folder import TEMPORARY, require_new_name, why, write_bytes
from outlast.view import router, shipped
from outlast.view.catalogue import Entry, is_bundle
from outlast.view.library import Library
from outlast.view.router import Router
from outlast.view.sequences import drawn_name

#: what a bundle consists of
DATA, ASSETS = "data", "assets"
#: the most tokens of a sequence in a bundle: its attention alone takes megabytes
MOST_TOKENS = 2000

Say = Callable[[str], object]


def write_bundle(
    library: Library, folder: Path, lengths: Sequence[float], sequences: int, say: Say
) -> list[str]:
    """Write the page and its data into a folder that is new, empty or holds a bundle.

    All is written beside it first, and takes the place of the old bundle at the end. Other files in
    the folder stay.

    Args:
        library: The runs.
        folder: Where to write.
        lengths: Multiples of the training length of the sequences to compute.
        sequences: How many of each length; the first seed of each run reads them.
        say: Is told what is written.

    Returns:
        What was left out, and why.
    """
    require_new_name(folder)
    require(sequences >= 0, "sequences", sequences, "a whole number >= 0")
    require(all(x > 0 for x in lengths), "lengths", lengths, "multiples of the training length")
    if folder.exists() and not folder.is_dir():
        raise bad_value("bundle", folder, "a folder")
    if folder.is_dir() and any(folder.iterdir()) and not is_bundle(folder):
        raise RunFolderError(f"{folder} is not empty and holds no bundle: choose another folder")
    place = folder.resolve()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{place.name}.", suffix=TEMPORARY, dir=place.parent
        ) as temporary:
            new = Path(temporary, "new")
            left_out = _write_all(library, new, lengths, sequences, say)
            _swap(new, place, Path(temporary))
    except OSError as error:
        raise RunFolderError(f"cannot write {folder}: {why(error)}") from None
    return left_out


def _swap(new: Path, place: Path, old: Path) -> None:
    """Move the parts of a new bundle to their place, and those that are there out of the way."""
    place.mkdir(exist_ok=True)
    for name in (ASSETS, DATA, shipped.INDEX):
        if (place / name).exists():
            (place / name).rename(old / name)
        (new / name).rename(place / name)


def _write_all(
    library: Library, folder: Path, lengths: Sequence[float], sequences: int, say: Say
) -> list[str]:
    """Write the files of a bundle; what was left out, and why."""
    answer, left_out = Router(library), list[str]()
    for name in sorted(shipped.names() - {shipped.INDEX}):
        write_bytes(folder / ASSETS / name, shipped.read(name)[0])
    write_bytes(folder / shipped.INDEX, shipped.read(shipped.INDEX)[0])
    names: dict[str, list[str]] = {}
    readable = [entry for entry in library.entries.values() if entry.record is not None]
    for entry in readable:
        say(f"writing {entry.label}")
        for path in (router.RUN, router.ANATOMY):
            problem = _copy(answer, folder, path.format(run=entry.id))
            if problem is not None:
                left_out.append(f"{entry.label}: {problem}")
        names[entry.id] = []
        for name in _sequence_names(library, entry.id, lengths, sequences):
            problem = _write_sequence(answer, library, folder, entry, name)
            if problem is None:
                names[entry.id].append(name)
            else:
                left_out.append(f"{entry.label}, {name}: {problem}")
    runs = [entry.describe() for entry in readable]
    about = library.runs() | {"live": False, "runs": runs, "sequences": names}
    write_bytes(folder / router.RUNS, json.dumps(about, allow_nan=False).encode())
    return left_out


def _sequence_names(
    library: Library, run: str, lengths: Sequence[float], sequences: int
) -> list[str]:
    """The sequences of a run that are computed; none where nothing was trained."""
    record = library.entries[run].record
    if record is None or not library.entries[run].describe()["trained"]:
        return []
    wanted = [max(1, round(record.length * multiple)) for multiple in lengths]
    return [drawn_name(length, index) for length in wanted for index in range(sequences)]


def _write_sequence(
    answer: Router, library: Library, folder: Path, entry: Entry, name: str
) -> str | None:
    """All that the page asks about a sequence; or why it is left out."""
    seed = entry.record.seeds[0] if entry.record is not None else 0
    try:
        trace: dict[str, Any] = library.sequence(entry.id, seed, name)
    except OutlastError as error:
        return str(error)
    tokens, place = len(trace["words"]), {"run": entry.id, "seed": seed, "name": name}
    if tokens > MOST_TOKENS:
        return f"it has {tokens:,} tokens, and a bundle takes {MOST_TOKENS:,} at most"
    chunks = math.ceil(tokens / trace["queries"]) if trace["layers"] else 0
    paths = [router.SEQUENCE.format(**place)]
    paths += [router.ATTENTION.format(**place, number=number) for number in range(chunks)]
    paths += [
        router.MAP.format(**place, number=number, head=head)
        for number, layer in enumerate(trace["layers"])
        for head in range(layer["heads"])
    ]
    problems = (_copy(answer, folder, path) for path in paths)
    return next((problem for problem in problems if problem is not None), None)


def _copy(answer: Router, folder: Path, path: str) -> str | None:
    """Write the answer to a path as a file; an error is not written but returned, in words."""
    reply = answer(path)
    if reply.status >= 400:
        return str(json.loads(reply.body)["error"])
    write_bytes(folder / path, reply.body)
    return None
