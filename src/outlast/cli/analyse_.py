"""`outlast analyse`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    import torch

    from outlast.analysis.runs import AnalysisSettings
    from outlast.analysis.seed_processes import SeedProcesses

#: the analysis that --toward is for
GRADIENTS = "gradients"


def main(
    folders: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER [FOLDER ...]")
    ],
    only: tuple[str, ...] = (),
    lengths: tuple[float, ...] = (1, 3, 10),
    sequences: int | None = None,
    seeds: str | None = None,
    steps: tuple[int, ...] = (),
    toward: Path | None = None,
    device: str = "auto",
    processes: int | None = None,
) -> int:
    """Find out why trained runs work or fail; the tables lie in FOLDER/analysis.

    A further call adds its seeds and steps to a table. A call with other lengths, sequences or
    toward replaces the table if it has all seeds and steps of it; else it is an error.

    Example: outlast analyse runs/parity --only state-probe --lengths 1 2 --sequences 64

    Args:
        folders: Run folders, or those of grids and studies, whose runs are analysed one by one. If
            one of several runs cannot be, the others are, and the exit code is 2. A folder without
            a run is an error before the first one.
        only: Some analyses; by default all that apply to the run. They are anatomy, ablation,
            state-probe, key-probe, sharpness, covariance, token-filter and gradients.
        lengths: Multiples of the training length.
        sequences: Sequences of each length; by default 256, for ablation 128 and for token-filter
            64, as these make many passes. covariance needs 2 or more.
        seeds: Some of the run's seeds, such as 0-3.
        steps: Of checkpoints that were kept (--keep-checkpoints); by default the end of training.
            A step of a switch is looked at for the seeds that switched then.
        toward: For gradients: the run whose last weights count as the solution, such as the same
            model with DAT; by default the run itself. If dat is no folder, it stands for the run
            DESIGN-dat beside a run DESIGN-joint, if it has the same model, task and seeds; else
            for the run itself.
        device: auto, cpu, cuda, cuda:1 ...
        processes: Processes that analyse seeds side by side, each with one thread; by default one
            for each core, on a GPU at most six. The tables do not depend on it.
    """
    from outlast.analysis.runs import ANALYSES, AnalysisSettings, function_of, runs_beside
    from outlast.analysis.seed_processes import SeedProcesses
    from outlast.arguments import check_whole
    from outlast.cli.common import say
    from outlast.cli.exit_codes import MISTAKE
    from outlast.errors import OutlastError, bad_value
    from outlast.machine import pick_device
    from outlast.runs.grids import run_folders
    from outlast.runs.spec import read_seeds

    if not folders:
        raise OutlastError("give at least one run folder")
    for name in only:
        function_of(name)
    if processes is not None:
        check_whole("processes", processes, 1)
    if toward is not None and GRADIENTS not in (only or ANALYSES):
        raise bad_value("toward", toward, f"{GRADIENTS} among the analyses (--only)")
    settings = AnalysisSettings(
        lengths, sequences, None if seeds is None else tuple(read_seeds(seeds)), steps, toward
    )
    for name in only:
        settings.check_sequences(name)
    picked = pick_device(device)
    runs = [
        run for folder in folders for run in run_folders(folder, of_studies=True, with_damaged=True)
    ]
    if toward is not None and not (
        toward.is_dir()
        or (len(toward.parts) == 1 and any(runs_beside(run, toward.name) for run in runs))
    ):
        accepted = "a run folder, or the end of the name of a run beside these, such as dat"
        raise bad_value("toward", toward, accepted)
    code = 0
    with SeedProcesses(processes) as beside:
        for run in runs:
            say(f"\n{run.name}" if len(runs) > 1 else str(run))
            try:
                missed = _analyse(run, only, settings, picked, beside)
            except OutlastError as error:
                if len(runs) == 1:
                    raise
                missed = [str(error)]
            for words in missed:
                sys.stderr.write(f"error: {words}\n")
                code = MISTAKE
    return code


def _analyse(
    run: Path,
    only: Sequence[str],
    settings: AnalysisSettings,
    device: torch.device,
    processes: SeedProcesses,
) -> list[str]:
    """Analyse one run; in words, which of the analyses that were asked for do not apply to it."""
    from contextlib import suppress
    from dataclasses import replace

    from outlast.analysis.runs import ANALYSES, left_out, seed_steps, solution_beside
    from outlast.analysis.sequences import NothingToSeeError
    from outlast.cli.analysing import write_table
    from outlast.cli.analysis_table import show_analysis
    from outlast.cli.common import say
    from outlast.runs.analyses import table_to_extend

    missed = []
    if settings.toward is not None and not settings.toward.is_dir():
        solution = solution_beside(run, settings.toward.name)
        settings = replace(settings, toward=solution)
        say(f"  {GRADIENTS} toward {'the run itself' if solution is None else solution.name}")
    for words in left_out(run, only or tuple(ANALYSES), settings):
        say(f"  {words}")
    for name in only or ANALYSES:  # before any work whose rows could not be added
        with suppress(NothingToSeeError):  # said when its turn comes
            table_to_extend(run, name, settings.record(name), seed_steps(run, name, settings))
    for name in only or ANALYSES:
        try:
            written = write_table(run, name, settings, device, processes)
        except NothingToSeeError as nothing:
            if only:
                missed.append(f"{name} of {run}: {nothing}")
            else:
                say(f"\n{name}: left out, {nothing}")
            continue
        say(f"\n{name}: {len(written.rows):,} rows in {written.path}")
        for words in written.left_out:
            say(f"  left out: {words}")
        show_analysis(name, written.rows, written.path)
    return missed
