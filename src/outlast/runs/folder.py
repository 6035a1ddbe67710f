"""Files of a run folder: their names, atomic writes, and the lock."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from outlast.errors import RunFolderError

RUN = "run.json"
METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint.safetensors"
RESULTS = "results.json"
#: results that were larger than those that replaced them
PREVIOUS_RESULTS = "results-before.json"
#: marks the folder of a study, in which each arm has a run folder
STUDY = "study.json"
LOCK = ".lock"


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
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
    """Raise if a file could not be written: before the work whose result it is to hold."""
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
    write_atomically(path, lambda temporary: temporary.write_bytes(data))


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically, one that a person can read."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def require_free_folder(
    folder: Path,
    overwrite: bool = False,
    way_out: str = ", start anew with --overwrite,",
    resume: Path | None = None,
) -> None:
    """Raise if a folder holds a run, or what is left of one, unless it is to be overwritten.

    A folder that holds a grid or a study is refused also with `overwrite`: the run would hide it.
    `way_out` is one more thing the error advises; `resume` is the folder to resume, if it is not
    this one: that of its grid.
    """
    try:
        files = [n for n in (RUN, METRICS, CHECKPOINT, RESULTS) if (folder / n).exists()]
        inside = [f"other runs, such as {path.parent.name}" for path in folder.glob(f"*/{RUN}")]
        hidden = "a study" if (folder / STUDY).exists() else min(inside, default="")
    except OSError as error:  # a name that is too long, among others
        raise RunFolderError(f"cannot use {folder} as a run folder: {error.strerror}") from None
    if hidden and RUN not in files:
        raise RunFolderError(f"{folder} holds {hidden}; a run would hide it: choose another --out")
    if files and not overwrite:
        raise RunFolderError(
            f"{folder} holds a run already: go on with 'outlast resume {resume or folder}'"
            f"{way_out} or choose another --out"
        )


def remove_outcomes(folder: Path) -> None:
    """Delete all that a run has come to, so that it can start anew.

    In this order: a kill in between leaves a run that can be resumed.
    """
    for name in (PREVIOUS_RESULTS, RESULTS, METRICS, CHECKPOINT):
        (folder / name).unlink(missing_ok=True)


def remove_results(folder: Path) -> None:
    """Delete the results: a test of what a run is now is not one of what it becomes."""
    for name in (PREVIOUS_RESULTS, RESULTS):
        (folder / name).unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for this process; a second process gets a clear error.

    The lock ends with the process, however that ends.
    """
    path = folder / LOCK
    lock = FileLock(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        owner = path.read_text(errors="replace").strip() or "another process"
        raise RunFolderError(f"{folder} is in use by {owner}; wait for it or stop it") from None
    except OSError as error:
        raise RunFolderError(f"cannot use {folder} as a run folder: {error.strerror}") from None
    try:
        with suppress(OSError):  # only a reader needs it; the lock also holds on a full disk
            path.write_text(f"process {os.getpid()}")
        _remove_temporaries(folder)
        yield
    finally:
        lock.release()


def _remove_temporaries(folder: Path) -> None:
    """Delete what a process that was killed while writing left behind."""
    for name in (RUN, METRICS, CHECKPOINT, RESULTS, PREVIOUS_RESULTS):
        for path in folder.glob(f".{name}.*"):
            path.unlink(missing_ok=True)
