"""Training a run folder to its end and testing it, with progress: what train and resume share."""

from __future__ import annotations

from pathlib import Path

import torch

from outlast.cli import STOPPED
from outlast.cli.common import accuracy_table, console
from outlast.cli.progress import progress
from outlast.evaluate.run import evaluate_run
from outlast.runs import read_run
from outlast.train.session import go_on


def train_and_test(folder: Path, device: torch.device) -> int:
    """Go on with a run until it is trained and tested."""
    record = read_run(folder)
    console.print(
        f"{record['model']}  ({record['parameters']:,} parameters)\non {record['task']}, "
        f"seeds {', '.join(map(str, record['seeds']))}, {device}",
        markup=False,
        soft_wrap=True,
    )
    with progress(console) as show:
        ended = go_on(folder, device, lambda report: show(folder.name, report))
    if not ended:
        console.print(f"saved; go on with: outlast resume {folder}", markup=False, soft_wrap=True)
        return STOPPED
    show_results(folder, evaluate_run(folder, device=device))
    return 0


def show_results(folder: Path, rows: list[dict[str, object]], out: Path | None = None) -> None:
    """The table of accuracy, and where to look next."""
    parts = read_run(folder)["parts"]
    console.print()
    console.print(accuracy_table(rows, parts, "share of sequences with every answer right"))
    pages = "" if out else f"; a page of pictures: outlast report {folder}"
    console.print(
        f"\n{out or folder / 'results.json'} has every seed{pages}",
        markup=False,
        soft_wrap=True,
    )
