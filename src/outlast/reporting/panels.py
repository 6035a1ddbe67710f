"""Sheets of panels with sizes in inches: the same panel is the same size in every figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from outlast.reporting.formatting import short, times
from outlast.reporting.style import INK, MARKERS, PALETTE, RULE, SHADE, drawing
from outlast.reporting.summary import ArmSummary

MOST = len(PALETTE)  # arms in one panel
LEFT, RIGHT, TITLE, FOOT, LINE = 0.52, 0.12, 0.34, 0.44, 0.19
SMALL = 7.5  # letters of a key under its panels
LETTERS, FEW_LETTERS = 14, 24  # of a title to an inch of its panel; what is left of the longest


@dataclass(frozen=True)
class Form:
    """A width to draw for: the page and paper, or a phone."""

    name: str
    width: float
    columns: int
    labels: float  # room right of a single panel for the arms' names


WIDE = Form("wide", 9.6, 3, 2.7)
NARROW = Form("narrow", 3.7, 1, 0.0)


@dataclass(frozen=True)
class StyledArm:
    """An arm with the colour and the marker it has in every figure."""

    summary: ArmSummary
    index: int
    label: str
    weight: float = 2.2  # of its line: later arms are thinner, so that none hides another

    @property
    def colour(self) -> str:
        return PALETTE[self.index]

    @property
    def marker(self) -> str:
        return MARKERS[self.index]


@dataclass(frozen=True)
class Group:
    """Arms that share a panel."""

    title: str
    arms: tuple[StyledArm, ...]


def grouped(arms: Sequence[ArmSummary]) -> list[Group]:
    """All arms of one task together while they are few; else by group, a panel's worth at a time.

    A group's first arm, the one the others are compared with, is in every panel of a split group.
    Across groups, arms whose labels end alike ("..., joint") share a colour where that is clear.
    """
    tasks = {arm.run.task for arm in arms if arm.run}
    if len(arms) <= MOST and len(tasks) <= 1:
        drawn = [_styled(arm, i, arm.label) for i, arm in enumerate(arms)]
        return [Group("", tuple(drawn))] if drawn else []
    by_group: dict[str, list[ArmSummary]] = {}
    for arm in arms:
        by_group.setdefault(arm.group or "", []).append(arm)
    if _roles_are_clear(by_group):
        roles = list(dict.fromkeys(_role(arm) for arm in arms))
        return [
            Group(name, tuple(_styled(arm, roles.index(_role(arm)), _role(arm)) for arm in members))
            for name, members in by_group.items()
        ]
    size = _share(max(len(members) for members in by_group.values()))
    return [group for name, members in by_group.items() for group in _split(name, members, size)]


def _styled(arm: ArmSummary, index: int, label: str) -> StyledArm:
    return StyledArm(arm, index, label, 2.6 - 0.2 * index)


def _role(arm: ArmSummary) -> str:
    return arm.label.partition(", ")[2] or arm.label


def _roles_are_clear(by_group: dict[str, list[ArmSummary]]) -> bool:
    roles = {_role(arm) for members in by_group.values() for arm in members}
    each = (len({_role(arm) for arm in m}) == len(m) for m in by_group.values())
    return len(by_group) > 1 and len(roles) <= MOST and all(each)


def _share(arms: int) -> int:
    """How many arms join the first in a panel, if the largest group has so many.

    One number for all groups: arms that stand in the same order have the same colours.
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
        arms = (_styled(arm, i, arm.label) for i, arm in enumerate([first, *part]))
        groups.append(Group(title, tuple(arms)))
    return groups


@dataclass(frozen=True)
class Sheet:
    """A figure, its panels and whether the arms are named at the right of a single panel."""

    figure: Figure
    axes: tuple[Axes, ...]
    form: Form
    direct: bool


Key = tuple[Line2D | Patch, str]


@dataclass(frozen=True)
class Foot:
    """The key of the panels above it: in which row, from which column on, over how many."""

    row: int
    column: int
    span: int
    keys: list[Key]

    def room(self, wide: float) -> float:
        return self.span * wide - LEFT - 0.04


