"""Files of a run folder: their names, atomic writes, and the lock."""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

from filelock import FileLock, Timeout

from outlast.errors import RunFolderError, bad_value

RUN = "run.json"
METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint.safetensors"
#: the folder of weights that were kept along the way
KEPT, KEPT_DIGITS, KEPT_SUFFIX = "checkpoints", 8, ".safetensors"
#: the folder of the tables of analyses
ANALYSIS = "analysis"
RESULTS = "results.json"
#: results that were larger than those that replaced them
PREVIOUS_RESULTS = "results-before.json"
#: marks the folder of a study, in which each arm has a run folder
STUDY = "study.json"
#: marks the folder of a sweep, in which each run has a run folder
SWEEP = "sweep.json"
#: how each tracker knows the run; see `trackers/`
TRACKERS = "trackers.json"
LOCK = ".lock"
#: marks a folder into which seeds of another run are being copied; see `copying`
COPYING = ".copying"
#: how the name of a file ends while it is written, and how often a file that vanishes is written
TEMPORARY, WRITES = ".tmp", 5


def why(error: OSError) -> str:
    """What the system says went wrong."""
    return error.strerror or str(error)


def is_text(text: str) -> bool:
    """Whether a text can be written: bytes that are not UTF-8 come as surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def require_name(folder: Path) -> None:
    """Raise if the name of a folder cannot be shown or recorded."""
    if not is_text(str(folder)):
        raise RunFolderError(f"cannot use {str(folder)!a}: its name is not in UTF-8")


def require_new_name(out: Path) -> None:
    """Raise if a folder to be made has no name of its own: an empty --out is not meant."""
    require_name(out)
    if out.name in ("", ".."):
        accepted = 'the name of a folder; "" and "." are none; the current folder is ../NAME'
        raise bad_value("out", f'"{out}"', accepted)


def require_regular(path: Path) -> None:
    """Raise if a path is a pipe or a device. Opening one might never end; a folder is an error."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file")


def has_file(folder: Path, name: str) -> bool:
    """Whether a folder has a file. A folder that may not be entered is an error."""
    try:
        return (folder / name).exists()
    except OSError as error:
        raise RunFolderError(f"cannot look into {folder}: {why(error)}") from None


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside, flush to disk, then rename: a reader sees the old file or the new one.

    Half-written files that a killed process left beside it are deleted. One of them may be another
    process's that is at work. That process misses its file, and writes again.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for temporary in path.parent.glob(f".{escape(path.name)}.????????{TEMPORARY}"):
            temporary.unlink(missing_ok=True)
        for attempts_left in reversed(range(WRITES)):
            try:
                _write_and_rename(path, write)
                return
            except FileNotFoundError:
                if not attempts_left:
                    raise
    except OSError as error:
        raise RunFolderError(
            f"cannot write {path}: {why(error)}; what was there before is untouched"
        ) from error


def _write_and_rename(path: Path, write: Callable[[Path], object]) -> None:
    temporary = _new_file_beside(path)
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _new_file_beside(path: Path) -> Path:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=TEMPORARY, dir=path.parent)
    os.close(handle)
    return Path(name)


