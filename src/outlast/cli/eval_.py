"""`outlast eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from outlast.evaluation.ladder import LADDER, SEQUENCES


def main(
    folder: Annotated[Path, tyro.conf.Positional],
    lengths: tuple[float, ...] = LADDER,
    sequences: int = SEQUENCES,
    precision: Literal["fp32", "tf32", "bf16"] = "fp32",
    device: str = "auto",
    out: Path | None = None,
) -> None:
    """Measure a trained run by length, in multiples of the training length.

    Example: outlast eval runs/parity --lengths 1 2 4 --sequences 500

    Args:
        folder: The run folder, or the folder of a grid, whose runs are measured one by one.
        lengths: Multiples of the training length.
        sequences: Fresh sequences for each length.
        precision: Of products; whatever it was in training, exact by default.
        device: auto, cpu, cuda, cuda:1 ...
        out: The .json file to write; by default the results.json of the run, written anew; if that
            had more lengths or sequences, it is kept as results-before.json.
    """
    from outlast.cli.common import check_out, console
    from outlast.cli.running import show_results
    from outlast.errors import bad_value
    from outlast.evaluation.run import evaluate_run
    from outlast.runs import RESULTS, check_writable, run_folders
    from outlast.train.session import pick_device

    def say(words: str) -> None:
        console.print(words, markup=False, soft_wrap=True)

    where, runs = pick_device(device), run_folders(folder)
    if out is not None and len(runs) > 1:
        raise bad_value("out", out, f"none, as {folder} has several runs, each with results.json")
    check_out(out)
    for run in runs if out is None else ():
        check_writable(run / RESULTS)
    for run in runs:
        if len(runs) > 1:
            console.print(f"\n{run.name}", markup=False, soft_wrap=True)
        rows = evaluate_run(run, lengths, sequences, where, out, precision, say)
        show_results(run, rows, out)
