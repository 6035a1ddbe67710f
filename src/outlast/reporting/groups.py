"""Which arms share a panel, and the colour and marker each arm has in every figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from outlast.reporting.style import MARKERS, PALETTE
from outlast.reporting.summary import ArmSummary

MOST = len(PALETTE)  # arms in one panel


@dataclass(frozen=True)
class StyledArm:
    """An arm with the colour and the marker it has in every figure."""

    summary: ArmSummary
    index: int
    label: str

    @property
    def colour(self) -> str:
        return PALETTE[self.index]

    @property
    def marker(self) -> str:
        return MARKERS[self.index]

    @property
    def weight(self) -> float:
        """The width of its line. Later arms are thinner, so that none hides another."""
        return 2.6 - 0.2 * self.index


@dataclass(frozen=True)
class Group:
    """Arms that share a panel."""

    title: str
    arms: tuple[StyledArm, ...]


def grouped(arms: Sequence[ArmSummary]) -> list[Group]:
    """The groups of arms that share a panel.

    A few arms of one task form one group. Otherwise each group of the study is one, and it is split
    if it has more arms than colours. The first arm of a split group is the one that the others are
    compared with: it is in every part. Arms of different groups whose labels end alike
    ("..., joint") share a colour where that is clear.
    """
    tasks = {arm.run.record.short.task for arm in arms if arm.run}
    if len(arms) <= MOST and len(tasks) <= 1:
        drawn = [StyledArm(arm, i, arm.label) for i, arm in enumerate(arms)]
        return [Group("", tuple(drawn))] if drawn else []
    by_group: dict[str, list[ArmSummary]] = {}
    for arm in arms:
        by_group.setdefault(arm.group or "", []).append(arm)
    if _roles_are_clear(by_group):
        roles = list(dict.fromkeys(_role(arm) for arm in arms))
        return [
            Group(
                name, tuple(StyledArm(arm, roles.index(_role(arm)), _role(arm)) for arm in members)
            )
            for name, members in by_group.items()
        ]
    size = _share(max(len(members) for members in by_group.values()))
    return [group for name, members in by_group.items() for group in _split(name, members, size)]


def _role(arm: ArmSummary) -> str:
    return arm.label.partition(", ")[2] or arm.label


def _roles_are_clear(by_group: dict[str, list[ArmSummary]]) -> bool:
    roles = {_role(arm) for members in by_group.values() for arm in members}
    each = (len({_role(arm) for arm in m}) == len(m) for m in by_group.values())
    return len(by_group) > 1 and len(roles) <= MOST and all(each)


def _share(arms: int) -> int:
    """How many arms join the first one in a panel, if the largest group has ``arms``.

    The number is the same for all groups, so that arms in the same order have the same colours.
    """
    others, most = max(1, arms - 1), MOST - 1
    return math.ceil(others / math.ceil(others / most))


def _split(name: str, members: list[ArmSummary], size: int) -> list[Group]:
    first, *others = members
    size = size if len(members) > MOST else MOST
    parts = [others[start : start + size] for start in range(0, len(others), size)] or [[]]
    groups = []
    for number, part in enumerate(parts, 1):
        title = f"{name} ({number}/{len(parts)})".strip() if len(parts) > 1 else name
        arms = (StyledArm(arm, i, arm.label) for i, arm in enumerate([first, *part]))
        groups.append(Group(title, tuple(arms)))
    return groups
