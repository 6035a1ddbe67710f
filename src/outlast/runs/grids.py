"""Grids: folders with run folders in them, and which runs were created together."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from outlast.errors import RunFolderError
from outlast.runs.folder import RUN, STUDY
from outlast.runs.records import read_run, read_study


def run_folders(folder: Path) -> list[Path]:
    """The runs that a folder stands for: itself if it is one, else those of the grid it holds."""
    if (folder / RUN).exists():
        return [folder]
    if (folder / STUDY).exists():
        command = read_study(folder).command
        raise RunFolderError(
            f"{folder} is a whole study: go on with it by {command!r}, or name the folder of an arm"
        )
    folders = grid_runs(folder)
    if not folders:
        inside = ", and none of the folders in it is" if folder.is_dir() else ""
        raise RunFolderError(f"{folder} has no {RUN}: it is not a run folder{inside}")
    return folders


def grid_runs(folder: Path) -> list[Path]:
    """The runs in a folder, if any, in the order in which they were created."""
    records = {path.parent.name: read_run(path.parent) for path in sorted(folder.glob(f"*/{RUN}"))}
    order: dict[str, None] = {}
    for name, record in records.items():
        order |= dict.fromkeys([*record.pack, name])
    return [folder / name for name in order if name in records]


def packs_of(folders: Iterable[Path]) -> list[list[Path]]:
    """Runs with those they were created with, in that order: a folder may hold several grids.

    A run that its own record does not name stands alone: it was copied or renamed.
    """
    packs: dict[tuple[str, ...], list[Path]] = {}
    for folder in folders:
        pack = read_run(folder).pack
        if pack and folder.name not in pack:
            pack = (folder.name,)
        packs.setdefault(pack, []).append(folder)
    return [
        sorted(runs, key=lambda folder: pack.index(folder.name) if pack else -1)
        for pack, runs in packs.items()
    ]
