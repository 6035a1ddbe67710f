"""Sheets of panels with sizes in inches: the same panel is the same size in every figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from outlast.report.digest import Digest
from outlast.report.style import INK, MARKERS, PALETTE, RULE, SHADE, drawing
from outlast.report.words import short, times

MOST = len(PALETTE)  # arms in one panel
LEFT, RIGHT, TITLE, FOOT, LINE = 0.52, 0.12, 0.34, 0.44, 0.19


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
class Styled:
    """An arm with the colour and the marker it has in every figure."""

    digest: Digest
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
    arms: tuple[Styled, ...]


def grouped(digests: Sequence[Digest]) -> list[Group]:
    """All arms of one task together while they are few; else by group, a panel's worth at a time.

    A group's first arm, the one the others are compared with, is in every panel of a split group.
    Across groups, arms whose labels end alike ("..., joint") share a colour where that is clear.
    """
    tasks = {d.run.task for d in digests if d.run}
    if len(digests) <= MOST and len(tasks) <= 1:
        arms = [_styled(d, i, d.arm.label) for i, d in enumerate(digests)]
        return [Group("", tuple(arms))] if arms else []
    by_group: dict[str, list[Digest]] = {}
    for d in digests:
        by_group.setdefault(d.arm.group or "", []).append(d)
    if _roles_are_clear(by_group):
        roles = list(dict.fromkeys(_role(d) for d in digests))
        return [
            Group(name, tuple(_styled(d, roles.index(_role(d)), _role(d)) for d in members))
            for name, members in by_group.items()
        ]
    size = _share(max(len(members) for members in by_group.values()))
    return [group for name, members in by_group.items() for group in _split(name, members, size)]


def _styled(d: Digest, index: int, label: str) -> Styled:
    return Styled(d, index, label, 2.6 - 0.2 * index)


def _role(d: Digest) -> str:
    return d.arm.label.partition(", ")[2] or d.arm.label


def _roles_are_clear(by_group: dict[str, list[Digest]]) -> bool:
    roles = {_role(d) for members in by_group.values() for d in members}
    each = (len({_role(d) for d in m}) == len(m) for m in by_group.values())
    return len(by_group) > 1 and len(roles) <= MOST and all(each)


def _share(arms: int) -> int:
    """How many arms join the first in a panel, if the largest group has so many.

    One number for all groups: arms that stand in the same order have the same colours.
    """
    others, most = max(1, arms - 1), MOST - 1
    return math.ceil(others / math.ceil(others / most))


def _split(name: str, members: list[Digest], size: int) -> list[Group]:
    first, *others = members
    size = size if len(members) > MOST else MOST
    parts = [others[start : start + size] for start in range(0, len(others), size)] or [[]]
    groups = []
    for number, part in enumerate(parts, 1):
        title = f"{name} ({number}/{len(parts)})".strip() if len(parts) > 1 else name
        arms = (_styled(d, i, d.arm.label) for i, d in enumerate([first, *part]))
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


def sheet(
    form: Form,
    panels: Sequence[Group],
    extra: Sequence[Key],
    direct: bool = False,
    height: float = 0,
) -> Sheet:
    """An empty sheet for these panels with its key: at the top if shared, else under each panel."""
    direct = direct and form.labels > 0 and len(panels) == 1
    columns = _columns(form, len(panels))
    rows = math.ceil(len(panels) / columns)
    shared = list(dict.fromkeys((arm.index, arm.label) for group in panels for arm in group.arms))
    on_top = len({index for index, _ in shared}) == len(shared)
    keys = [*((_line(i), label) for i, label in shared), *extra] if on_top else list(extra)
    keys = [] if direct else keys
    across = _across(form, [label for _, label in keys])
    top = LINE * math.ceil(len(keys) / across) + (0.06 if keys else 0)
    under = 0 if on_top else LINE * max(len(group.arms) for group in panels)
    tall = height or (_single(form) if len(panels) == 1 else 1.9)
    cell = TITLE + tall + FOOT + under
    total = top + rows * cell
    right = form.labels if direct else RIGHT
    wide = form.width / columns
    with drawing():
        figure = Figure(figsize=(form.width, total), dpi=180)
        axes = []
        for index, group in enumerate(panels):
            row, column = divmod(index, columns)
            bottom = total - top - (row + 1) * cell + FOOT + under
            box = (column * wide + LEFT, bottom, wide - LEFT - right, tall)
            ax = figure.add_axes(
                (box[0] / form.width, box[1] / total, box[2] / form.width, box[3] / total)
            )
            axes.append(ax)
            if not on_top:
                _legend_under(ax, group, tall)
        if keys:
            _legend_on_top(figure, keys, across, total, form)
    return Sheet(figure, tuple(axes), form, direct)


def _single(form: Form) -> float:
    """The height of a panel that stands alone."""
    return 3.9 if form.columns > 1 else 2.6


def _columns(form: Form, count: int) -> int:
    if form.columns == 1 or count == 1:
        return 1
    return 2 if count in (2, 4) else form.columns


def _across(form: Form, labels: Sequence[str]) -> int:
    """How many entries of the key fit side by side."""
    longest = max((len(short(label, 44)) for label in labels), default=1)
    return max(1, int((form.width - 0.2) / (0.5 + 0.072 * longest)))


def _line(index: int) -> Line2D:
    marker, colour = MARKERS[index], PALETTE[index]
    return Line2D([], [], color=colour, marker=marker, markersize=4.5, linewidth=2)


def _legend_on_top(
    figure: Figure, keys: Sequence[Key], across: int, total: float, form: Form
) -> None:
    """The key in rows, read left to right."""
    rows = math.ceil(len(keys) / across)
    columns = math.ceil(len(keys) / rows)
    order = [
        keys[r * columns + c]
        for c in range(columns)
        for r in range(rows)
        if r * columns + c < len(keys)
    ]
    figure.legend(
        [handle for handle, _ in order],
        [short(label, 44) for _, label in order],
        loc="upper left",
        bbox_to_anchor=(0.04 / form.width, 1 - 0.02 / total),
        ncols=columns,
        borderaxespad=0,
        borderpad=0.1,
        labelspacing=0.42,
        columnspacing=1.6,
        handlelength=1.7,
    )


def _legend_under(ax: Axes, group: Group, tall: float) -> None:
    ax.legend(
        [_line(arm.index) for arm in group.arms],
        [short(arm.label, 42) for arm in group.arms],
        loc="upper left",
        bbox_to_anchor=(0, -FOOT / tall),
        borderaxespad=0,
        borderpad=0,
        labelspacing=0.42,
        handlelength=1.7,
        fontsize=7.2,
    )


def chance_key() -> Key:
    """The key's entry for the chance line."""
    return Line2D([], [], color=INK, linewidth=1, linestyle=(0, (1, 2))), f"chance at {times(1)}"


def range_key() -> Key:
    """The key's entry for the shaded training range."""
    return Patch(facecolor=SHADE, edgecolor=RULE, linewidth=0.6), "trained lengths"
