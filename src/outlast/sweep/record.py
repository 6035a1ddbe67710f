"""`sweep.json`: what is swept in a folder. The same sweep goes on; another one is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from outlast.errors import RunFolderError, shortened
from outlast.runs.folder import (
    RUN,
    STUDY,
    SWEEP,
    has_file,
    locked,
    require_new_name,
    write_json,
)
from outlast.runs.reading import FORMAT, checked, read_object
from outlast.runs.spec import CHANGEABLE, RunSpec
from outlast.sweep.packs import CPU_SEEDS, GPU_SEEDS


class SweepRecord(Struct, frozen=True, kw_only=True):
    """What decides the runs of a sweep and how they are cut into packs."""

    format: int = FORMAT
    #: what all runs share, written out
    run: dict[str, Any]
    axes: tuple[str, ...] = ()
    random: int | None = None
    search_seed: int = 0
    #: how it is searched by successive halving, if it is
    halving: str | None = None
    #: the most seeds of a pack, and the threads that each has on a CPU
    pack_seeds: int
    threads: int = 1
    lengths: tuple[float, ...]
    #: None is the number of the task
    sequences: int | None = None
    precision: str = "fp32"

    def differences(self, other: SweepRecord) -> list[str]:
        """What two sweeps do not share: ``axes=lr=0.1,0.2, not lr=0.1``."""
        mine, theirs = (
            {n: v for n, v in msgspec.to_builtins(record).items() if n not in ("run", "format")}
            | record.run
            for record in (self, other)
        )
        return [
            f"{name}={_written(mine.get(name))}, not {_written(theirs.get(name))}"
            for name in {**mine, **theirs}
            if mine.get(name) != theirs.get(name)
        ]


def _written(value: Any) -> str:
    if isinstance(value, list | tuple):
        return shortened(" ".join(map(str, value)) or "none", 100)
    return "none" if value is None else shortened(value, 100)


def shared_by_all(run: RunSpec) -> dict[str, Any]:
    """What `SweepRecord.run` holds; how a run is stepped and saved may change when it goes on."""
    settings = {n: v for n, v in asdict(run.settings).items() if n not in CHANGEABLE}
    values = {"task": run.task, "model": run.model, "methods": list(run.methods)}
    return values | {"seeds": list(run.seeds), "label": run.label} | settings


def read_sweep(folder: Path) -> SweepRecord:
    """The record of a sweep."""
    return checked(read_object(folder / SWEEP, "a sweep"), SweepRecord, folder / SWEEP)


def usual_pack_seeds(out: Path, on_gpus: bool) -> int:
    """The most seeds of a pack, if nobody says: as on record for a sweep that goes on."""
    require_new_name(out)
    if has_file(out, SWEEP):
        return read_sweep(out).pack_seeds
    return GPU_SEEDS if on_gpus else CPU_SEEDS


def check_folder(out: Path, record: SweepRecord) -> None:
    """Refuse a folder that has another sweep, a run or a study in it."""
    require_new_name(out)
    for name, kind in ((RUN, "a run"), (STUDY, "a study")):
        if has_file(out, name):
            raise RunFolderError(f"{out} holds {kind}: choose another --out for a sweep")
    differences = read_sweep(out).differences(record) if has_file(out, SWEEP) else []
    if differences:
        raise RunFolderError(
            f"{out} holds another sweep ({'; '.join(differences)}): give the command of that one "
            f"to go on with it, or choose another --out"
        )


@contextmanager
def open_sweep(
    out: Path, record: SweepRecord, check: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Hold the folder of a sweep for this process, new or to go on with.

    A folder that another process holds, or that has another sweep, a run or a study in it, is an
    error, and nothing in it is touched. `check` raises if something else is in the way.
    """
    check_folder(out, record)
    with locked(out):
        check_folder(out, record)  # another process may have been faster
        check()
        if not has_file(out, SWEEP):
            write_json(out / SWEEP, msgspec.to_builtins(record))
        yield
