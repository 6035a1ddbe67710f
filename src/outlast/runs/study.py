"""`study.json` as a type: the question, the arms, the claims and the screen of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

from outlast.runs.folder import STUDY
from outlast.runs.reading import FORMAT, check_shares, check_subfolder, checked, read_object
from outlast.runs.records import write_record


class Claim(Struct, frozen=True):
    """Something that should be so, and the band a measured number must fall in to say it is.

    `condition` is the text of another claim: if that one does not hold, this one says nothing.
    `stated` is ``before`` if the words and the band are those of the source, or were written before
    any number of ours was seen. It is ``after`` if numbers of ours were known by then.
    """

    text: str
    arm: str
    multiple: int | float
    source: str = ""
    statistic: Literal["mean", "min", "max", "difference", "success"] = "mean"
    versus: str | None = None
    part: str = "joint"
    #: the unit of the number, and of `low` and `high`
    measure: Literal["exact", "bits"] = "exact"
    #: of the task's other versions in the test, such as `sparse`; None is the one trained on
    variant: str | None = None
    low: float | None = None
    high: float | None = None
    condition: str | None = None
    #: an older file does not say
    stated: Literal["before", "after"] | None = None


class ArmRecord(Struct, frozen=True):
    """One way of training in a study; its name is the name of its run folder."""

    name: str
    label: str = ""
    #: arms of one group share a panel
    group: str | None = None

    def __post_init__(self) -> None:
        check_subfolder("arm", self.name)


class RoundRecord(Struct, frozen=True):
    """A round of a screen: how long its arms were trained, and the score of each (None: failed)."""

    seeds: int
    steps: int
    #: the share of sequences entirely right, by the name of the arm
    scores: dict[str, float | None]

    def __post_init__(self) -> None:
        check_shares("scores", {n: s for n, s in self.scores.items() if s is not None})


class ScreenRecord(Struct, frozen=True, kw_only=True):
    """How the arms of a study that are screened were chosen."""

    #: the multiple of the training length at which they were scored
    at: float
    #: those of the last round; they are others than the seeds of the arms
    seeds: tuple[int, ...]
    rounds: tuple[RoundRecord, ...]
    #: names of the arms that are run over all seeds, best first
    survivors: tuple[str, ...]


class StudyRecord(Struct, frozen=True, kw_only=True):
    """What `study.json` holds; a report needs nothing else but the run folders of the arms."""

    format: int = FORMAT
    study: str = ""
    scale: str | None = None
    title: str = ""
    question: str = ""
    #: the command line that runs the study, or goes on with it
    command: str | None = None
    arms: tuple[ArmRecord, ...] = ()
    claims: tuple[Claim, ...] = ()
    #: if arms were screened
    screen: ScreenRecord | None = None


def read_study(folder: Path) -> StudyRecord:
    """A study, as `study.json` says."""
    path = folder / STUDY
    values = read_object(path, "a study", by_hand=True)
    if isinstance(claims := values.get("claims"), list):  # some may have names of before
        values["claims"] = [
            {"condition": claim.get("given")} | claim if isinstance(claim, dict) else claim
            for claim in claims
        ]
    return checked(values, StudyRecord, path)


def write_study(folder: Path, record: StudyRecord) -> None:
    """Write `study.json`."""
    write_record(folder / STUDY, record)
