"""Training a run folder to its end and testing it, with progress: what train and resume share."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from outlast.cli import STOPPED
from outlast.cli.common import accuracy_table, console, seed_words
from outlast.cli.progress import progress
from outlast.errors import TrainingError
from outlast.evaluation.run import evaluate_run
from outlast.runs import RESULTS, read_run
from outlast.train.session import go_on_together, tested


def train_and_test(
    packs: Sequence[Sequence[Path]], device: torch.device, named: Sequence[Path], **told: Any
) -> int:
    """Go on with runs, those of a pack together, until each is trained and tested.

    `named` is what to name to get at all of them: their folders, or the one of a grid;
    `told` is how they are to be stepped, as `go_on_together` has it.
    """
    folders = [folder for pack in packs for folder in pack]
    names = _names(folders)
    failures: list[TrainingError | None] = []
    for pack in packs:
        ended, found = _train(pack, device, names, told)
        if not ended:
            console.print(
                f"saved; go on with: {_command('resume', named)}", markup=False, soft_wrap=True
            )
            return STOPPED
        failures += found
    try:
        for folder in folders:
            if len(folders) > 1:
                console.print(f"\n{names[folder]}", markup=False, soft_wrap=True)
            _test(folder, device)
    except KeyboardInterrupt:
        words = f"stopped while testing; finish it with: {_command('resume', named)}"
        console.print(words, markup=False, soft_wrap=True)
        return STOPPED
    ends = zip(names.values(), failures, strict=True)
    diverged = {name: failure for name, failure in ends if failure is not None}
    if len(diverged) == len(folders):
        raise TrainingError("\n".join(map(str, diverged.values())))
    if len(folders) > 1:
        page = _command("report", named)
        console.print(f"\na page of all of them: {page}", markup=False, soft_wrap=True)
    for name, failure in diverged.items():
        console.print(f"diverged: {name}: {failure}", markup=False, soft_wrap=True)
    return 0


def _train(
    pack: Sequence[Path], device: torch.device, names: dict[Path, str], told: dict[str, Any]
) -> tuple[bool, list[TrainingError | None]]:
    """Train the runs of a pack together, as `go_on_together` does, with progress."""
    record = read_run(pack[0])
    console.print(
        f"{record['model']}  ({record['parameters']:,} parameters)\non {record['task']}, "
        f"{_seeds({folder: names[folder] for folder in pack})}, {device}",
        markup=False,
        soft_wrap=True,
    )
    with progress(console) as show:
        return go_on_together(
            pack,
            device,
            lambda folder, report: show(names[folder], report),
            lambda words: console.print(words, markup=False, soft_wrap=True),
            **told,
        )


def _test(folder: Path, device: torch.device) -> None:
    """Test a run that is trained, unless it has been."""
    if tested(folder):  # it was at its end before: training drops results of what it changes
        again = _command("eval", [folder])
        words = f"finished and tested: {folder / RESULTS} (to test it again: {again})"
        console.print(words, markup=False, soft_wrap=True)
    else:
        console.print("testing")
        show_results(folder, evaluate_run(folder, device=device))


def _command(verb: str, folders: Sequence[Path]) -> str:
    return shlex.join(["outlast", verb, *map(str, folders)])


def _names(folders: Sequence[Path]) -> dict[Path, str]:
    """What each run is called: its folder's name, or the whole path where two share one."""
    names = {folder: folder.resolve().name for folder in folders}
    alike = len(set(names.values())) < len(names)
    return {folder: str(folder) for folder in folders} if alike else names


def _seeds(names: dict[Path, str]) -> str:
    """``seeds 0, 1 each, 2 runs together``, or each run's own where they differ."""
    own = [seed_words(read_run(folder)["seeds"]) for folder in names]
    if len(own) == 1:
        return f"seeds {own[0]}"
    said = f"{own[0]} each"
    if len(set(own)) > 1:
        pairs = zip(own, names.values(), strict=True)
        said = "; ".join(f"{seeds} ({name})" for seeds, name in pairs)
    return f"seeds {said}, {len(own)} runs together"


def show_results(folder: Path, rows: list[dict[str, object]], out: Path | None = None) -> None:
    """The table of accuracy, and where to look next."""
    parts = read_run(folder)["parts"]
    console.print()
    console.print(accuracy_table(rows, parts, "share of sequences with every answer right"))
    parked = {str(row["seed"]): row["parked"] for row in rows if "parked" in row}
    for seed, step in parked.items():
        console.print(
            f"seed {seed} was parked: its loss or a weight was not finite after step {step}"
        )
    succeeded = {str(row["seed"]): row["succeeded"] for row in rows if "succeeded" in row}
    for seed, step in succeeded.items():
        console.print(f"seed {seed} succeeded at step {step} and was left as it was then")
    pages = "" if out else f"; a page of pictures: {_command('report', [folder])}"
    console.print(
        f"\n{out or folder / 'results.json'} has every seed{pages}",
        markup=False,
        soft_wrap=True,
    )
