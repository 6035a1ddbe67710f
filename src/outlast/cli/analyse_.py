"""`outlast analyse`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro


def main(
    folders: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER [FOLDER ...]")
    ],
    only: tuple[str, ...] = (),
    lengths: tuple[float, ...] = (1, 3, 10),
    sequences: int = 256,
    seeds: str | None = None,
    steps: tuple[int, ...] = (),
    device: str = "auto",
) -> None:
    """Find out why trained runs work or fail; the tables lie in FOLDER/analysis.

    Example: outlast analyse runs/parity --only state-probe --lengths 1 2 --sequences 64

    Args:
        folders: Run folders, or those of grids and studies, whose runs are analysed one by one.
        only: Some analyses; by default all that the run has something for. They are anatomy,
            ablation, state-probe, key-probe, sharpness, covariance, token-filter and gradients.
        lengths: Multiples of the training length.
        sequences: Sequences of each length.
        seeds: Some of the run's seeds, such as 0-3.
        steps: Of checkpoints that were kept (--keep-checkpoints); by default the end of training.
        device: auto, cpu, cuda, cuda:1 ...
    """
    from dataclasses import asdict

    from outlast.analysis.runs import (
        ANALYSES,
        AnalysisSettings,
        analyse_run,
        function_of,
        lengths_left_out,
    )
    from outlast.analysis.sequences import NothingToSeeError
    from outlast.cli.common import console, say
    from outlast.errors import bad_value
    from outlast.machine import pick_device
    from outlast.runs.analyses import AnalysisTable, write_analysis
    from outlast.runs.grids import run_folders
    from outlast.runs.spec import read_seeds

    if not folders:
        raise bad_value("FOLDER", "", "at least one run folder")
    for name in only:
        function_of(name)
    settings = AnalysisSettings(
        lengths, sequences, None if seeds is None else tuple(read_seeds(seeds)), steps
    )
    picked = pick_device(device)
    runs = [run for folder in folders for run in run_folders(folder, of_studies=True)]
    for run in runs:
        say(f"\n{run.name}" if len(runs) > 1 else str(run))
        for words in lengths_left_out(run, settings):
            say(f"  {words}")
        for name in only or ANALYSES:
            with console.status(name) as status:
                try:
                    rows = analyse_run(run, name, settings, picked, status.update)
                except NothingToSeeError as nothing:
                    if only:
                        raise
                    say(f"  {name}: left out, {nothing}")
                    continue
            table = AnalysisTable(analysis=name, settings=asdict(settings), rows=rows)
            path = write_analysis(run, table)
            say(f"  {name}: {len(rows):,} rows in {path}")
