"""What a study is: a question, arms that differ in one thing, and claims to hold them against."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from outlast.errors import SpecError
from outlast.registry import studies, suggest
from outlast.runs.spec import LADDER, SEQUENCES, RunSpec
from outlast.runs.study import ArmRecord, Claim, ScreenRecord, StudyRecord
from outlast.sweep.halving import Halving

#: what stands for the screen among the names of arms, and the folder that it has in the study's
SCREEN = "screen"


@dataclass(frozen=True)
class Arm:
    """One way to train, over all seeds. Its name is its folder's name."""

    name: str
    run: RunSpec
    #: arms of one group share a panel
    group: str = ""
    #: lengths it is tested at; by default the study's
    ladder: Sequence[float] | None = None
    #: sequences for each length; by default the study's. Very long ones are tested on fewer
    sequences: int | None = None

    @property
    def label(self) -> str:
        return self.run.label


@dataclass(frozen=True)
class Screen:
    """Arms of which the best alone are run over all seeds: successive halving finds them first.

    The search has seeds of its own. So what is reported of the survivors is no part of what they
    were chosen by.
    """

    #: names of the arms
    arms: Sequence[str]
    halving: Halving
    #: of the last round
    seeds: tuple[int, ...]
    #: of the last round, as a share of the steps of the arms
    steps: float
    #: how many arms are run over all seeds
    survivors: int


@dataclass(frozen=True)
class Analysis:
    """What `outlast reproduce --analyse` looks at in every arm, at the end of training."""

    #: as `outlast analyse --only` takes it
    name: str
    #: also at the steps along the way whose weights were kept of every seed
    along: bool = False
    #: for gradients: whose last weights count as the solution, as `outlast analyse --toward`
    toward: str | None = None


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
    #: arms that are screened if ``screen`` is among the names that are run
    screen: Screen | None = None
    #: what `--analyse` looks at when no analysis is named; none: all there are
    analyses: Sequence[Analysis] = ()

    def choose(
        self,
        patterns: Sequence[str] = (),
        seeds: tuple[int, ...] | None = None,
        **changes: Any,
    ) -> list[Arm]:
        """The arms whose names match, with other seeds or settings if given (None: as it is).

        ``screen`` stands for those that survive the screen, and they are not known yet.
        """
        chosen = []
        for pattern in patterns or self.default:
            if pattern == SCREEN and self.screen is not None:
                continue
            matching = [a for a in self.arms if fnmatch.fnmatchcase(a.name, pattern)]
            if not matching:
                elsewhere = self._elsewhere(pattern)
                hint = elsewhere or suggest(pattern, [a.name for a in self.arms])
                raise SpecError(f"arms={pattern}: no such arm{hint}")
            chosen += [a for a in matching if a not in chosen]
        changes = {name: value for name, value in changes.items() if value is not None}
        return [replace(a, run=_changed(a.run, seeds, changes)) for a in chosen]

    def _elsewhere(self, pattern: str) -> str:
        """The scales of this study at which there is such an arm, in words."""
        if self.name not in studies:
            return ""
        others = [scale for scale in scales(self.name) if scale != self.scale]
        offering = [
            scale
            for scale in others
            if any(
                fnmatch.fnmatchcase(arm.name, pattern)
                for arm in studies.entry(self.name).factory(scale=scale).arms
            )
        ]
        return f" at this scale (with --scale {' or '.join(offering)} there is)" if offering else ""

    def candidates(self, **changes: Any) -> dict[str, RunSpec]:
        """The arms that are screened, as the last round of the screen trains them."""
        if self.screen is None:
            return {}
        arms = self.choose(self.screen.arms, self.screen.seeds, **changes)
        return {arm.name: _shortened(arm.run, self.screen.steps) for arm in arms}

    def record(
        self, command: str, arms: Sequence[str], screen: ScreenRecord | None = None
    ) -> StudyRecord:
        """What `study.json` holds of it, with some of its arms and what its screen has shown."""
        return StudyRecord(
            study=self.name,
            scale=self.scale,
            title=self.title,
            question=self.question,
            command=command,
            arms=tuple(ArmRecord(a.name, a.label, a.group) for a in self.arms if a.name in arms),
            claims=tuple(self.claims),
            screen=screen,
        )


def _changed(run: RunSpec, seeds: tuple[int, ...] | None, changes: dict[str, Any]) -> RunSpec:
    settings = replace(run.settings, **changes)
    return replace(run, settings=settings, seeds=run.seeds if seeds is None else seeds)


def _shortened(run: RunSpec, share: float) -> RunSpec:
    """A run with a share of its steps, in whole blocks."""
    block = run.settings.steps_per_block
    steps = max(1, round(share * run.settings.steps / block)) * block
    settings = replace(run.settings, steps=min(steps, run.settings.steps))
    return replace(run, settings=settings)


def scales(name: str) -> list[str]:
    """What the signature of a registered study offers: `demo` first."""
    offered = [p.annotation for p in studies.entry(name).parameters() if p.name == "scale"]
    return [scale for annotation in offered for scale in get_args(annotation)]
