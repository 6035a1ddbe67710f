"""`outlast analyse`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from outlast.runs.analyses import Row


def main(
    folders: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER [FOLDER ...]")
    ],
    only: tuple[str, ...] = (),
    lengths: tuple[float, ...] = (1, 3, 10),
    sequences: int = 256,
    seeds: str | None = None,
    steps: tuple[int, ...] = (),
    toward: Path | None = None,
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
        toward: For gradients: the run whose last weights count as the solution, such as the same
            model with DAT; by default the run itself.
        device: auto, cpu, cuda, cuda:1 ...
    """
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
        lengths, sequences, None if seeds is None else tuple(read_seeds(seeds)), steps, toward
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
                    say(f"\n{name}: left out, {nothing}")
                    continue
            table = AnalysisTable(analysis=name, settings=settings.record(), rows=rows)
            path = write_analysis(run, table)
            say(f"\n{name}: {len(rows):,} rows in {path}")
            _show(name, rows)


def _show(name: str, rows: list[Row]) -> None:
    """The headline of a table: its number by length or step, the mean over seeds."""
    from outlast.analysis.headlines import HEADLINES, headline
    from outlast.cli.tables import Column, show_table

    wanted, lines = HEADLINES[name], headline(name, rows)
    if not lines:
        return
    places = sorted({place for line in lines for place in line.values})
    titles = [f"{place:g} x" if wanted.by == "multiple" else f"{place:g}" for place in places]
    columns = [Column("", "name"), *(Column(title, "number", 1) for title in titles)]
    cells = []
    for line in lines:
        values = [line.values.get(place) for place in places]
        cells.append([line.name, *(f"{sum(v) / len(v):.3f}" if v else "" for v in values)])
    seeds = len({row["seed"] for row in rows})
    show_table(columns, cells, f"{wanted.title}{f', mean of {seeds} seeds' if seeds > 1 else ''}")
