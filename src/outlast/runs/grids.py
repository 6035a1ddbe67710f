"""Grids: folders with run folders in them, and which runs were created together."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from outlast.errors import RunFolderError
from outlast.runs.folder import RUN, STUDY, SWEEP, has_file, require_name, why
from outlast.runs.records import read_run
from outlast.runs.study import read_study


def run_folders(folder: Path, of_studies: bool = False, with_damaged: bool = False) -> list[Path]:
    """The runs that a folder stands for: itself if it is one, else those of the grid it holds.

    `of_studies`: the folder of a study stands for the arms that are there. Else it is refused.
    `with_damaged` is that of `grid_runs`.
    """
    require_name(folder)
    if has_file(folder, RUN):
        return [folder]
    if of_studies and has_file(folder, STUDY):
        arms = [folder / arm.name for arm in read_study(folder).arms]
        runs = [arm for arm in arms if has_file(arm, RUN)]
        if not runs:
            raise RunFolderError(f"{folder} is a study without a run: none of its arms has {RUN}")
        return runs
    if has_file(folder, STUDY):
        command = read_study(folder).command
        raise RunFolderError(
            f"{folder} is a whole study: go on with it by {command!r}, or name the folder of an arm"
        )
    folders = grid_runs(folder, with_damaged)
    if not folders and has_file(folder, SWEEP):
        raise no_runs_of_sweep(folder)
    if not folders:
        if not folder.exists():
            raise RunFolderError(f"{folder} does not exist: expected the folder of a run")
        inside = ", and none of the folders in it is" if folder.is_dir() else ""
        raise RunFolderError(f"{folder} has no {RUN}: it is not a run folder{inside}")
    return folders


def no_runs_of_sweep(folder: Path) -> RunFolderError:
    """Why there is no run in the folder of a sweep itself, and what to do."""
    rounds = [str(path) for path in sorted(folder.glob("round*")) if grid_runs(path)]
    if rounds:
        words = f"a sweep by halving, whose runs are in {', '.join(rounds)}: give one of these"
    else:
        words = "a sweep with no recorded run yet: the command of the sweep goes on with it"
    return RunFolderError(f"{folder}: {words}")


def grid_runs(folder: Path, with_damaged: bool = False) -> list[Path]:
    """The runs in a folder, if any, in the order in which they were created.

    A run that was created with others, and whose folder is there without a record, is an error: its
    creation was killed. So is a record that cannot be read. `with_damaged`: such runs are among the
    others, for a caller that takes one run after the other. A run whose folder is gone was deleted.
    """
    require_name(folder)
    try:
        os.scandir(folder).close()  # glob takes a folder that may not be read for an empty one
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RunFolderError(f"cannot look into {folder}: {why(error)}") from None
    names, order = [path.parent.name for path in sorted(folder.glob(f"*/{RUN}"))], dict[str, None]()
    for name in names:
        try:
            order |= dict.fromkeys([*read_run(folder / name).pack, name])
        except RunFolderError:
            if not with_damaged:
                raise
    order |= dict.fromkeys(names)
    killed = [
        name
        for name in order
        if name not in names and (folder / name).is_dir() and not has_file(folder / name, RUN)
    ]
    if killed and not with_damaged:
        raise RunFolderError(
            f"{folder / killed[0]} has no {RUN}, though it is a run of this grid: the command that "
            f"made the grid was killed. Give it again with --overwrite, or delete "
            f"{folder / killed[0]} to go on without that run"
        )
    return [folder / name for name in order if name in (*names, *killed)]


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
