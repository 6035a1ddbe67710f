"""Seed by seed: every arm a line, every seed a dot, at a few lengths.

A mean over seeds that either hold or fail is a number that no seed has; the dots show both heaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from outlast.evaluate.statistics import LEVEL
from outlast.report.digest import Digest, Measure, multiples_of, variants_of
from outlast.report.sheet import Form, Styled, grouped
from outlast.report.style import INK, MUTED, RULE, drawing
from outlast.report.words import percent, short, successes, times

#: inches: a line, the rim above and below all of them, and what is left between two panels
LINE, HEAD, FOOT, BETWEEN = 0.2, 0.42, 0.3, 0.5
#: the letters of a name that have room in an inch
LETTERS = 15
#: dots nearer than this are drawn one above the other, within so much of their line
NEAR, HEAP = 0.02, 0.7


@dataclass(frozen=True)
class Line:
    """An arm, or the name of the group that follows."""

    y: int
    name: str
    arm: Styled | None = None


def strip_figure(digests: Sequence[Digest], form: Form) -> Figure | None:
    """Exact accuracy of each seed; None where no arm has two seeds that were tested."""
    versions = variants_of(digests)
    if not versions:
        return None
    found = [
        multiple
        for multiple in _lengths(digests, form)
        if any(len(_seeds(d, versions[0], multiple)) > 1 for d in digests)
    ]
    if not found:
        return None
    lines = _lines(digests)
    names = 2.6 if form.columns > 1 else 1.5
    height = HEAD + LINE * len(lines) + FOOT
    wide = (form.width - names) / len(found)
    with drawing():
        figure = Figure(figsize=(form.width, height), dpi=180)
        for column, multiple in enumerate(found):
            box = (names + column * wide, FOOT, wide - BETWEEN, LINE * len(lines))
            ax = figure.add_axes(
                (box[0] / form.width, box[1] / height, box[2] / form.width, box[3] / height)
            )
            _panel(ax, lines, versions[0], multiple)
            if not column:
                _names(ax, lines, names, box[2])
    return figure


def _lengths(digests: Sequence[Digest], form: Form) -> list[float]:
    """The trained length, about three times that, and the longest; on a phone one alone."""
    tested = multiples_of(digests)
    middle = min((m for m in tested if m > 1), key=lambda m: abs(m - 3), default=tested[-1])
    return [middle] if form.columns == 1 else sorted({tested[0], middle, tested[-1]})


def _lines(digests: Sequence[Digest]) -> list[Line]:
    styled = {id(arm.digest): arm for group in grouped(digests) for arm in group.arms}
    groups = dict.fromkeys(d.arm.group or "" for d in digests)
    lines: list[Line] = []
    for group in groups:
        members = [d for d in digests if (d.arm.group or "") == group]
        named = len(groups) > 1 and group != ""
        if named:
            lines.append(Line(len(lines), group))
        cut = _shared(members) if named else 0
        lines += [
            Line(len(lines) + i, d.arm.label[cut:], styled[id(d)]) for i, d in enumerate(members)
        ]
    return lines


def _shared(members: Sequence[Digest]) -> int:
    """The letters that all labels of a group begin with, up to a comma: "serial x4, "."""
    before = {d.arm.label.partition(", ")[0] for d in members}
    commas = all(", " in d.arm.label for d in members)
    return len(before.pop()) + 2 if commas and len(before) == 1 and len(members) > 1 else 0


def _measure(d: Digest, variant: str | None, multiple: float) -> Measure | None:
    ladder = d.ladder(variant)
    return ladder.at(multiple) if ladder else None


def _seeds(d: Digest, variant: str | None, multiple: float) -> list[float]:
    measure = _measure(d, variant, multiple)
    return list(measure.seeds.values()) if measure else []


def _panel(ax: Axes, lines: Sequence[Line], variant: str | None, multiple: float) -> None:
    ax.set_xlim(-0.03, 1.03)
    ax.set_ylim(len(lines) - 0.5, -0.5)
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
        measure = _measure(line.arm.digest, variant, multiple)
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
            line.name if group else short(line.name, int(LETTERS * room)),  # nothing beside it
            transform=ax.get_yaxis_transform(),
            va="center",
            fontsize=8 if group else 7.5,
            fontweight="bold" if group else "normal",
            color=INK if line.arm is None else line.arm.colour,
        )
