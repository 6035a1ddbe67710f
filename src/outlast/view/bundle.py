"""The page as files to share. What needs a model is computed beforehand, for some sequences."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outlast.errors import OutlastError, RunFolderError, bad_value, require
from outlast.runs.folder import require_new_name, write_bytes
from outlast.view import router, shipped
from outlast.view.library import Library
from outlast.view.router import Router
from outlast.view.sequences import drawn_name

#: marks a folder that a bundle may replace
MARK = router.RUNS
#: the most tokens of a sequence in a bundle: its attention alone takes megabytes
MOST_TOKENS = 2000

Say = Callable[[str], object]


def write_bundle(
    library: Library, folder: Path, lengths: Sequence[float], sequences: int, say: Say
) -> list[str]:
    """Write the page and its data into a folder that is new, empty or holds a bundle.

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
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).is_file():
        raise RunFolderError(f"{folder} is not empty and holds no bundle: choose another folder")
    answer, left_out = Router(library), list[str]()
    for name in sorted(shipped.names() - {shipped.INDEX}):
        write_bytes(folder / "assets" / name, shipped.read(name)[0])
    write_bytes(folder / shipped.INDEX, shipped.read(shipped.INDEX)[0])
    names: dict[str, list[str]] = {}
    readable = [entry for entry in library.entries.values() if entry.record is not None]
    for entry in readable:
        say(f"writing {entry.label}")
        _copy(answer, folder, router.RUN.format(run=entry.id))
        _copy(answer, folder, router.ANATOMY.format(run=entry.id))
        names[entry.id] = []
        for name in _sequence_names(library, entry.id, lengths, sequences):
            problem = _write_sequence(answer, library, folder, entry.id, name)
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
    answer: Router, library: Library, folder: Path, run: str, name: str
) -> str | None:
    """All that the page asks about a sequence; or why it is left out."""
    record = library.entries[run].record
    seed = record.seeds[0] if record is not None else 0
    try:
        trace: dict[str, Any] = library.sequence(run, seed, name)
    except OutlastError as error:
        return str(error)
    tokens, place = len(trace["words"]), {"run": run, "seed": seed, "name": name}
    if tokens > MOST_TOKENS:
        return f"it has {tokens:,} tokens, and a bundle takes {MOST_TOKENS:,} at most"
    _copy(answer, folder, router.SEQUENCE.format(**place))
    for number in range(math.ceil(tokens / trace["queries"]) if trace["layers"] else 0):
        _copy(answer, folder, router.ATTENTION.format(**place, number=number))
    for number, layer in enumerate(trace["layers"]):
        for head in range(layer["heads"]):
            _copy(answer, folder, router.MAP.format(**place, number=number, head=head))
    return None


def _copy(answer: Router, folder: Path, path: str) -> None:
    """The answer to a path as a file, if it is no error."""
    reply = answer(path)
    if reply.status < 400:
        write_bytes(folder / path, reply.body)
