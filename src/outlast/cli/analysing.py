"""What `outlast analyse` and `outlast reproduce --analyse` share: making and keeping tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from outlast.analysis.runs import (
    ANALYSES,
    AnalysisSettings,
    analyse_run,
    function_of,
    left_out,
    seed_steps,
    solution_beside,
)
from outlast.analysis.seed_processes import SeedProcesses
from outlast.analysis.sequences import NothingToSeeError
from outlast.cli.common import console, say
from outlast.cli.exit_codes import FAILED, STOPPED
from outlast.errors import OutlastError
from outlast.runs.analyses import (
    AnalysisTable,
    Row,
    SeedStep,
    delete_analysis,
    table_to_extend,
    write_analysis,
)
from outlast.runs.folder import RUN, has_file, kept_files
from outlast.runs.kept import seeds_at
from outlast.runs.records import read_run
from outlast.runs.status import finished
from outlast.runs.study import read_study
from outlast.studies.base import Analysis, Study


class Written(NamedTuple):
    """A table that was written: its file, the rows of this call, and in words what is left out."""

    path: Path
    rows: list[Row]
    left_out: list[str]


def write_table(
    run: Path,
    name: str,
    settings: AnalysisSettings,
    device: torch.device,
    processes: SeedProcesses,
    anew: bool = False,
) -> Written:
    """Make an analysis of a run and write its table, or add to it. `anew`: the old one goes."""
    left: list[str] = []
    with console.status(f"{run.name}: {name}"):
        rows = analyse_run(run, name, settings, device, left.append, processes)
    if anew:
        delete_analysis(run, name)
    table = AnalysisTable(analysis=name, settings=settings.record(name), rows=rows)
    return Written(write_analysis(run, table), rows, left)


def chosen_analyses(study: Study, names: Sequence[str]) -> list[Analysis]:
    """The analyses of these names as the study has them; none: all of the study's.

    A study that names none has all there are. An unknown name is an error.
    """
    of_study = {analysis.name: analysis for analysis in study.analyses}
    wanted = tuple(dict.fromkeys(names)) or tuple(of_study or ANALYSES)
    for name in wanted:
        function_of(name)
    return [of_study.get(name, Analysis(name)) for name in wanted]


def describe_analyses(analyses: Sequence[Analysis]) -> str:
    """In words, what is analysed of every arm."""
    return f"then analysed on every arm: {', '.join(map(_in_words, analyses))}"


def _in_words(analysis: Analysis) -> str:
    details = ["at every step that is kept, too"] if analysis.along else []
    details += [f"toward {analysis.toward}"] if analysis.toward else []
    return f"{analysis.name} ({'; '.join(details)})" if details else analysis.name


def analyse_arms(
    analyses: Sequence[Analysis], study: Path, device: torch.device, workers: int | None
) -> int:
    """Make the tables that finished arms of a study lack; returns the exit code.

    An analysis that does not apply to an arm is left out. An arm that cannot be analysed does not
    stop the others. Ctrl-C ends the analyses: tables that are written stay.
    """
    if not analyses:
        return 0
    code, recorded = 0, [study / arm.name for arm in read_study(study).arms]
    arms = [arm for arm in recorded if has_file(arm, RUN) and finished(arm)]
    try:
        with SeedProcesses(workers) as processes:
            for arm in arms:
                say(f"\nanalyses of {arm.name}")
                said: set[str] = set()
                for analysis in analyses:
                    try:
                        _complete_table(arm, analysis, device, processes, said)
                    except NothingToSeeError as nothing:
                        say(f"  {analysis.name}: left out, {nothing}")
                    except OutlastError as error:
                        sys.stderr.write(f"error: {analysis.name} of {arm}: {error}\n")
                        code = FAILED
    except KeyboardInterrupt:
        say("analyses not finished; the same command goes on with them")
        return STOPPED
    return code


def _complete_table(
    arm: Path,
    analysis: Analysis,
    device: torch.device,
    processes: SeedProcesses,
    said: set[str],
) -> None:
    """Add to the table of an analysis the seeds and steps that it lacks.

    What is left out of every analysis of an arm is said once: `said` has what was.
    """
    name, toward = analysis.name, None
    if analysis.toward is not None:
        toward = solution_beside(arm, analysis.toward)
        if toward is not None and not finished(toward):
            raise NothingToSeeError(f"{toward.name}, toward which it is, is not finished")
    calls = [AnalysisSettings(toward=toward)]
    steps = _steps_of_all_seeds(arm) if analysis.along else ()
    if steps:
        calls.append(replace(calls[0], steps=steps))
    planned = [seed_step for call in calls for seed_step in seed_steps(arm, name, call)]
    old = table_to_extend(arm, name, calls[0].record(name), planned)
    present: set[SeedStep] = {(row["seed"], row["step"]) for row in old.rows} if old else set()  # type: ignore[misc]
    anew, count, nothings = old is None, 0, list[str]()
    for call in calls:
        lacking = [each for each in seed_steps(arm, name, call) if each not in present]
        if not lacking:
            continue
        seeds, at = (tuple(dict.fromkeys(column)) for column in zip(*lacking, strict=True))
        call = replace(call, seeds=seeds, steps=tuple(step for step in call.steps if step in at))
        for words in left_out(arm, [name], call):
            if words not in said:
                said.add(words)
                say(f"  {words}")
        try:
            written = write_table(arm, name, call, device, processes, anew)
        except NothingToSeeError as nothing:  # another call may have something
            nothings.append(str(nothing))
            continue
        anew, count = False, count + len(written.rows)
        nothings += written.left_out
    for words in dict.fromkeys(nothings):
        say(f"  {name}: left out, {words}")
    if count or not nothings:
        say(f"  {name}: {f'{count:,} rows' if count else 'already there'}")


def _steps_of_all_seeds(arm: Path) -> tuple[int, ...]:
    """The steps along the way whose weights were kept of every seed."""
    run = read_run(arm).spec
    return tuple(s for s in sorted(kept_files(arm)) if set(seeds_at(arm, s, run)) == set(run.seeds))
