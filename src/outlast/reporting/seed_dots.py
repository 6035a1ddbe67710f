"""Seed by seed: every arm a line, every seed a dot, at a few lengths.

A mean over seeds that either hold or fail is a number that no seed has; the dots show both heaps.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from outlast.evaluation.statistics import LEVEL
from outlast.reporting.formatting import percent, short, successes, times
from outlast.reporting.panels import Form, StyledArm, grouped
from outlast.reporting.style import INK, MUTED, RULE, drawing
from outlast.reporting.summary import ArmSummary, Measure, multiples_of, variants_of

#: inches: a line, the rim above and below all of them, and what is left between two panels
LINE, HEAD, FOOT, BETWEEN = 0.2, 0.42, 0.3, 0.5
#: the letters of a name that have room in an inch; its rows, and what each takes of a line
LETTERS, ROWS, ROW = 15, 4, 0.65
#: dots nearer than this are drawn one above the other, within so much of their line
NEAR, HEAP = 0.02, 0.7


@dataclass(frozen=True)
class Line:
    """An arm, or the name of the group that follows; its name may have several rows."""

    y: float
    name: str
    arm: StyledArm | None = None

    @property
    def tall(self) -> float:
        return _tall(self.name)


def seed_dots_figure(arms: Sequence[ArmSummary], form: Form) -> Figure | None:
    """Exact accuracy of each seed; None where no arm has two seeds that were tested."""
    versions = variants_of(arms)
    if not versions:
        return None
    found = [
        multiple
        for multiple in _lengths(arms, form)
        if any(len(_seeds(arm, versions[0], multiple)) > 1 for arm in arms)
    ]
    if not found:
        return None
    names = 2.6 if form.columns > 1 else 1.5
    lines = _lines(arms, int(LETTERS * names))
    tall = LINE * sum(line.tall for line in lines)
    height = HEAD + tall + FOOT
    wide = (form.width - names) / len(found)
    with drawing():
        figure = Figure(figsize=(form.width, height), dpi=180)
        for column, multiple in enumerate(found):
            box = (names + column * wide, FOOT, wide - BETWEEN, tall)
            ax = figure.add_axes(
                (box[0] / form.width, box[1] / height, box[2] / form.width, box[3] / height)
            )
            _panel(ax, lines, versions[0], multiple)
            if not column:
                _names(ax, lines, names, box[2])
    return figure


def _lengths(arms: Sequence[ArmSummary], form: Form) -> list[float]:
    """The trained length, about three times that, and the longest; on a phone one alone."""
    tested = multiples_of(arms)
    middle = min((m for m in tested if m > 1), key=lambda m: abs(m - 3), default=tested[-1])
    return [middle] if form.columns == 1 else sorted({tested[0], middle, tested[-1]})


def _lines(arms: Sequence[ArmSummary], letters: int) -> list[Line]:
    """The lines from the top; ``letters`` of a name have room in a row."""
    named = _named(arms)
    rows = _rows([name for name, arm in named if arm], letters)
    lines: list[Line] = []
    y = 0.0
    for name, arm in named:
        text = rows[name] if arm else name
        y += (lines[-1].tall + _tall(text)) / 2 if lines else 0
        lines.append(Line(y, text, arm))
    return lines


def _tall(name: str) -> float:
    """How many lines a name of so many rows takes."""
    return max(1.0, ROW * (name.count("\n") + 1))


def _rows(names: Sequence[str], letters: int) -> dict[str, str]:
    """Names in rows; one that is longer than some rows is cut, unless it then reads as another."""
    cut = {name: short(name, ROWS * letters) for name in names}
    kept = {n: c if list(cut.values()).count(c) == 1 else n for n, c in cut.items()}
    return {
        name: "\n".join(textwrap.wrap(text, letters, break_on_hyphens=False))
        for name, text in kept.items()
    }


def _named(arms: Sequence[ArmSummary]) -> list[tuple[str, StyledArm | None]]:
    """Each group's name, and its arms' without the words that all of them begin with."""
    styled = {id(arm.summary): arm for group in grouped(arms) for arm in group.arms}
    groups = dict.fromkeys(arm.group or "" for arm in arms)
    same = _same_words([arm.label for arm in arms])
    found: list[tuple[str, StyledArm | None]] = []
    for group in groups:
        members = [arm for arm in arms if (arm.group or "") == group]
        named = len(groups) > 1 and group != ""
        if named:
            found.append((group, None))
        cut = max(same, _shared(members) if named else 0)
        found += [(arm.label[cut:], styled[id(arm)]) for arm in members]
    return found


def _same_words(labels: Sequence[str]) -> int:
    """The letters of the words that all labels begin with; each keeps a word, brackets whole."""
    if len(labels) < 2:
        return 0
    columns = list(zip(*(label.split(" ")[:-1] for label in labels), strict=False))
    words = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
    while words and not _closed(" ".join(words)):
        words.pop()
    return sum(len(word) + 1 for word in words)


def _closed(text: str) -> bool:
    return all(text.count(a) == text.count(b) for a, b in ("()", "[]", "“”"))


def _shared(members: Sequence[ArmSummary]) -> int:
    """The letters that all labels of a group begin with, up to a comma: "serial x4, "."""
    before = {arm.label.partition(", ")[0] for arm in members}
    commas = all(", " in arm.label for arm in members)
    return len(before.pop()) + 2 if commas and len(before) == 1 and len(members) > 1 else 0


def _measure(arm: ArmSummary, variant: str | None, multiple: float) -> Measure | None:
    ladder = arm.ladder(variant)
    return ladder.at(multiple) if ladder else None


def _seeds(arm: ArmSummary, variant: str | None, multiple: float) -> list[float]:
    measure = _measure(arm, variant, multiple)
    return list(measure.seeds.values()) if measure else []


def _panel(ax: Axes, lines: Sequence[Line], variant: str | None, multiple: float) -> None:
    ax.set_xlim(-0.03, 1.03)
    ax.set_ylim(lines[-1].y + lines[-1].tall / 2, -lines[0].tall / 2)
    ax.set_xticks([0, 0.5, 1], ["0", "50", "100 %"])
    ax.set_yticks([])
    ax.grid(visible=False)
    ax.spines["left"].set_visible(False)
    ax.set_title(times(multiple), pad=6)
    ax.axvline(LEVEL, color=MUTED, linewidth=0.7, linestyle=(0, (1, 2)), zorder=1)
    for line in lines:
        if line.arm is None:
            continue
        ax.axhline(line.y, color=RULE, linewidth=0.6, zorder=0)
        measure = _measure(line.arm.summary, variant, multiple)
        if measure is None:
            ax.text(0.5, line.y, "not tested", ha="center", va="center", color=MUTED, fontsize=7)
            continue
        xs, ys = _heaped(list(measure.seeds.values()))
        ax.plot(
            xs,
            [line.y + y for y in ys],
            linestyle="",
            marker="o",
            markersize=3.4,
            markeredgewidth=0,
            alpha=0.75,
            color=line.arm.colour,
            clip_on=False,
            zorder=3,
        )
        mean = measure.summary.mean
        ax.plot([mean] * 2, [line.y - 0.4, line.y + 0.4], color=INK, linewidth=1, zorder=4)
        ax.text(
            1.03,
            line.y,
            f" {successes(measure.summary)}",
            transform=ax.get_yaxis_transform(),
            va="center",
            color=MUTED,
            fontsize=7,
        )
    over = f"≥ {percent(LEVEL, 0)} %"
    ax.text(1.03, 1, f" {over}", transform=ax.transAxes, va="bottom", color=MUTED, fontsize=7)


def _heaped(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """The values in order, and how far from their line each is drawn: no dot hides another."""
    heaps: list[list[float]] = []
    for value in sorted(values):
        if heaps and value - heaps[-1][0] < NEAR:
            heaps[-1].append(value)
        else:
            heaps.append([value])
    ys = []
    for heap in heaps:
        step = min(0.2, HEAP / max(1, len(heap) - 1))
        ys += [step * (i - (len(heap) - 1) / 2) for i in range(len(heap))]
    return [value for heap in heaps for value in heap], ys


def _names(ax: Axes, lines: Sequence[Line], room: float, wide: float) -> None:
    for line in lines:
        group = line.arm is None
        ax.text(
            -(room - 0.05) / wide,
            line.y,
            line.name,
            transform=ax.get_yaxis_transform(),
            va="center",
            linespacing=1.1,
            fontsize=8 if group else 7.5,
            fontweight="bold" if group else "normal",
            color=INK if line.arm is None else line.arm.colour,
        )
