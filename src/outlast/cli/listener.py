"""What the console shows of runs that are trained and tested: what train and resume share."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import torch

from outlast.cli.common import accuracy_table, console, say
from outlast.cli.exit_codes import STOPPED
from outlast.errors import TrainingError
from outlast.runs.folder import RESULTS
from outlast.runs.records import ResultRow, read_run
from outlast.runs.spec import seed_words
from outlast.train.run_state import Progress
from outlast.workflow.progress import progress
from outlast.workflow.train import Listener, Outcome


class ConsoleListener(Listener):
    """Shows progress and accuracies; afterwards `exit_code` is what a verb returns.

    `named` is what a user names to get at all of the runs: their folders, or that of their grid.
    """

    def __init__(self, folders: Sequence[Path], named: Sequence[Path]) -> None:
        self.folders, self.named = folders, named
        self.names = _names(folders)
        self.exit_code = 0
        self.is_testing = False
        self.new_results: set[Path] = set()
        self.failures: dict[Path, TrainingError | None] = {}
        self.live = ExitStack()

    def __enter__(self) -> ConsoleListener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        self.live.close()
        if isinstance(error, KeyboardInterrupt) and self.is_testing:
            say(f"stopped while testing; finish it with: {_command('resume', self.named)}")
            self.exit_code = STOPPED
            return True
        if error is None and not self.exit_code:
            self._conclude()
        return False

    def starting(self, folders: Sequence[Path], device: torch.device) -> None:
        record = read_run(folders[0])
        say(
            f"{record.model}  ({record.parameters:,} parameters)\non {record.task}, "
            f"{_seeds({folder: self.names[folder] for folder in folders})}, {device}"
        )
        self.show = self.live.enter_context(progress(console))

    def say(self, words: str) -> None:
        say(words)

    def training(self, folder: Path, progress: Progress) -> None:
        self.show(self.names[folder], progress)

    def testing(self, folder: Path) -> None:
        self.live.close()
        self.is_testing = True
        self._head(folder)
        console.print("testing")

    def tested(self, folder: Path, rows: list[ResultRow]) -> None:
        self.new_results.add(folder)
        show_results(folder, rows)

    def ended(self, folders: Sequence[Path], outcome: Outcome) -> None:
        self.live.close()
        self.is_testing = False
        self.failures |= zip(folders, outcome.failures, strict=True)
        if not outcome.ended:
            say(f"saved; go on with: {_command('resume', self.named)}")
            self.exit_code = STOPPED
            return
        for folder in folders:
            if folder not in self.new_results:  # training drops results of what it changes
                self._head(folder)
                again = _command("eval", [folder])
                say(f"finished and tested: {folder / RESULTS} (to test it again: {again})")

    def _head(self, folder: Path) -> None:
        if len(self.folders) > 1:
            say(f"\n{self.names[folder]}")

    def _conclude(self) -> None:
        """Where to look next, and which runs have diverged; if all have, that is an error."""
        diverged = {folder: error for folder, error in self.failures.items() if error is not None}
        if diverged and len(diverged) == len(self.folders):
            raise TrainingError("\n".join(map(str, diverged.values())))
        if len(self.folders) > 1:
            say(f"\na page of all of them: {_command('report', self.named)}")
        for folder, error in diverged.items():
            say(f"diverged: {self.names[folder]}: {error}")


def show_results(folder: Path, rows: Sequence[ResultRow], out: Path | None = None) -> None:
    """The table of accuracy, and where to look next."""
    parts = read_run(folder).parts
    console.print()
    console.print(accuracy_table(rows, parts, "share of sequences with every answer right"))
    parked = {row["seed"]: row["parked"] for row in rows if "parked" in row}
    for seed, step in parked.items():
        say(f"seed {seed} was parked: its loss or a weight was not finite after step {step}")
    succeeded = {row["seed"]: row["succeeded"] for row in rows if "succeeded" in row}
    for seed, step in succeeded.items():
        say(f"seed {seed} succeeded at step {step} and was left as it was then")
    pages = "" if out else f"; a page of pictures: {_command('report', [folder])}"
    say(f"\n{out or folder / RESULTS} has every seed{pages}")


def _command(verb: str, folders: Sequence[Path]) -> str:
    return shlex.join(["outlast", verb, *map(str, folders)])


def _names(folders: Sequence[Path]) -> dict[Path, str]:
    """What each run is called: its folder's name, or the whole path where two share one."""
    names = {folder: folder.resolve().name for folder in folders}
    ambiguous = len(set(names.values())) < len(names)
    return {folder: str(folder) for folder in folders} if ambiguous else names


def _seeds(names: dict[Path, str]) -> str:
    """``seeds 0, 1 each, 2 runs together``, or those of each run where they differ."""
    seeds = [seed_words(read_run(folder).seeds) for folder in names]
    if len(seeds) == 1:
        return f"seeds {seeds[0]}"
    words = f"{seeds[0]} each"
    if len(set(seeds)) > 1:
        pairs = zip(seeds, names.values(), strict=True)
        words = "; ".join(f"{each} ({name})" for each, name in pairs)
    return f"seeds {words}, {len(seeds)} runs together"
