"""`outlast eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from outlast.runs.spec import LADDER


def main(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")],
    lengths: tuple[float, ...] = LADDER,
    sequences: int | None = None,
    precision: Literal["fp32", "tf32", "bf16"] = "fp32",
    chunk: int | None = None,
    device: str = "auto",
    out: Path | None = None,
) -> None:
    """Measure a trained run by length, in multiples of the training length.

    Example: outlast eval runs/parity --lengths 1 2 4 --sequences 500

    Args:
        folder: The run folder, or the folder of a grid, whose runs are measured one by one.
        lengths: Multiples of the training length.
        sequences: Fresh sequences for each length; by default 2048, or 256 of text.
        precision: Of matmuls; whatever it was in training, exact by default.
        chunk: The most tokens of a sequence that are read at a time; by default sequences of up to
            4096 tokens are read whole, and longer ones in chunks that fit in memory.
        device: auto, cpu, cuda, cuda:1 ...
        out: The .json file to write; by default the results.json of the run, written anew; if that
            had more lengths or sequences, it is kept as results-before.json.
    """
    from outlast.cli.common import check_out, length_status, say
    from outlast.cli.results import show_results
    from outlast.errors import incompatible
    from outlast.machine import pick_device
    from outlast.runs.folder import RESULTS, check_writable
    from outlast.runs.grids import run_folders
    from outlast.workflow.evaluate import Evaluation, evaluate_run
    from outlast.workflow.load import open_run

    picked, runs = pick_device(device), run_folders(folder)
    if out is not None and len(runs) > 1:
        reason = "it has several runs, and each has results.json of its own"
        raise incompatible(f"--out {out}", str(folder), reason)
    check_out(out)
    for run in runs if out is None else ():
        check_writable(run / RESULTS)
    for run in runs if len(runs) > 1 else ():
        open_run(run, picked)  # one that cannot be measured is an error before the others are
    for run in runs:
        if len(runs) > 1:
            say(f"\n{run.name}")
        evaluation = Evaluation(lengths, sequences, precision, chunk)
        with length_status() as on_length:
            rows = evaluate_run(run, evaluation, picked, out, say, on_length)
        show_results(run, rows, out)
