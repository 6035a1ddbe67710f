"""What a study is: a question, arms that differ in one thing, and claims to hold them against."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from outlast.errors import SpecError
from outlast.registry import suggest
from outlast.runs.records import ArmRecord, Claim, StudyRecord
from outlast.runs.spec import LADDER, SEQUENCES, RunSpec


@dataclass(frozen=True)
class Arm:
    """One way to train, over all seeds. Its name is its folder's name."""

    name: str
    run: RunSpec
    #: arms of one group share a panel
    group: str = ""
    #: lengths it is tested at; by default the study's
    ladder: Sequence[float] | None = None

    @property
    def label(self) -> str:
        return self.run.label


@dataclass(frozen=True)
class Study:
    """A question that `outlast reproduce` can answer."""

    name: str
    scale: str
    title: str
    question: str
    arms: Sequence[Arm]
    claims: Sequence[Claim]
    ladder: Sequence[float] = LADDER
    sequences: int = SEQUENCES
    #: of matmuls in the test
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    #: names or patterns of the arms that are run when none are chosen
    default: Sequence[str] = field(default=("*",))

    def choose(
        self,
        patterns: Sequence[str] = (),
        seeds: tuple[int, ...] | None = None,
        **changes: Any,
    ) -> list[Arm]:
        """The arms whose names match, with other seeds or settings if given (None: as it is)."""
        chosen = []
        for pattern in patterns or self.default:
            matching = [a for a in self.arms if fnmatch.fnmatchcase(a.name, pattern)]
            if not matching:
                raise SpecError(
                    f"arms={pattern}: no such arm{suggest(pattern, [a.name for a in self.arms])}"
                )
            chosen += [a for a in matching if a not in chosen]
        changes = {name: value for name, value in changes.items() if value is not None}
        return [replace(a, run=_changed(a.run, seeds, changes)) for a in chosen]

    def record(self, command: str, arms: Sequence[str]) -> StudyRecord:
        """What `study.json` holds of it, with some of its arms."""
        return StudyRecord(
            study=self.name,
            scale=self.scale,
            title=self.title,
            question=self.question,
            command=command,
            arms=tuple(ArmRecord(a.name, a.label, a.group) for a in self.arms if a.name in arms),
            claims=tuple(self.claims),
        )


def _changed(run: RunSpec, seeds: tuple[int, ...] | None, changes: dict[str, Any]) -> RunSpec:
    settings = replace(run.settings, **changes)
    return replace(run, settings=settings, seeds=run.seeds if seeds is None else seeds)
