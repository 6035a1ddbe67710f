"""Training a run folder to its end and testing it, with progress: what train and resume share."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import torch

from outlast.cli import STOPPED
from outlast.cli.common import accuracy_table, console
from outlast.cli.progress import progress
from outlast.errors import TrainingError
from outlast.evaluate.run import evaluate_run
from outlast.runs import read_run
from outlast.train.session import go_on_together


def train_and_test(folders: Sequence[Path], device: torch.device) -> int:
    """Go on with runs, together if there are several, until each is trained and tested."""
    record = read_run(folders[0])
    several = f" each, {len(folders)} runs together" if len(folders) > 1 else ""
    console.print(
        f"{record['model']}  ({record['parameters']:,} parameters)\non {record['task']}, "
        f"seeds {', '.join(map(str, record['seeds']))}{several}, {device}",
        markup=False,
        soft_wrap=True,
    )
    with progress(console) as show:
        ended, failures = go_on_together(
            folders,
            device,
            lambda folder, report: show(folder.name, report),
            lambda words: console.print(words, markup=False, soft_wrap=True),
        )
    if not ended:
        again = shlex.join(["outlast", "resume", *map(str, folders)])
        console.print(f"saved; go on with: {again}", markup=False, soft_wrap=True)
        return STOPPED
    for folder, failure in zip(folders, failures, strict=True):
        if failure is None:
            if len(folders) > 1:
                console.print(f"\n{folder.name}", markup=False)
            show_results(folder, evaluate_run(folder, device=device))
    failed = [failure for failure in failures if failure is not None]
    if failed:
        raise TrainingError("\n".join(map(str, failed)))
    return 0


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
    pages = "" if out else f"; a page of pictures: outlast report {folder}"
    console.print(
        f"\n{out or folder / 'results.json'} has every seed{pages}",
        markup=False,
        soft_wrap=True,
    )
