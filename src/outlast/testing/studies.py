"""What every study must hold to, at every scale."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import get_args, get_type_hints

from outlast.methods import Setup
from outlast.registry import methods, studies, tasks
from outlast.runs.records import ALL, RunRecord, read_run, write_run
from outlast.runs.spec import RunSpec
from outlast.runs.study import read_study, write_study
from outlast.studies import Arm, Claim, Study
from outlast.studies.base import SCREEN, scales
from outlast.studies.matching import size_of
from outlast.sweep.halving import check_halving
from outlast.tasks import Task
from outlast.testing.rules import RuleSet, require
from outlast.workflow.create import canonical

STATISTICS = get_args(get_type_hints(Claim)["statistic"])
#: names in a study's folder that are not arms
TAKEN = ("report", "study.json", SCREEN)
RULES = RuleSet["StudyAtScale"]()


@dataclass(frozen=True)
class StudyAtScale:
    """A study by its registered name, at one of its scales."""

    name: str
    scale: str
    study: Study

    def __str__(self) -> str:
        return f"{self.name} {self.scale}"


@cache
def at_scale(name: str, scale: str) -> StudyAtScale:
    """The study that `outlast reproduce NAME --scale SCALE` runs."""
    return StudyAtScale(name, scale, studies.entry(name).factory(scale=scale))


@cache
def _task(line: str) -> Task:
    task: Task = tasks.build(line)
    return task


@cache
def _size(model: str, task: str) -> int:
    return size_of(model, _task(task))


@RULES.rule
def has_a_demo_and_a_larger_scale(subject: StudyAtScale) -> None:
    """Its function takes `scale: Literal["demo", "paper"]`; `full` where there is no paper.

    Why: `outlast reproduce` offers these.
    Fix: `demo` runs on a laptop in minutes, the other one is what the claims are about.
    """
    offered = scales(subject.name)
    expected = offered in (["demo", "paper"], ["demo", "full"])
    require(expected, f"its scales are {', '.join(offered) or 'none'}")


@RULES.rule
def has_words_and_arms_with_distinct_names(subject: StudyAtScale) -> None:
    """It has a title, a question and arms; names and labels of arms are distinct and plain.

    Why: The name of an arm is the name of its folder, and its label is in every legend.
    Fix: Name arms with small letters, digits, dots, dashes and underscores.
    """
    study = subject.study
    require(isinstance(study, Study), f"it is a {type(study).__name__}, not a Study")
    at = (study.name, study.scale)
    require(at == (subject.name, subject.scale), f"it calls itself {at[0]} at the scale {at[1]}")
    require(study.title, "it has no title")
    require(study.question.endswith("?"), "its question does not end in a question mark")
    names = [arm.name for arm in study.arms]
    require(names, "it has no arms")
    # some disks do not know capitals
    require(len({n.lower() for n in names}) == len(names), "two arms have one name")
    for arm in study.arms:
        plain = re.fullmatch(r"[a-z0-9][a-z0-9._-]*", arm.name) and arm.name not in TAKEN
        require(plain, f"arm {arm.name!r} has a name that cannot be a folder's")
        require(arm.label, f"arm {arm.name} has no label")
    labels = [(arm.group, arm.label) for arm in study.arms]
    require(len(set(labels)) == len(labels), "two arms of one group have one label")


@RULES.rule
def every_arm_can_be_built_and_recorded(subject: StudyAtScale) -> None:
    """The task, model and methods of every arm go together and survive the run folder.

    Why: An arm that cannot begin is found out after hours of the others.
    Fix: Write lines that `outlast train` takes, and at least 4 seeds.
    """
    with tempfile.TemporaryDirectory() as folder:
        for arm in subject.study.arms:
            run = canonical(arm.run)
            require(canonical(run) == run, f"arm {arm.name}: its written-out run is another run")
            write_run(Path(folder), RunRecord(**vars(run), length=1))
            require(
                read_run(Path(folder)).spec == run, f"arm {arm.name} is recorded as another run"
            )
            task, settings = _task(run.task), run.settings
            require(_size(run.model, run.task) > 0, f"arm {arm.name}: its model has no weights")
            for line in run.methods:
                methods.build(line).begin(Setup(settings.steps, task.parts, task.lengths))
            require(len(run.seeds) >= 4, f"arm {arm.name} has only {len(run.seeds)} seeds")
            enough = settings.steps >= settings.steps_per_block
            require(enough, f"arm {arm.name} has {settings.steps} steps, less than a block")


@RULES.rule
def no_two_arms_are_the_same_run(subject: StudyAtScale) -> None:
    """Arms differ in more than their labels.

    Why: Two arms that are one run are compared with each other for nothing.
    Fix: Look for an argument that was meant to differ.
    """
    names: dict[RunSpec, str] = {}
    for arm in subject.study.arms:
        run = canonical(replace(arm.run, label=""))
        require(run not in names, f"{arm.name} is the same run as {names.get(run)}")
        names[run] = arm.name


@RULES.rule
def claims_are_about_what_is_tested(subject: StudyAtScale) -> None:
    """Every claim names an arm, a length and a part that are tested by default, and a band.

    Why: A claim about something that is not measured has no verdict.
    Fix: The words in the reason say which field of which claim.
    """
    require(subject.study.claims, "it has no claims")
    for claim in subject.study.claims:
        for problem in _problems(subject.study, claim):
            require(False, f"{problem} in {claim}")


def _problems(study: Study, claim: Claim) -> Iterator[str]:
    arms = {arm.name: arm for arm in study.arms}
    chosen = {arm.name for arm in study.choose()}
    if claim.arm not in arms or (claim.versus is not None and claim.versus not in arms):
        yield "an unknown arm"
        return
    task = _task(arms[claim.arm].run.task)
    length = task.lengths[1] * claim.multiple
    bands = [bound for bound in (claim.low, claim.high) if bound is not None]
    checks = {
        "a multiple that is not in the ladder": claim.multiple in _ladder(study, arms[claim.arm]),
        "an unknown part": claim.part in _parts(task),
        "another measure than its task's": claim.measure == task.measure,
        "an unknown variant": claim.variant is None or claim.variant in task.variants,
        "a length past the ceiling": task.ceiling is None or length <= task.ceiling,
        "an unknown statistic": claim.statistic in STATISTICS,
        "versus without a difference": (claim.versus is not None)
        == (claim.statistic == "difference"),
        "a difference between two tasks": claim.versus is None
        or arms[claim.versus].run.task == arms[claim.arm].run.task,
        "no band, or one that is empty": bands and (len(bands) < 2 or bands[0] < bands[1]),
        "no text": claim.text,
        "no source": claim.source,
        "no word on whether it was stated before the numbers": claim.stated in ("before", "after"),
        "a condition that is no claim": claim.condition is None
        or claim.condition in [other.text for other in study.claims],
        "an arm that is not run by default": {claim.arm, claim.versus or claim.arm} <= chosen,
    }
    yield from (problem for problem, fine in checks.items() if not fine)


def _ladder(study: Study, arm: Arm) -> Sequence[float]:
    return arm.ladder or study.ladder


def _parts(task: Task) -> tuple[str, ...]:
    """What a claim may be about."""
    return (ALL, *task.test_parts[1:]) if task.measure == "bits" else ("joint", *task.parts)


@RULES.rule
def every_arm_can_be_tested_on_the_whole_ladder(subject: StudyAtScale) -> None:
    """Ladders rise from 1, and no arm has a task with a ceiling below the end of its ladder.

    Why: Curves of arms are compared at all lengths.
    Fix: Raise the number of keys of the task, or shorten the ladder. Use at least 2000 sequences,
    or 100 of text, in which many bytes count. An arm with a longer ladder may have 64.
    """
    study = subject.study
    bits = all(_task(arm.run.task).measure == "bits" for arm in study.arms)
    least = 100 if bits else 2000
    require(study.sequences >= least, f"sequences={study.sequences}: expected at least {least}")
    for arm in study.arms:
        task, ladder = _task(arm.run.task), _ladder(study, arm)
        rises = ladder[0] == 1 and list(ladder) == sorted(set(ladder))
        require(rises, f"arm {arm.name}: ladder={ladder}: expected multiples that rise from 1")
        fewest = 64 if ladder[-1] > study.ladder[-1] else least
        enough = arm.sequences is None or arm.sequences >= fewest
        require(enough, f"arm {arm.name}: sequences={arm.sequences}: expected at least {fewest}")
        longest = task.lengths[1] * ladder[-1]
        fits = task.ceiling is None or longest <= task.ceiling
        require(fits, f"arm {arm.name}: length {longest:g} is past the ceiling of its task")


@RULES.rule
def study_json_holds_the_study(subject: StudyAtScale) -> None:
    """What `study.json` records of it is read back the same.

    Why: The page is made from the folder alone.
    Fix: Use text and numbers in arms and claims.
    """
    study, command = subject.study, "outlast reproduce x"
    with tempfile.TemporaryDirectory() as folder:
        write_study(Path(folder), study.record(command, [arm.name for arm in study.arms]))
        record = read_study(Path(folder))
    facts = (record.study, record.scale, record.command)
    require(facts == (subject.name, subject.scale, command), f"it is recorded as {facts}")
    names = [arm.name for arm in record.arms]
    require(names == [arm.name for arm in study.arms], f"the recorded arms are {names}")
    require(record.claims == tuple(study.claims), "the recorded claims are others")


@RULES.rule
def screen_is_of_arms_and_has_seeds_of_its_own(subject: StudyAtScale) -> None:
    """What is screened are arms of the study, scored where they can be tested, on other seeds.

    Why: An arm that is chosen by its seeds looks better on them than it is.
    Fix: Give the screen seeds that no arm has.
    """
    study, screen = subject.study, subject.study.screen
    if screen is None:
        return
    candidates = study.candidates()
    check_halving(candidates, screen.halving)
    require(1 <= screen.survivors <= len(candidates), f"{screen.survivors} arms are to survive")
    shared = {seed for arm in study.arms for seed in arm.run.seeds} & set(screen.seeds)
    require(not shared, f"arms and the screen share the seeds {sorted(shared)}")
