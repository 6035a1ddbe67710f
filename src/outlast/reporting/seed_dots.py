"""Seed by seed: every arm a line, every seed a dot, at a few lengths.

If some seeds hold and others fail, their mean is a number that no seed has. The dots show both
heaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from matplotlib.axes import Axes

from outlast.evaluation.statistics import LEVEL
from outlast.reporting.formatting import in_rows, percent, successes, times
from outlast.reporting.groups import StyledArm, grouped
from outlast.reporting.hover import HoverFigure
from outlast.reporting.hover_values import accuracy_texts, add_accuracies
from outlast.reporting.panels import Form, fit_height
from outlast.reporting.style import INK, MUTED, RULE, drawing
from outlast.reporting.summary import ArmSummary, Measure, multiples_of, variants_of

LINE = 0.2  # inches: the height of a line
ROWS, ROW = 6, 0.65  # the most rows of a name, and what each takes of a line
#: dots nearer than this are drawn one above the other, within so much of their line
NEAR, HEAP = 0.02, 0.7


@dataclass(frozen=True)
class Line:
    """An arm, or the name of the group that follows (no arm). A name may have several rows."""

    y: float
    name: str
    arm: StyledArm | None

    @property
    def height(self) -> float:
        return _height(self.name)


def seed_dots_figure(arms: Sequence[ArmSummary], form: Form) -> HoverFigure | None:
    """Exact accuracy of each seed. None if no arm has two seeds that were tested."""
    variants = variants_of(arms)
    if not variants:
        return None
    shown = [
        multiple
        for multiple in _lengths(arms, form)
        if any(len(_seeds(arm, variants[0], multiple)) > 1 for arm in arms)
    ]
    if not shown:
        return None
    lines = _lines(arms, form.letters)
    with drawing():
        figure = HoverFigure(figsize=(form.width, 1), dpi=180)
        panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
        for ax, multiple in zip(panels, shown, strict=True):
            _panel(ax, lines, variants[0], multiple)
        _name_lines(panels[0], lines)
        fit_height(figure, panels[0], LINE * sum(line.height for line in lines))
    return figure


def _lengths(arms: Sequence[ArmSummary], form: Form) -> list[float]:
    """The trained length, about three times that, and the longest; on a phone one alone."""
    tested = multiples_of(arms)
    middle = min((m for m in tested if m > 1), key=lambda m: abs(m - 3), default=tested[-1])
    return [middle] if form.columns == 1 else sorted({tested[0], middle, tested[-1]})


def _lines(arms: Sequence[ArmSummary], letters: int) -> list[Line]:
    """The lines from the top. A row of a name has at most ``letters``."""
    named = _named(arms)
    texts = iter(in_rows([name for name, arm in named if arm], letters, ROWS))
    lines: list[Line] = []
    y = 0.0
    for name, arm in named:
        text = next(texts) if arm else name
        y += (lines[-1].height + _height(text)) / 2 if lines else 0
        lines.append(Line(y, text, arm))
    return lines


def _height(name: str) -> float:
    """How many lines a name takes."""
    return max(1.0, ROW * (name.count("\n") + 1))


def _named(arms: Sequence[ArmSummary]) -> list[tuple[str, StyledArm | None]]:
    """Each group's name, and its arms' without the words that all of them begin with."""
    styled = {id(arm.summary): arm for group in grouped(arms) for arm in group.arms}
    groups = dict.fromkeys(arm.group or "" for arm in arms)
    same = _same_words([arm.label for arm in arms])
    lines: list[tuple[str, StyledArm | None]] = []
    for group in groups:
        members = [arm for arm in arms if (arm.group or "") == group]
        named = len(groups) > 1 and group != ""
        if named:
            lines.append((group, None))
        cut = max(same, _shared(members) if named else 0)
        lines += [(arm.label[cut:], styled[id(arm)]) for arm in members]
    return lines


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
    ax.set_ylim(lines[-1].y + lines[-1].height / 2, -lines[0].height / 2)
    ax.set_xticks([0, 0.5, 1], ["0", "50", "100 %"])
    ax.grid(visible=False)
    ax.spines["left"].set_visible(False)
    ax.set_title(times(multiple))
    ax.axvline(LEVEL, color=MUTED, linewidth=0.7, linestyle=(0, (1, 2)), zorder=1)
    for line in lines:
        if line.arm:
            ax.axhline(line.y, color=RULE, linewidth=0.6, zorder=0)
            measure = _measure(line.arm.summary, variant, multiple)
            _draw_arm(ax, line.y, line.arm, measure)
            if measure:
                _add_values(ax, line.y, line.arm.summary, variant, multiple)
    over = f"≥ {percent(LEVEL, 0)} %"
    ax.text(1.03, 1, f" {over}", transform=ax.transAxes, va="bottom", color=MUTED, fontsize=7)


def _draw_arm(ax: Axes, y: float, arm: StyledArm, measure: Measure | None) -> None:
    """The dots of the seeds, their mean, and how many of them hold."""
    if measure is None:
        ax.text(0.5, y, "not tested", ha="center", va="center", color=MUTED, fontsize=7)
        return
    xs, ys = heaped(list(measure.seeds.values()))
    ax.plot(
        xs,
        [y + above for above in ys],
        linestyle="",
        marker="o",
        markersize=3.4,
        markeredgewidth=0,
        alpha=0.75,
        color=arm.colour,
        clip_on=False,
        zorder=3,
    )
    ax.plot([measure.summary.mean] * 2, [y - 0.4, y + 0.4], color=INK, linewidth=1, zorder=4)
    ax.text(
        1.03,
        y,
        f" {successes(measure.summary)}",
        transform=ax.get_yaxis_transform(),
        va="center",
        color=MUTED,
        fontsize=7,
    )


def _add_values(ax: Axes, y: float, arm: ArmSummary, variant: str | None, multiple: float) -> None:
    """What the dots and the stroke say on hover."""
    ladder = arm.ladder(variant)
    rung = ladder.rung(multiple) if ladder else None
    if rung is None:
        return
    measure, texts = rung.exact["joint"], accuracy_texts(arm, variant, rung)
    seeds = sorted(measure.seeds, key=measure.seeds.__getitem__)
    xs, ys = heaped([measure.seeds[seed] for seed in seeds])
    places = [(seed, x, y + above) for seed, x, above in zip(seeds, xs, ys, strict=True)]
    add_accuracies(ax, arm.label, texts, places, (measure.summary.mean, y))


def heaped(values: Sequence[float]) -> tuple[list[float], list[float]]:
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


def _name_lines(ax: Axes, lines: Sequence[Line]) -> None:
    """The names as labels of the y axis. The dots beside them have the arms' colours."""
    names = [line.name for line in lines]
    ax.set_yticks([line.y for line in lines], names, va="center", linespacing=1.1)
    for label, line in zip(ax.get_yticklabels(), lines, strict=True):
        label.set_color(INK)
        label.set_fontweight("normal" if line.arm else "bold")
