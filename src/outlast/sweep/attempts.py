"""Attempts at a pack: each has a folder of its own, and one atomic claim decides which is recorded.

A worker that was given up for lost may still finish beside the one that took its place. So no two
processes ever write to one folder. Whoever has finished renames its folder to that of the pack's
claim. Only the first can: a folder with files in it is never replaced. The runs then move from
there to their place, also if whoever does it is killed half-way and another goes on.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from outlast.errors import RunFolderError
from outlast.runs.folder import (
    CHECKPOINT,
    KEPT,
    METRICS,
    RUN,
    has_file,
    kept_files,
    why,
    write_json,
)
from outlast.runs.status import own_state

#: the folder of what is not yet in its place, in the folder of a sweep
HIDDEN = ".sweep"
CLAIMED, ATTEMPTS = "claimed", "attempts"
#: in the folder of a claim: who made it. It stays, so that nobody claims the pack again
CLAIM = "claim.json"
#: in the folder of an attempt: how far it is
PROGRESS = "progress.json"


@dataclass(frozen=True)
class PackFolder:
    """Where the runs of a pack go: `out` is the folder of the sweep, `names` are its runs'."""

    out: Path
    pack: str
    names: tuple[str, ...]

    @property
    def claim(self) -> Path:
        return self.out / HIDDEN / CLAIMED / self.pack

    @property
    def attempts(self) -> Path:
        return self.out / HIDDEN / ATTEMPTS / self.pack

    @property
    def claimed(self) -> bool:
        """Whether an attempt has finished."""
        return has_file(self.claim, CLAIM)

    def begin(self) -> Path:
        """A new folder for an attempt; it goes on from the checkpoints of the furthest one before.

        Those are copied: whoever wrote them may still be at work.
        """
        folder = self.attempts / f"{platform.node()}-{os.getpid()}-{uuid4().hex[:8]}"
        earlier = max(self._others(), key=self._steps, default=None)
        try:
            folder.mkdir(parents=True)
            if earlier is not None and self._steps(earlier) > 0:
                self._copy(earlier, folder)
        except OSError as error:
            raise RunFolderError(f"cannot use {folder}: {why(error)}") from None
        return folder

    def finish(self, folder: Path) -> bool:
        """Claim the pack for a finished attempt; False if another was first."""
        (folder / PROGRESS).unlink(missing_ok=True)
        write_json(folder / CLAIM, {"host": platform.node(), "process": os.getpid()})
        self.claim.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.rename(self.claim)
        except OSError as error:
            if not self.claimed:
                raise RunFolderError(f"cannot record {folder}: {why(error)}") from None
            shutil.rmtree(folder, ignore_errors=True)
            return False
        return True

    def record(self) -> None:
        """Move the runs of the claim to their place, and delete what other attempts have left."""
        for name in self.names:
            source, target = self.claim / name, self.out / name
            if source.is_dir():
                try:
                    source.rename(target)
                except OSError as error:
                    raise RunFolderError(f"cannot record {target}: {why(error)}") from None
            elif not has_file(target, RUN):
                raise RunFolderError(
                    f"{target} was trained by this sweep and is gone: put it back, or delete "
                    f"{self.claim} and the other runs of its pack ({', '.join(self.names)}) to "
                    f"train them again"
                )
        shutil.rmtree(self.attempts, ignore_errors=True)

    def require_free(self) -> None:
        """Raise if a run is in the place of one that is still to be trained."""
        for name in self.names:
            if (self.out / name).exists():
                raise RunFolderError(
                    f"{self.out / name} is there already, and this sweep did not make it: choose "
                    f"another --out, or delete it"
                )

    def _copy(self, earlier: Path, folder: Path) -> None:
        """Copy all runs of an attempt, or none: it may be recorded and gone at any moment."""
        try:
            for name in self.names:
                _copy_run(earlier / name, folder / name)
        except FileNotFoundError:
            for name in self.names:
                shutil.rmtree(folder / name, ignore_errors=True)

    def _others(self) -> list[Path]:
        with suppress(OSError):
            return sorted(path for path in self.attempts.iterdir() if path.is_dir())
        return []

    def _steps(self, folder: Path) -> int:
        """The steps of all runs of an attempt together; 0 if one of them has no record."""
        return sum(steps_of(folder, self.names))


def steps_of(folder: Path, names: Sequence[str]) -> list[int]:
    """The step of the checkpoint of each run in an attempt; all 0 if one has no record."""
    try:
        if not all(has_file(folder / name, RUN) for name in names):
            return [0] * len(names)
        return [
            own_state(folder / name).step if has_file(folder / name, CHECKPOINT) else 0
            for name in names
        ]
    except RunFolderError:  # deleted meanwhile, or damaged: nothing to go on from
        return [0] * len(names)


def _copy_run(source: Path, target: Path) -> None:
    """Copy a run that may still be written. What is past the checkpoint is cut when it goes on.

    The record is copied last: if the copy is killed half-way, it has none, and no steps.
    """
    target.mkdir()
    if has_file(source, CHECKPOINT):
        for name in (CHECKPOINT, METRICS):  # in this order: the metrics are never behind
            shutil.copyfile(source / name, target / name)
        for path in kept_files(source).values():
            (target / KEPT).mkdir(exist_ok=True)
            shutil.copyfile(path, target / KEPT / path.name)
    shutil.copyfile(source / RUN, target / RUN)