def sheet(
    form: Form,
    panels: Sequence[Group],
    extra: Sequence[Key],
    direct: bool = False,
    height: float = 0,
) -> Sheet:
    """An empty sheet for these panels with its key: at the top if shared, else under each group."""
    direct = direct and form.labels > 0 and len(panels) == 1
    shared = _arms(panels)
    on_top = len({arm.index for arm in shared}) == len(shared)
    blocks = [list(panels)] if on_top else _blocks(panels)
    longest = max(len(block) for block in blocks)
    columns = _columns(form, longest if longest > 1 else len(panels))
    wide = form.width / columns
    cells, feet = _placed(blocks, columns)
    keys = [] if direct else [*(_keys(shared) if on_top else []), *extra]
    feet = [] if on_top else feet
    under = [0.0] * (cells[-1][0] + 1)
    for foot in feet:
        lines = _lines(foot.keys, foot.room(wide), SMALL)
        under[foot.row] = max(under[foot.row], LINE * lines)
    top = LINE * _lines(keys, form.width - 0.2) + (0.06 if keys else 0)
    tall = height or (_single(form) if len(panels) == 1 else 2.2)
    ends = [
        top + (row + 1) * (TITLE + tall + FOOT) + sum(under[:row]) for row in range(len(under))
    ]  # of each row, from the top, without its key
    total = ends[-1] + under[-1]
    right = form.labels if direct else RIGHT
    with drawing():
        figure = Figure(figsize=(form.width, total), dpi=180)
        axes = []
        for row, column in cells:
            bottom = total - ends[row] + FOOT
            box = (column * wide + LEFT, bottom, wide - LEFT - right, tall)
            axes.append(
                figure.add_axes(
                    (box[0] / form.width, box[1] / total, box[2] / form.width, box[3] / total)
                )
            )
        for foot in feet:
            free = 0.15 if foot.row < len(ends) - 1 else 0  # the last row has words there
            corner = (foot.column * wide + LEFT, total - ends[foot.row] + free)
            _legend(figure, foot.keys, foot.room(wide), corner, SMALL)
        if keys:
            _legend(figure, keys, form.width - 0.2, (0.04, total - 0.02))
    return Sheet(figure, tuple(axes), form, direct)


def _arms(panels: Sequence[Group]) -> list[StyledArm]:
    """The arms of these panels, each colour and name once."""
    found = {(arm.index, arm.label): arm for group in panels for arm in group.arms}
    return list(found.values())


def _blocks(panels: Sequence[Group]) -> list[list[Group]]:
    """Neighbouring panels of the same arms."""
    return [list(block) for _, block in groupby(panels, lambda group: group.title)]


def _placed(
    blocks: Sequence[Sequence[Group]], columns: int
) -> tuple[list[tuple[int, int]], list[Foot]]:
    """Row and column of each panel, and the blocks' keys; a block is broken only if it must be."""
    cells: list[tuple[int, int]] = []
    feet = []
    row = column = 0
    for block in blocks:
        if column and column + len(block) > columns:
            row, column = row + 1, 0
        cells += [(row + i // columns, column + i % columns) for i in range(len(block))]
        row = cells[-1][0]
        feet.append(Foot(row, column, min(len(block), columns), _keys(_arms(block))))
        column += len(block)
    return cells, feet


def _single(form: Form) -> float:
    """The height of a panel that stands alone."""
    return 3.9 if form.columns > 1 else 2.6


def entitle(ax: Axes, text: str, pad: float = 8) -> None:
    """The title of a panel, cut to what has room above it."""
    figure = ax.get_figure(root=True)
    width = ax.get_position().width * (figure.get_figwidth() if figure else 0)
    ax.set_title(short(text, max(FEW_LETTERS, int(LETTERS * width))), pad=pad)


def _columns(form: Form, count: int) -> int:
    if form.columns == 1 or count == 1:
        return 1
    return 2 if count in (2, 4) else form.columns


def _keys(arms: Sequence[StyledArm]) -> list[Key]:
    ordered = sorted(arms, key=lambda arm: arm.index)
    return [(_line(arm), arm.label) for arm in ordered]


def _line(arm: StyledArm) -> Line2D:
    return Line2D([], [], color=arm.colour, marker=arm.marker, markersize=4.5, linewidth=2)


def _lines(keys: Sequence[Key], room: float, size: float = 8.0) -> int:
    """How many lines a key takes."""
    sizes = [0.5 + 0.009 * size * len(_cut(label, room, size)) for _, label in keys]
    for lines in range(1, len(sizes)):
        columns = math.ceil(len(sizes) / lines)
        if sum(max(sizes[column::columns]) for column in range(columns)) <= room:
            return lines
    return len(sizes)


def _cut(label: str, room: float, size: float) -> str:
    return short(label, min(44, int((room - 0.4) / (0.0085 * size))))


def _legend(
    figure: Figure,
    keys: Sequence[Key],
    room: float,
    corner: tuple[float, float],
    size: float = 8.0,
) -> None:
    """The key in lines, read left to right; its upper left corner in inches."""
    lines = _lines(keys, room, size)
    columns = math.ceil(len(keys) / lines)
    order = [key for column in range(columns) for key in keys[column::columns]]
    width, total = figure.get_size_inches()
    figure.legend(
        [handle for handle, _ in order],
        [_cut(label, room, size) for _, label in order],
        loc="upper left",
        bbox_to_anchor=(corner[0] / width, corner[1] / total),
        ncols=columns,
        borderaxespad=0,
        borderpad=0.1,
        labelspacing=0.42,
        columnspacing=1.6,
        handlelength=1.7,
        fontsize=size,
    )


def chance_key() -> Key:
    """The key's entry for the chance line."""
    return Line2D([], [], color=INK, linewidth=1, linestyle=(0, (1, 2))), f"chance at {times(1)}"


def range_key() -> Key:
    """The key's entry for the shaded training range."""
    return Patch(facecolor=SHADE, edgecolor=RULE, linewidth=0.6), "trained lengths"
