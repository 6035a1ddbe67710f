"""What the figures show: whose lines, in which colours, and which names under them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from report_folders import MULTIPLES, write_run, write_study

from outlast.report.digest import Digest, digest
from outlast.report.load import read
from outlast.report.plots import accuracy_figure
from outlast.report.sheet import MOST, WIDE, Form, grouped
from outlast.report.style import PALETTE

THREE = (None, "sparse", "dense")


def study(
    folder: Path, groups: dict[str, int], variants: Sequence[str | None] = (None,), until: int = 0
) -> list[Digest]:
    """Arms 0, 1, 2, ... in each group, no two of them alike; the first group has the variants."""
    arms = [(f"{group}-{i}", f"arm {i}", group) for group, n in groups.items() for i in range(n)]
    for salt, (name, label, group) in enumerate(arms):
        tested = variants if group == next(iter(groups)) else (None,)
        write_run(
            folder / name, label, seeds=(0,), reach=1 + salt / 4, variants=tested, until=until,
            salt=salt, task=group,
        )  # fmt: skip
    return [digest(arm) for arm in read([write_study(folder, arms, [])])[0].arms]


def figure_of(digests: list[Digest], form: Form = WIDE) -> Figure:
    figure = accuracy_figure(digests, ["joint"], form)
    assert figure is not None
    return figure


def title(ax: Axes) -> str:
    return ax.get_title(loc="left")


def test_the_first_arm_is_in_every_panel_of_its_group_in_its_colour(tmp_path: Path) -> None:
    arms = study(tmp_path, {"g": 16}, THREE)
    figure = figure_of(arms)
    assert [title(ax) for ax in figure.axes] == [
        f"g ({part}/3) · {variant}"
        for part in (1, 2, 3)
        for variant in ("plain", "sparse", "dense")
    ]
    for column, variant in enumerate(THREE):
        ladder = arms[0].ladder(variant)
        assert ladder is not None
        for ax in figure.axes[column::3]:
            lines = [line for line in ax.lines if line.get_color() == PALETTE[0]]
            found = {point for line in lines for point in zip(*line.get_data(), strict=True)}
            assert found == set(zip(MULTIPLES, ladder.means(), strict=True))


def test_every_other_arm_is_in_one_panel(tmp_path: Path) -> None:
    groups = grouped(study(tmp_path, {"g": 16, "h": 9, "few": 7, "one": 1}))
    assert [group.title for group in groups] == [
        "g (1/3)", "g (2/3)", "g (3/3)", "h (1/2)", "h (2/2)", "few", "one",
    ]  # fmt: skip
    for name, count in {"g": 16, "h": 9, "few": 7, "one": 1}.items():
        parts = [group.arms for group in groups if group.title.split()[0] == name]
        assert all([arm.index for arm in part] == list(range(len(part))) for part in parts)
        assert all(part[0].label == "arm 0" and len(part) <= MOST for part in parts)
        others = [arm.label for part in parts for arm in part[1:]]
        assert others == [f"arm {i}" for i in range(1, count)]
    colours = {(arm.label, arm.index) for group in groups[:5] for arm in group.arms}
    assert len(colours) == 16  # an arm that comes in both groups has one colour