def check_writable(path: Path) -> None:
    """Raise if a file could not be written: before the work whose result it is to hold."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        _new_file_beside(path).unlink(missing_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {why(error)}") from None
    except ValueError as error:  # a NUL in its name
        raise RunFolderError(f"cannot write {str(path)!a}: {error}") from None


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
    way_out: str = ", start anew with --overwrite (in Python overwrite=True),",
    resume: Path | None = None,
) -> None:
    """Raise if a folder holds a run, or what is left of one, unless it is to be overwritten.

    A folder that holds a grid, a study or a sweep is refused also with `overwrite`: the run would
    hide it.
    `way_out` is one more thing the error advises; `resume` is the folder to resume, if it is not
    this one: that of its grid.
    """
    require_new_name(folder)
    try:
        files = [n for n in (RUN, METRICS, CHECKPOINT, RESULTS) if (folder / n).exists()]
        if RUN not in files and (folder / COPYING).exists():
            files = []  # a copy that was killed; `locked` deletes it
        inside = [f"other runs, such as {path.parent.name}" for path in folder.glob(f"*/{RUN}")]
        kinds = ((STUDY, "a study"), (SWEEP, "a sweep"))
        held = [words for name, words in kinds if (folder / name).exists()]
        hidden = (held or sorted(inside) or [""])[0]
    except OSError as error:  # a name that is too long, among others
        raise RunFolderError(f"cannot use {folder} as a run folder: {why(error)}") from None
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
    for name in (PREVIOUS_RESULTS, RESULTS, METRICS, CHECKPOINT, TRACKERS):
        (folder / name).unlink(missing_ok=True)
    for path in (*kept_files(folder).values(), *(folder / ANALYSIS).glob("*.json")):
        path.unlink()
    for inside in (KEPT, ANALYSIS):
        with suppress(OSError):  # there is none, or something else is in it
            (folder / inside).rmdir()


def kept_files(folder: Path) -> dict[int, Path]:
    """The files of weights that were kept, by their step."""
    pattern = f"{KEPT}/{'[0-9]' * KEPT_DIGITS}*{KEPT_SUFFIX}"
    paths = [path for path in folder.glob(pattern) if path.stem.isdecimal()]
    return {int(path.stem): path for path in sorted(paths)}


def cut_kept(folder: Path, step: int) -> None:
    """Take back what was kept of later steps: it will be kept again."""
    for later, path in kept_files(folder).items():
        if later > step:
            path.unlink()


def kept_file(folder: Path, step: int) -> Path:
    """The file of the weights that are kept of a step."""
    return folder / KEPT / f"{step:0{KEPT_DIGITS}d}{KEPT_SUFFIX}"


def remove_results(folder: Path) -> None:
    """Delete the results: a test of what a run is now is not one of what it becomes."""
    for name in (PREVIOUS_RESULTS, RESULTS):
        (folder / name).unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for this process; a second process gets a clear error.

    The lock ends with the process, however that ends. A folder that was made for the lock, and in
    which nothing was written, is deleted again.
    """
    path = folder / LOCK
    lock = FileLock(path)
    new: list[Path] = []
    try:
        new = [f for f in (folder, *folder.parents) if not f.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            require_regular(path)
        lock.acquire(blocking=False)
    except Timeout:
        owner = path.read_text(errors="replace").strip() or "another process"
        raise RunFolderError(f"{folder} is in use by {owner}; wait for it or stop it") from None
    except OSError as error:
        raise RunFolderError(f"cannot use {folder} as a run folder: {why(error)}") from None
    try:
        with suppress(OSError):  # only a reader needs it; the lock also holds on a full disk
            path.write_text(f"process {os.getpid()}")
        _remove_leftovers(folder)
        yield
    finally:
        with suppress(OSError):  # it may be deleted, or another process may use it by now
            if new and [file.name for file in folder.iterdir()] == [LOCK]:
                path.unlink()
                for empty in new:
                    empty.rmdir()
        lock.release()


@contextmanager
def copying(folder: Path) -> Iterator[None]:
    """Write a run folder from parts of another, whole or not at all; the folder is locked.

    A mark stands in the folder meanwhile. If the process is killed, whoever locks the folder next
    deletes the parts.
    """
    mark = folder / COPYING
    try:
        write_text(mark, "")
        yield
    finally:
        _remove_leftovers(folder)


def _remove_leftovers(folder: Path) -> None:
    """Delete what a process that was killed while writing left behind."""
    if (folder / COPYING).exists():
        if not (folder / RUN).exists():  # the record is written last
            remove_outcomes(folder)
        (folder / COPYING).unlink()
    for name in (RUN, METRICS, CHECKPOINT, RESULTS, PREVIOUS_RESULTS, COPYING):
        for path in folder.glob(f".{name}.*"):
            path.unlink(missing_ok=True)
    for path in folder.glob(f"{KEPT}/.*{KEPT_SUFFIX}.*{TEMPORARY}"):
        path.unlink(missing_ok=True)
