"""The run folder: the only thing that passes from training to everything after it.

::

    run/
      run.json                 what was run: task, model, methods, seeds, settings, versions
      metrics.jsonl            a line a seed and look: losses, probes, events
      checkpoint.safetensors   weights, optimiser and method states; enough to go on
      results.json             accuracy by length, once evaluated
      results-before.json      a fuller test of the same weights, if a smaller one has replaced it

Everything is readable by hand and written atomically; nothing in it is ever executed. The folder of
a grid is one with the folders of its runs in it.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from outlast.errors import RunFolderError

FORMAT = 1
RUN, METRICS, CHECKPOINT, RESULTS = (
    "run.json",
    "metrics.jsonl",
    "checkpoint.safetensors",
    "results.json",
)
#: results that were fuller than those that have replaced them
BEFORE = "results-before.json"
#: marks the folder of a whole study, in which each arm has a run folder
STUDY = "study.json"


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Write beside, flush to disk, then rename: a reader sees the old file or the new one."""
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise RunFolderError(
            f"cannot write {path}: {error.strerror or error}; what was there before is untouched"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """A file that could not be written is an error before the work whose result it is to hold."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror or error}") from None


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    write_atomically(path, lambda temporary: _put(temporary, data))


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically, one that a person can read."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def _put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON object, or say which file is damaged and where."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunFolderError(f"{path.parent} has no {path.name}: it is not {what}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RunFolderError(f"cannot read {path}: {error}") from None
    if not isinstance(value, dict):
        raise RunFolderError(f"cannot read {path}: expected a JSON object")
    if value.get("format") != FORMAT:
        raise RunFolderError(
            f"cannot read {path}: its format is {value.get('format')!r}, "
            f"this version of outlast reads format {FORMAT}"
        )
    return value


def read_run(folder: Path) -> dict[str, Any]:
    """What was run, as `run.json` says."""
    return read_json(folder / RUN, "a run folder")


def run_folders(folder: Path) -> list[Path]:
    """The runs that a folder stands for: itself if it is one, else those of the grid it holds."""
    if (folder / RUN).exists():
        return [folder]
    if (folder / STUDY).exists():
        command = read_json(folder / STUDY, "a study").get("command")
        raise RunFolderError(
            f"{folder} is a whole study: go on with it by {command!r}, or name the folder of an arm"
        )
    found = grid_runs(folder)
    if not found:
        inside = ", and none of the folders in it is" if folder.is_dir() else ""
        raise RunFolderError(f"{folder} has no {RUN}: it is not a run folder{inside}")
    return found


def grid_runs(folder: Path) -> list[Path]:
    """The runs in a folder, if any: as they were begun together, which their records say."""
    records = {path.parent.name: read_run(path.parent) for path in sorted(folder.glob(f"*/{RUN}"))}
    order: dict[str, None] = {}
    for name, record in records.items():
        pack = record.get("pack")
        order |= dict.fromkeys([*(pack if isinstance(pack, list) else []), name])
    return [folder / name for name in order if name in records]


def packs_of(folders: Iterable[Path]) -> list[list[Path]]:
    """Runs with those they were begun with, in that order: a folder may hold several grids.

    One that its own record does not name there stands alone: it was copied or renamed.
    """
    found: dict[tuple[str, ...], list[Path]] = {}
    for folder in folders:
        pack = read_run(folder).get("pack")
        key = tuple(pack) if isinstance(pack, list) else ()
        if key and folder.name not in key:
            key = (folder.name,)
        found.setdefault(key, []).append(folder)
    return [
        sorted(own, key=lambda folder: pack.index(folder.name) if pack else -1)
        for pack, own in found.items()
    ]


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Every line of the metrics; a last line cut short by a kill is left out."""
    path = folder / METRICS
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror}") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            if number == len(lines):
                break
            value = None
        if not isinstance(value, dict) or not isinstance(value.get("step"), int):
            raise RunFolderError(f"cannot read {path}: line {number} is damaged")
        found.append(value)
    return found


def append_metrics(folder: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Add lines to the metrics."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    try:
        with (folder / METRICS).open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise RunFolderError(f"cannot write {folder / METRICS}: {error.strerror}") from error


def cut_metrics(folder: Path, step: int) -> None:
    """Take back what was written after `step`: it will be written again."""
    kept = [line for line in read_metrics(folder) if line["step"] <= step]
    write_text(folder / METRICS, "".join(json.dumps(line) + "\n" for line in kept))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for this process; a second one gets a clear error. Ends with the process."""
    import fcntl

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("a+")
    except OSError as error:
        raise RunFolderError(f"cannot use {folder} as a run folder: {error.strerror}") from None
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            owner = file.read().strip() or "another process"
            raise RunFolderError(f"{folder} is in use by {owner}; wait for it or stop it") from None
        with suppress(OSError):  # who it is matters only to a reader; the lock holds on a full disk
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), f"process {os.getpid()}".encode())
        # what a process killed while writing left behind
        for name in (RUN, METRICS, CHECKPOINT, RESULTS, BEFORE):
            for left in folder.glob(f".{name}.*"):
                left.unlink(missing_ok=True)
        yield
