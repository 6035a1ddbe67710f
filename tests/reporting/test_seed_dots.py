"""Seed by seed: a line for each arm, a dot for each seed, at which lengths."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from report_folders import write_run, write_study

from outlast.reporting.load import read
from outlast.reporting.panels import NARROW, WIDE, Form
from outlast.reporting.seed_dots import _same_words, heaped, seed_dots_figure
from outlast.reporting.style import INK, PALETTE
from outlast.reporting.summary import ArmSummary, summarise_arm

Arm = tuple[str, str, dict[float, list[float]]]  # label, group, seeds by the tested multiple
ONE = {1.0: [0.5, 0.6]}


def summaries(folder: Path, arms: Sequence[Arm]) -> list[ArmSummary]:
    named = [(f"a{i}", label, group) for i, (label, group, _) in enumerate(arms)]
    for (name, label, _), (_, _, by_length) in zip(named, arms, strict=True):
        run = write_run(folder / name, label, until=0)
        rows = [
            {"seed": seed, "variant": None, "length": m, "multiple": m, "exact": {"joint": value}}
            for m, values in by_length.items()
            for seed, value in enumerate(values)
        ]
        (run / "results.json").write_text(json.dumps({"format": 1, "rows": rows}))
    return [summarise_arm(arm) for arm in read([write_study(folder, named, [])])[0].arms]


def figure_of(folder: Path, arms: Sequence[Arm], form: Form = WIDE) -> Figure:
    figure = seed_dots_figure(summaries(folder, arms), form)
    assert figure is not None
    return figure


def titles(figure: Figure) -> list[str]:
    return [ax.get_title(loc="left") for ax in figure.axes]


def texts(ax: Axes) -> list[str]:
    return [text.get_text().strip() for text in ax.texts]


def labels(figure: Figure) -> list[Text]:
    """The names of the lines, from the top."""
    return figure.axes[0].get_yticklabels()


def names(figure: Figure) -> list[str]:
    return [label.get_text() for label in labels(figure)]


def dots(ax: Axes) -> list[list[float]]:
    return [sorted(line.get_xdata()) for line in ax.lines if line.get_marker() == "o"]


def test_each_seed_is_a_dot_beside_the_mean_and_the_count_that_holds(tmp_path: Path) -> None:
    arms = [
        ("both heaps", "", {1: [1.0, 1.0, 0.95], 3: [0.1, 0.99, 0.92], 10: [0.0, 0.98, 0.5]}),
        ("none", "", {1: [0.2, 0.2, 0.2], 3: [0.1, 0.1, 0.1], 10: [0.0, 0.0, 0.0]}),
    ]
    figure = figure_of(tmp_path, arms)
    assert titles(figure) == ["1×", "3×", "10×"]
    _, middle, last = figure.axes
    assert dots(middle) == [[0.1, 0.92, 0.99], [0.1, 0.1, 0.1]]
    assert [t for t in texts(middle) if "/" in t] == ["2/3", "0/3"]
    assert [t for t in texts(last) if "/" in t] == ["1/3", "0/3"]
    means = [line.get_xdata()[0] for line in middle.lines if line.get_color() == INK]
    assert means == pytest.approx([0.67, 0.1])
    assert names(figure) == ["both heaps", "none"]
    figure.draw_without_rendering()
    assert not any(label.get_visible() for label in middle.get_yticklabels())  # they stand once


def test_narrow_form_shows_one_length(tmp_path: Path) -> None:
    figure = figure_of(tmp_path, [("an arm", "", {m: [0.5, 0.6] for m in (1, 2, 3, 4)})], NARROW)
    assert titles(figure) == ["3×"]


def test_group_has_a_line_that_says_what_its_arms_share(tmp_path: Path) -> None:
    arms = [
        ("serial, joint", "serial", ONE),
        ("serial, dat", "serial", ONE),
        ("lstm, wide", "pure", ONE),
        ("lstm", "pure", ONE),
    ]
    figure = figure_of(tmp_path, arms)
    assert names(figure) == ["serial", "joint", "dat", "pure", "lstm, wide", "lstm"]
    assert list(figure.axes[0].get_yticks()) == [0, 1, 2, 3, 4, 5]
    weights = ["bold", "normal", "normal", "bold", "normal", "normal"]
    assert [label.get_fontweight() for label in labels(figure)] == weights
    dots = [line.get_color() for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert dots == list(PALETTE[:4])


GRID = [
    f"grid lr={lr} method={method} weight_decay={decay}"
    for lr in (0.001, 0.003)
    for method in ("none", "dat(mode=skip, switch=plateau)")
    for decay in (0, 0.1)
]


@pytest.mark.parametrize("form", [WIDE, NARROW])
def test_names_of_a_grid_lose_only_the_words_that_all_share(tmp_path: Path, form: Form) -> None:
    shown = names(figure_of(tmp_path, [(label, "", ONE) for label in GRID], form))
    assert [name.replace("\n", " ") for name in shown] == [
        label.removeprefix("grid ") for label in GRID
    ]
    assert max(len(row) for name in shown for row in name.split("\n")) <= form.letters


@pytest.mark.parametrize("form", [WIDE, NARROW])
def test_names_in_rows_do_not_overlap_and_are_not_cut(tmp_path: Path, form: Form) -> None:
    arms = [(label, "", ONE) for label in (*GRID, "grid short")]
    figure = figure_of(tmp_path, arms, form)
    figure.draw_without_rendering()
    panel = figure.axes[0].get_window_extent()
    boxes = [label.get_window_extent() for label in labels(figure)]
    assert len(boxes) == len(arms)
    assert all(above.y0 >= below.y1 for above, below in pairwise(boxes))
    assert all(box.x0 >= 0 and box.x1 <= panel.x0 for box in boxes)
    for ax in figure.axes:
        box = ax.get_tightbbox()
        assert box is not None
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1


def test_names_so_long_that_they_are_cut_stay_different(tmp_path: Path) -> None:
    long = "x" * 300
    arms = [(label, "", ONE) for label in (f"a {long}", f"b {long}1", f"b {long}2")]
    cut, *whole = [name.replace("\n", "") for name in names(figure_of(tmp_path, arms))]
    assert cut.endswith("…")
    assert [name[-2:] for name in whole] == ["x1", "x2"]


@pytest.mark.parametrize(
    ("names", "left"),
    [
        (["grid a=1", "grid a=2"], ["a=1", "a=2"]),
        (["grid", "grid a=2"], ["grid", "grid a=2"]),  # each keeps a word
        (["grid a=1"], ["grid a=1"]),
        (["the dat(x=1, y=1)", "the dat(x=1, y=2)"], ["dat(x=1, y=1)", "dat(x=1, y=2)"]),
        (["one way", "another way"], ["one way", "another way"]),
    ],
)
def test_shared_first_words_are_cut_but_no_bracket_is_opened(
    names: list[str], left: list[str]
) -> None:
    cut = _same_words(names)
    assert [name[cut:] for name in names] == left


def test_length_that_one_arm_was_not_tested_at_is_shown(tmp_path: Path) -> None:
    arms = [("far", "", {1: [0.5, 0.6], 10: [0.3, 0.4]}), ("near", "", {1: [0.5, 0.6]})]
    figure = figure_of(tmp_path, arms)
    assert titles(figure) == ["1×", "10×"]
    assert "not tested" in texts(figure.axes[1])
    assert dots(figure.axes[1]) == [[0.3, 0.4]]


@pytest.mark.parametrize("seeds", [[0.5], []])
def test_one_seed_or_none_draws_no_figure(tmp_path: Path, seeds: list[float]) -> None:
    assert seed_dots_figure(summaries(tmp_path, [("one", "", {1: seeds, 3: seeds})]), WIDE) is None


def test_dots_of_equal_seeds_are_heaped_around_their_line() -> None:
    xs, ys = heaped([1.0, 0.2, 1.0, 0.995, 1.0])
    assert xs == [0.2, 0.995, 1.0, 1.0, 1.0]
    assert ys[0] == 0
    assert sum(ys) == pytest.approx(0)
    assert len(set(ys[1:])) == 4
    many, heights = heaped([1.0] * 100)
    assert len(many) == 100
    assert max(heights) <= 0.5  # within the line
