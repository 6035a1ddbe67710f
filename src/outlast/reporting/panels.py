"""A grid of panels and the keys that name their arms, placed by constrained layout.

The size of a panel is fixed: the same panel is the same size in every figure. Matplotlib measures
everything around it (titles, ticks, keys), and the figure becomes as high as they need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from outlast.reporting.formatting import in_rows, times, wrapped
from outlast.reporting.groups import Group, StyledArm
from outlast.reporting.hover import HoverFigure
from outlast.reporting.style import INK, RULE, SHADE, drawing

PANEL, SINGLE_WIDE, SINGLE_NARROW = 2.2, 3.9, 2.6  # inches: the height of a panel
ROWS = (1, 1e-4, 0.1)  # panels, the key that hangs under them, a gap
LETTERS = 15  # of a key that fit in an inch
KEY_LETTERS, KEY_ROWS = 40, 5  # of one label in a key
Key = tuple[Line2D | Patch, str]


@dataclass(frozen=True)
class Form:
    """A width to draw for, in inches: the page and paper, or a phone."""

    name: str
    width: float
    columns: int
    letters: int  # of an arm's name beside a panel, before it breaks into rows


WIDE = Form("wide", 9.6, 3, 38)
NARROW = Form("narrow", 3.7, 1, 22)


@dataclass(frozen=True)
class Block:
    """Panels of the same arms, and the cells of the grid that they stand in: row and column."""

    groups: Sequence[Group]
    cells: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Panels:
    """A figure with empty panels. If ``direct``, the arms are named beside the only panel."""

    figure: HoverFigure
    axes: tuple[Axes, ...]
    corner: Axes
    height: float
    direct: bool

    def set_title(self, ax: Axes, text: str) -> None:
        """Set a panel's title, in two rows if it is long, above the notes of a direct panel."""
        letters = 12 * self.figure.get_figwidth() / _grid(ax).ncols
        ax.set_title(wrapped(text, int(letters) - 4, 2), pad=16 if self.direct else 6)

    def finish(self, xlabel: str) -> HoverFigure:
        """Say once what the x axes show, and lay the figure out."""
        self.corner.set_xlabel(xlabel, loc="left")
        fit_height(self.figure, self.corner, self.height)
        return self.figure


def fit_height(figure: Figure, ax: Axes, height: float) -> None:
    """Lay a figure out, and make it so high that this panel has ``height`` inches."""
    layout = ConstrainedLayoutEngine(h_pad=0.06, w_pad=0.06, hspace=0, wspace=0)
    rows = float(np.sum(_grid(ax).get_height_ratios()))
    figure.set_figheight(rows * (height + 2) + 3)  # surely enough
    layout.execute(figure)
    excess = ax.get_position().height * figure.get_figheight() - height
    figure.set_figheight(figure.get_figheight() - rows * excess)
    layout.execute(figure)


def _grid(ax: Axes) -> GridSpec:
    grid = ax.get_gridspec()
    assert isinstance(grid, GridSpec)
    return grid


def panel_grid(
    form: Form, groups: Sequence[Group], extra: Sequence[Key], direct: bool = False
) -> Panels:
    """Empty panels with their key: on top if all share it, else under each block of panels.

    Panels of one title stand together: they begin a row if they do not fit beside what is there.
    """
    single, wide = len(groups) == 1, form.columns > 1
    direct = direct and single and wide
    arms = _arms(groups)
    shared = len({arm.index for arm in arms}) == len(arms)
    runs = [list(run) for _, run in groupby(groups, lambda group: group.title)]
    longest = max(map(len, runs))
    columns = _columns(form, longest if longest > 1 else len(groups))
    blocks = _blocks(runs, columns)
    rows = blocks[-1].cells[-1][0] + 1
    with drawing():
        figure = HoverFigure(figsize=(form.width, 1), dpi=180)
        grid = figure.add_gridspec(3 * rows - 1, columns, height_ratios=(ROWS * rows)[:-1])
        cells = [cell for block in blocks for cell in block.cells]
        axes = {cell: figure.add_subplot(grid[3 * cell[0], cell[1]]) for cell in cells}
        for block in () if shared else blocks:
            _hang_key(figure, grid, block, form.width / columns)
        keys = [] if direct else [*(_keys(arms) if shared else []), *extra]
        if keys:
            legend(figure, keys, form.width, loc="outside upper left", borderaxespad=0.4)
    height = PANEL if not single else SINGLE_WIDE if wide else SINGLE_NARROW
    return Panels(figure, tuple(axes.values()), axes[rows - 1, 0], height, direct)


