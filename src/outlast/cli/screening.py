"""What `outlast reproduce` does and shows of a study's screen: its rounds, live, and the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from outlast.cli.common import say
from outlast.cli.exit_codes import FAILED, STOPPED
from outlast.cli.pack_table import PackDisplay
from outlast.cli.sweeping import conclude
from outlast.cli.tables import Column, show_table
from outlast.errors import incompatible
from outlast.runs.folder import STUDY, has_file
from outlast.runs.spec import RunSpec
from outlast.runs.study import ScreenRecord, read_study, write_study
from outlast.studies.base import SCREEN, Arm, Screen, Study
from outlast.studies.runner import unfinished_arms
from outlast.studies.screening import run_screen
from outlast.sweep.engine import Machine, Watch
from outlast.sweep.halving import describe_rounds
from outlast.sweep.packs import Pack


def check_screen(out: Path, overwrite: bool) -> None:
    """Flags that a screen cannot be carried out with are errors."""
    if overwrite and (out / SCREEN).exists():
        reason = f"delete {out / SCREEN} to screen anew"
        raise incompatible("--overwrite", "a screen that is there", reason)


def screen_of(out: Path, study: Study) -> ScreenRecord | None:
    """What an earlier command has found, if it has screened in this folder."""
    if not has_file(out, STUDY):
        return None
    record = read_study(out)
    return record.screen if record.study == study.name else None


def show_screen(screen: Screen, candidates: Mapping[str, RunSpec]) -> None:
    """How many candidates, seeds and steps each round has."""
    count, at = len(candidates), f"{screen.halving.at:g} x"
    say(f"a screen of {count} candidates, by the share of sequences entirely right at {at}:")
    for line in describe_rounds(candidates, screen.halving):
        say(f"  {line}")
    say(f"  then the best {screen.survivors}, over all seeds of the study\n")


def carry_out_screen(
    study: Study,
    screen: Screen,
    candidates: Mapping[str, RunSpec],
    out: Path,
    machine: Machine,
) -> tuple[ScreenRecord | None, int]:
    """Screen and show what comes of it; the record is None if it was stopped before its end.

    The number is the exit code: candidates may have failed.
    """
    with PackDisplay() as display:

        def watch(number: int, packs: Sequence[Pack]) -> Watch:
            runs = sum(len(pack.runs) for pack in packs)
            say(f"screen, round {number} of {screen.halving.rounds}: {runs} candidates")
            return display.begin(packs)

        record, outcome = run_screen(study, screen, candidates, out, machine, watch)
    code = conclude(outcome)
    if record is None:
        return None, code or STOPPED
    last = record.rounds[-1].scores
    ranked = sorted(last, key=lambda name: -(last[name] or 0.0))
    say("")
    columns = [Column("last round", "name"), Column(f"right at {record.at:g} x", "number")]
    show_table(columns, [(n, "failed" if last[n] is None else f"{last[n]:.3f}") for n in ranked])
    say(f"over all seeds of the study: {', '.join(record.survivors)}\n")
    return record, FAILED if outcome.failed else 0


def choose_arms(
    study: Study,
    chosen: Sequence[Arm],
    screened: Sequence[Arm],
    candidates: Mapping[str, RunSpec],
    out: Path,
    overwrite: bool,
    command: str,
    machine: Machine,
) -> tuple[list[Arm] | None, int]:
    """The arms to train: those that were chosen, and the best of a screen if there are candidates.

    It screens first, and writes the record of the study. The arms are None if the screen was
    stopped before its end. The number is the exit code of the screen.
    """
    record, code, arms = screen_of(out, study), 0, list(chosen)
    unfinished_arms(arms, out, overwrite)  # what is in the way is an error now
    if study.screen is not None and candidates:
        record, code = carry_out_screen(study, study.screen, candidates, out, machine)
        if record is None:
            return None, code
        best = [arm for arm in screened if arm.name in record.survivors]
        arms += [arm for arm in best if arm not in arms]
        unfinished_arms(best, out, overwrite)
    names = {arm.name for arm in arms}
    present = [a.name for a in study.arms if a.name in names or (out / a.name).is_dir()]
    write_study(out, study.record(command, present, record))
    return arms, code
