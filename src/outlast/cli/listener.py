"""What the console shows of runs that are trained and tested: what train and resume share."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from outlast.cli.common import console, say, wrapped
from outlast.cli.exit_codes import STOPPED
from outlast.cli.results import command, show_results
from outlast.errors import TrainingError
from outlast.runs.folder import CHECKPOINT, RESULTS, has_file
from outlast.runs.records import ResultRow, read_run
from outlast.runs.spec import seed_words
from outlast.runs.status import finished, own_state
from outlast.train.run_state import Progress
from outlast.workflow.progress import progress
from outlast.workflow.train import Listener, Outcome

if TYPE_CHECKING:
    from outlast.trackers.tracking import Tracking


class ConsoleListener(Listener):
    """Shows progress and accuracies; afterwards `exit_code` is what a verb returns.

    `named` is what a user names to get at all of the runs: their folders, or that of their grid.
    `typed` are the task and the model as the user typed them. Runs without them are resumed: the
    task and the model are then those on record, and the step that each run goes on from is said.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        named: Sequence[Path],
        typed: tuple[str, str] | None = None,
    ) -> None:
        self.folders, self.named, self.typed = folders, named, typed
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
            say(f"stopped while testing; finish it with: {command('resume', self.named)}")
            self.exit_code = STOPPED
            return True
        if error is None and not self.exit_code:
            self._conclude()
        return False

    def starting(self, folders: Sequence[Path], device: torch.device) -> None:
        record = read_run(folders[0])
        on_record = record.shown or record  # older records have the long form alone
        task, model = self.typed or (on_record.task, on_record.model)
        seeds = _seeds({folder: self.names[folder] for folder in folders})
        say(wrapped(f"{model}  ({record.parameters:,} parameters)\non {task}, {seeds}, {device}"))
        for folder in folders if self.typed else ():
            if (start := read_run(folder).start_from) is not None:
                name = f"{self.names[folder]}: " if len(self.folders) > 1 else ""
                say(wrapped(f"{name}starts from the weights of {start}"))
        for folder in () if self.typed else folders:
            name = f"{self.names[folder]}: " if len(self.folders) > 1 else ""
            say(wrapped(f"{name}{resume_point(folder)}"))
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
            say(f"saved; go on with: {command('resume', self.named)}")
            self.exit_code = STOPPED
            return
        for folder in folders:
            if folder not in self.new_results:  # training drops results of what it changes
                self._head(folder)
                again = command("eval", [folder])
                state = "diverged on every seed" if self.failures[folder] else "finished"
                say(f"{state} and tested: {folder / RESULTS} (to test it again: {again})")

    def _head(self, folder: Path) -> None:
        if len(self.folders) > 1:
            say(f"\n{self.names[folder]}")

    def _conclude(self) -> None:
        """Where to look next, and which runs have diverged; if all have, that is an error."""
        diverged = {folder: error for folder, error in self.failures.items() if error is not None}
        if diverged and len(diverged) == len(self.folders):
            raise TrainingError("\n".join(map(str, diverged.values())))
        if len(self.folders) > 1:
            say(f"\na page of all of them: {command('report', self.named)}")
        for folder, error in diverged.items():
            say(f"diverged: {self.names[folder]}: {error}")


def tracked(lines: Sequence[str]) -> list[Tracking]:
    """The listener that feeds trackers, if there are any; one that cannot work is an error."""
    if not lines:
        return []
    from outlast.trackers.tracking import Tracking

    return [Tracking(lines, say)]


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


def resume_point(folder: Path) -> str:
    """From which step a run goes on: ``goes on from step 500 of 2,000; seed 1 was parked``."""
    record = read_run(folder)
    steps = record.settings.steps
    if not has_file(folder, CHECKPOINT):
        return f"starts from step 0 of {steps:,}: it has no checkpoint yet"
    state = own_state(folder)
    resting = [
        f"; seed{'s' * (len(seeds) > 1)} {seed_words(seeds)} {word} and will rest"
        for word, since in (("diverged", state.parked), ("succeeded", state.succeeded))
        if (seeds := tuple(s for s, at in zip(record.seeds, since, strict=True) if at is not None))
    ]
    if None not in state.parked:
        return f"has ended: every seed diverged by step {state.step:,} of {steps:,}"
    if finished(folder):
        return f"is trained: step {state.step:,} of {steps:,}"
    return f"goes on from step {state.step:,} of {steps:,}{''.join(resting)}"
