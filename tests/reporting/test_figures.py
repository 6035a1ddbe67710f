"""What the figures show: whose lines, in which colours, and which names under them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from report_folders import MULTIPLES, write_analyses, write_run, write_study

from outlast.reporting.accuracy_by_length import accuracy_figure
from outlast.reporting.analysis_by_length import analysis_figure
from outlast.reporting.gradients_by_step import gradients_figure
from outlast.reporting.groups import MOST, grouped
from outlast.reporting.keys_by_step import keys_figure
from outlast.reporting.learning_curves import loss_figure, probe_figure
from outlast.reporting.load import read
from outlast.reporting.panels import NARROW, PANEL, WIDE, Form
from outlast.reporting.seed_dots import seed_dots_figure
from outlast.reporting.style import MARKERS, PALETTE, svg
from outlast.reporting.summary import ArmSummary, summarise_arm
from outlast.reporting.tokens_by_share import tokens_figure

THREE = (None, "sparse", "dense")


def study(
    folder: Path, groups: dict[str, int], variants: Sequence[str | None] = (None,), until: int = 0
) -> list[ArmSummary]:
    """Arms 0, 1, 2, ... in each group, no two of them alike; the first group has the variants."""
    arms = [(f"{group}-{i}", f"arm {i}", group) for group, n in groups.items() for i in range(n)]
    for salt, (name, label, group) in enumerate(arms):
        tested = variants if group == next(iter(groups)) else (None,)
        write_run(
            folder / name, label, seeds=(0,), reach=1 + salt / 4, variants=tested, until=until,
            salt=salt, task=group,
        )  # fmt: skip
    return [summarise_arm(arm) for arm in read([write_study(folder, arms, [])])[0].arms]


def same(folder: Path, accuracies: Sequence[Sequence[float]]) -> Figure:
    """One panel: an arm for each row of accuracies at 1, 2 and 4 times the length."""
    arms = [(f"a{i}", f"arm {i}", "") for i in range(len(accuracies))]
    for (name, label, _), values in zip(arms, accuracies, strict=True):
        run = write_run(folder / name, label, seeds=(0,), until=0)
        rows = [
            {"seed": 0, "variant": None, "length": 10 * m, "multiple": m, "exact": {"joint": value}}
            for m, value in zip((1, 2, 4), values, strict=True)
        ]
        (run / "results.json").write_text(json.dumps({"format": 1, "rows": rows}))
    return figure_of([summarise_arm(arm) for arm in read([write_study(folder, arms, [])])[0].arms])


def figure_of(summaries: list[ArmSummary], form: Form = WIDE) -> Figure:
    figure = accuracy_figure(summaries, ["joint"], form)
    assert figure is not None
    return figure


def panels(figure: Figure) -> list[Axes]:
    """The panels of a figure, without the cells that hold a key."""
    return [ax for ax in figure.axes if ax.axison]


def keys(figure: Figure) -> list[Legend]:
    """The keys of a figure: the one on top first, then those under panels."""
    under = [legend for ax in figure.axes if (legend := ax.get_legend())]
    return [*figure.legends, *under]


def names(key: Legend) -> list[str]:
    return [text.get_text() for text in key.get_texts()]


def drawn(ax: Axes, index: int) -> list[list[float]]:
    """The lines of one colour, as their heights."""
    return [list(line.get_ydata()) for line in ax.lines if line.get_color() == PALETTE[index]]


def title(ax: Axes) -> str:
    return ax.get_title(loc="left")


def test_first_arm_is_missing_from_no_panel_of_its_group(tmp_path: Path) -> None:
    arms = study(tmp_path, {"g": 16}, THREE)
    axes = panels(figure_of(arms))
    assert [title(ax) for ax in axes] == [
        f"g ({part}/3) · {variant}"
        for part in (1, 2, 3)
        for variant in ("plain", "sparse", "dense")
    ]
    for column, variant in enumerate(THREE):
        ladder = arms[0].ladder(variant)
        assert ladder is not None
        for ax in axes[column::3]:
            lines = [line for line in ax.lines if line.get_color() == PALETTE[0]]
            points = {point for line in lines for point in zip(*line.get_data(), strict=True)}
            assert points == set(zip(MULTIPLES, ladder.means(), strict=True))


def test_panels_have_ticks_where_their_arms_were_tested_on_one_scale(tmp_path: Path) -> None:
    far, near, cut = (1, 2, 4, 10), (1, 2, 4), 3  # the last model takes no more than 3 x
    write_run(tmp_path / "a", seeds=(0,), multiples=far, until=0, task="far")
    write_run(tmp_path / "b", seeds=(0,), multiples=near, until=0, task="near")
    write_run(tmp_path / "c", seeds=(0,), multiples=far, until=0, task="cut", ceiling=cut)
    arms = [("a", "a", "far"), ("b", "b", "near"), ("c", "c", "cut")]
    summaries = [summarise_arm(arm) for arm in read([write_study(tmp_path, arms, [])])[0].arms]
    axes = panels(figure_of(summaries))
    ticks = {title(ax): [float(tick) for tick in sorted(ax.get_xticks())] for ax in axes}
    assert ticks == {"far": [1, 2, 4, 10], "near": [1, 2, 4], "cut": [1, 2]}
    assert len({ax.get_xlim() for ax in axes}) == 1


def test_grouping_shows_every_arm_once_and_the_first_in_each_panel(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("form", [WIDE, NARROW])
def test_panels_of_the_same_arms_share_one_key(tmp_path: Path, form: Form) -> None:
    figure = figure_of(study(tmp_path, {"g": 16}, THREE), form)
    assert len(panels(figure)) == 9
    top, *under = keys(figure)
    assert names(top) == ["trained lengths", "chance at 1×"]
    assert [sorted(names(key), key=lambda label: int(label.split()[1])) for key in under] == [
        ["arm 0", *(f"arm {i}" for i in range(start, start + 5))] for start in (1, 6, 11)
    ]
    first = [key.legend_handles[0] for key in under]
    looks = [(h.get_color(), h.get_marker()) for h in first if isinstance(h, Line2D)]
    assert looks == [(PALETTE[0], MARKERS[0])] * 3


@pytest.mark.parametrize("form", [WIDE, NARROW])
def test_keys_stand_under_their_panels_and_cover_nothing(tmp_path: Path, form: Form) -> None:
    figure = figure_of(study(tmp_path, {"g": 16, "h": 9}, THREE), form)
    figure.draw_without_rendering()
    boxes = {title(ax): ax.get_tightbbox() for ax in panels(figure)}
    last = ["g (1/3) · dense", "g (2/3) · dense", "g (3/3) · dense", "h (1/2) · plain"]
    _, *under = keys(figure)
    for name, key in zip([*last, "h (2/2) · plain"], under, strict=True):
        extent = key.get_window_extent()
        assert extent.y1 < boxes[name].y0
        assert not any(extent.overlaps(box) for box in boxes.values())
        assert figure.bbox.x0 <= extent.x0 < extent.x1 <= figure.bbox.x1
        assert extent.y0 >= figure.bbox.y0
    if form is WIDE:  # panels with a key each stand side by side
        first, second = (ax for ax in panels(figure) if title(ax).startswith("h"))
        assert first.get_position().y0 == pytest.approx(second.get_position().y0)


@pytest.mark.parametrize("form", [WIDE, NARROW])
@pytest.mark.parametrize("groups", [{"g": 2}, {"g": 16}, {"g": 3, "h": 4}])
def test_panels_have_one_size_and_nothing_is_cut_or_overlaps(
    tmp_path: Path, groups: dict[str, int], form: Form
) -> None:
    figure = loss_figure(study(tmp_path, groups, until=200), form)
    assert figure is not None
    figure.draw_without_rendering()
    extents = [ax.get_window_extent() for ax in panels(figure)]
    heights = [box.height / figure.dpi for box in extents]
    assert heights == pytest.approx([PANEL] * len(extents), abs=0.01)
    boxes = [artist.get_tightbbox() for artist in (*panels(figure), *keys(figure))]
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    for box in boxes:
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1


@pytest.mark.parametrize("form", [WIDE, NARROW])
def test_long_names_end_within_the_figure_and_are_whole(tmp_path: Path, form: Form) -> None:
    arms = [
        (f"a{i}", f"{i} parallel hybrid of DeltaNet with alibi, recall loss", "") for i in range(16)
    ]
    for name, label, _ in arms:
        write_run(tmp_path / name, label, seeds=(0,), until=0)
    summaries = [summarise_arm(arm) for arm in read([write_study(tmp_path, arms, [])])[0].arms]
    figure = figure_of(summaries, form)
    figure.draw_without_rendering()
    _, *under = keys(figure)
    shown = {name.replace("\n", " ") for key in under for name in names(key)}
    assert shown == {label for _, label, _ in arms}
    assert len(under) == 3
    for key in keys(figure):
        assert key.get_window_extent().x1 <= figure.bbox.x1


@pytest.mark.parametrize("form", [WIDE, NARROW])
def test_name_of_a_hundred_letters_is_whole_if_arms_are_few(tmp_path: Path, form: Form) -> None:
    label = (
        "1 x (lstm | attention(random_positions(10000), heads=4) > mlp) @ 64, dat(mode=skip, x=y)"
    )
    runs = [write_run(tmp_path / "a", label, until=0), write_run(tmp_path / "b", "b", until=0)]
    figure = figure_of([summarise_arm(arm) for arm in read(runs)[0].arms], form)
    shown = [text.get_text() for text in figure.axes[0].texts]
    shown += [name for key in keys(figure) for name in names(key)]
    assert label in {text.replace("\n", " ") for text in shown}


def test_names_beside_lines_stay_within_the_figure_and_apart(tmp_path: Path) -> None:
    """Seven arms that end together, with names of two rows."""
    arms = [(f"a{i}", f"arm {i} of a name that is so long that it breaks", "") for i in range(7)]
    for name, label, _ in arms:
        write_run(tmp_path / name, label, seeds=(0,), reach=1, until=0)
    summaries = [summarise_arm(arm) for arm in read([write_study(tmp_path, arms, [])])[0].arms]
    figure = figure_of(summaries)
    figure.draw_without_rendering()
    labels = [text for text in figure.axes[0].texts if text.get_text().startswith("arm")]
    boxes = [label.get_window_extent() for label in labels]
    assert len(boxes) == 7
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    for box in boxes:
        assert box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1


def scenario(folder: Path, name: str) -> list[ArmSummary]:
    """Arms whose labels or values are hard to place."""
    long = "1 x (lstm | attention(random_positions(10000), heads=4) > mlp) @ 64, dat(mode=skip)"
    shapes: dict[str, list[dict[str, Any]]] = {
        "long labels": [{"label": f"{long} {i}", "reach": 1 + 3 * i} for i in range(3)],
        "labels without a space": [{"label": f"{long} {i}".replace(" ", "")} for i in range(3)],
        "one length": [{"multiples": (1,)}],
        "two lengths, one seed": [{"multiples": (1, 2), "seeds": (0,)}],
        "all right, all wrong": [
            {"label": "right", "reach": 1e9},
            {"label": "wrong", "reach": 1e-9},
        ],
        "lengths far apart": [{"multiples": (1, 2, 3, 10, 100, 12800)}],
        "lengths close together": [{"multiples": (0.5, 1, 1.01, 1.02, 1.03)}],
        "nine arms": [{"label": f"arm {i}", "seeds": (0, 1)} for i in range(9)],
    }
    runs = [
        write_run(folder / str(i), **{"label": "an arm", "until": 500, **options})
        for i, options in enumerate(shapes[name])
    ]
    for salt, (run, options) in enumerate(zip(runs, shapes[name], strict=True)):
        write_analyses(run, options.get("seeds", (0, 1, 2, 3)), salt=salt)
    return [summarise_arm(arm) for arm in read(runs)[0].arms]


@pytest.mark.parametrize("form", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize(
    "name",
    [
        "long labels",
        "labels without a space",
        "one length",
        "two lengths, one seed",
        "all right, all wrong",
        "lengths far apart",
        "lengths close together",
        "nine arms",
    ],
)
def test_no_text_is_cut_or_covers_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, form: Form
) -> None:
    boxes: list[tuple[str, Bbox]] = []
    draw = Text.draw

    def draw_and_note(self: Text, renderer: Any, *args: Any, **kwargs: Any) -> None:
        if self.get_visible() and self.get_text().strip():
            boxes.append((self.get_text(), self.get_window_extent(renderer)))
        draw(self, renderer, *args, **kwargs)

    monkeypatch.setattr(Text, "draw", draw_and_note)
    arms = scenario(tmp_path, name)
    for figure in (
        accuracy_figure(arms, ["joint"], form),
        seed_dots_figure(arms, form),
        loss_figure(arms, form),
        probe_figure(arms, form),
        analysis_figure(arms, form),
        keys_figure(arms, form),
        tokens_figure(arms, form),
        gradients_figure(arms, form),
    ):
        if figure is None:
            continue
        boxes.clear()
        figure.draw_without_rendering()
        assert boxes
        for text, box in boxes:
            inside = figure.bbox.padded(1).contains
            assert all((inside(box.x0, box.y0), inside(box.x1, box.y1))), f"{text!r} is cut"
        for (one, a), (other, b) in combinations(boxes, 2):
            assert not a.padded(-2).overlaps(b.padded(-2)), f"{one!r} covers {other!r}"


def test_loss_has_the_first_arm_in_every_panel_of_its_group(tmp_path: Path) -> None:
    figure = loss_figure(study(tmp_path, {"g": 16}, until=200), WIDE)
    assert figure is not None
    axes = panels(figure)
    assert len(axes) == 9
    for column in range(3):
        lines = [drawn(ax, 0) for ax in axes[column::3]]
        assert lines[0] == lines[1] == lines[2] != []
    assert sum("arm 0" in names(key) for key in keys(figure)) == 3


def test_few_arms_have_one_key_on_top_or_names_beside_their_lines(tmp_path: Path) -> None:
    several = figure_of(study(tmp_path / "three", {"g": 3}, THREE))
    assert [sorted(names(key)) for key in keys(several)] == [
        ["arm 0", "arm 1", "arm 2", "chance at 1×", "trained lengths"]
    ]
    single = figure_of(study(tmp_path / "one", {"g": 3}))
    assert keys(single) == []
    assert {"arm 0", "arm 1", "arm 2"} <= {text.get_text() for text in single.axes[0].texts}


def test_arms_that_overlap_share_a_striped_line_at_their_data(tmp_path: Path) -> None:
    figure = same(tmp_path, [[1, 1, 1], [1, 1, 0.5], [1, 1, 1], [0.9, 0.5, 0.2]])
    (ax,) = figure.axes
    for index, pieces in enumerate([[[1, 1], [1, 1]], [[1, 1], [1, 0.5]], [[1, 1], [1, 1]]]):
        dashed = [line for line in ax.lines if line.get_color() == PALETTE[index]]
        lines = [list(line.get_ydata()) for line in dashed if line.get_linestyle() != "None"]
        assert lines[:2] == pieces  # all three up to 2 x, then the first and the third
        assert [line.is_dashed() for line in dashed[:2]] == [True, index != 1]
    alone = [line for line in ax.lines if line.get_color() == PALETTE[3]]
    assert [list(line.get_ydata()) for line in alone[:2]] == [[0.9, 0.5, 0.2]] * 2
    assert not alone[0].is_dashed()
    assert alone[1].get_marker() == MARKERS[3]
    dashes = re.findall(
        r"stroke-dasharray: ([\d.]+),([\d.]+); stroke-dashoffset: ([\d.]+)", svg(figure)
    )
    turns = [tuple(round(float(number), 3) for number in dash) for dash in dashes]
    assert {(4, 8, 0), (4, 8, 8), (4, 8, 4), (4, 4, 0), (4, 4, 4)} <= set(turns)