def _arms(groups: Sequence[Group]) -> list[StyledArm]:
    """The arms of these panels, each colour and name once, in the order of the colours."""
    arms = {(arm.index, arm.label): arm for group in groups for arm in group.arms}
    return sorted(arms.values(), key=lambda arm: arm.index)


def _columns(form: Form, panels: int) -> int:
    if form.columns == 1 or panels == 1:
        return 1
    return 2 if panels in (2, 4) else form.columns


def _blocks(runs: Sequence[Sequence[Group]], columns: int) -> list[Block]:
    """Each run of panels in cells of the grid. Only a run that is too long for a row is broken."""
    blocks: list[Block] = []
    row = column = 0
    for run in runs:
        if column and column + len(run) > columns:
            row, column = row + 1, 0
        cells = [(row + i // columns, column + i % columns) for i in range(len(run))]
        blocks.append(Block(run, cells))
        row, column = cells[-1][0], column + len(run)
    return blocks


def _hang_key(figure: Figure, grid: GridSpec, block: Block, cell_width: float) -> None:
    """A block's key, under its last row of panels."""
    row = block.cells[-1][0]
    columns = sorted({column for _, column in block.cells})
    place = figure.add_subplot(grid[3 * row + 1, columns[0] : columns[-1] + 1])
    place.set_axis_off()
    room = len(columns) * cell_width - 0.6
    legend(place, _keys(_arms(block.groups)), room, loc="upper left", borderaxespad=0)


def _keys(arms: Sequence[StyledArm]) -> list[Key]:
    return [(_line(arm), arm.label) for arm in arms]


def _line(arm: StyledArm) -> Line2D:
    return Line2D([], [], color=arm.colour, marker=arm.marker, markersize=4.5, linewidth=2)


def legend(parent: Figure | Axes, keys: Sequence[Key], room: float, **place: Any) -> None:
    """A key of as few rows as fit in ``room`` inches, read from left to right."""
    labels = in_rows([label for _, label in keys], KEY_LETTERS, KEY_ROWS)
    columns = _key_columns(labels, room)
    order = [i for column in range(columns) for i in range(column, len(keys), columns)]
    parent.legend(
        [keys[i][0] for i in order],
        [labels[i] for i in order],
        ncols=columns,
        borderpad=0.1,
        labelspacing=0.42,
        columnspacing=1.6,
        handlelength=1.7,
        **place,
    )


def _key_columns(labels: Sequence[str], room: float) -> int:
    """How many columns of a key fit in ``room`` inches."""
    widths = [0.5 + max(map(len, label.split("\n"))) / LETTERS for label in labels]
    for rows in range(1, len(labels)):
        columns = math.ceil(len(labels) / rows)
        if sum(max(widths[column::columns]) for column in range(columns)) <= room:
            return columns
    return 1


def chance_key() -> Key:
    """The key's entry for the chance line."""
    return Line2D([], [], color=INK, linewidth=1, linestyle=(0, (1, 2))), f"chance at {times(1)}"


def range_key() -> Key:
    """The key's entry for the shaded training range."""
    return Patch(facecolor=SHADE, edgecolor=RULE, linewidth=0.6), "trained lengths"
