"""What a report leaves out because a file of an arm is damaged, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outlast.errors import RunFolderError
from outlast.reporting.analysis_tables import table_of
from outlast.reporting.anatomy_by_length import anatomy_finding
from outlast.reporting.load import Arm, Study
from outlast.reporting.stills import still_of
from outlast.reporting.summary import ArmSummary, summarise_arm
from outlast.runs.analyses import ANATOMY, ROWS


def summarise_arms(studies: Sequence[Study]) -> list[list[ArmSummary]]:
    """The arms of each study, which know what is left out. What a lone arm lacks is an error."""
    summaries = [[_summarise(arm) for arm in study.arms] for study in studies]
    runs = [arm.run for arms in summaries for arm in arms]
    if len(runs) == 1 and runs[0] and runs[0].damaged:
        raise RunFolderError(next(iter(runs[0].damaged.values())))
    return summaries


def left_out(study: Study, arms: Sequence[ArmSummary]) -> list[str]:
    """In words, which arms and which tables of theirs are left out."""
    words = [f"“{arm.label}” is left out: {arm.damage}" for arm in study.arms if arm.damage]
    for arm in arms:
        damaged = arm.run.damaged if arm.run else {}
        words += [f"{name} of “{arm.label}” is left out: {why}" for name, why in damaged.items()]
    return words


def _summarise(arm: Arm) -> ArmSummary:
    summary, damaged = summarise_arm(arm), dict[str, str]()
    for name in ROWS if summary.run else ():
        try:
            _read(summary, name)
        except RunFolderError as error:
            damaged[name] = str(error)
    return replace(summary, run=summary.run and replace(summary.run, damaged=damaged))


def _read(arm: ArmSummary, name: str) -> None:
    """Read all that a report shows of an analysis."""
    table = table_of(arm.run, name)
    if table and name == ANATOMY:
        anatomy_finding([arm])
        still_of(arm)
