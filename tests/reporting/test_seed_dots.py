"""Seed by seed: a line for each arm, a dot for each seed, at which lengths."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from report_folders import write_run, write_study

from outlast.reporting.load import read
from outlast.reporting.panels import NARROW, WIDE, Form
from outlast.reporting.seed_dots import LETTERS, _heaped, _same_words, seed_dots_figure
from outlast.reporting.style import INK, png
from outlast.reporting.summary import ArmSummary, summarise_arm

Arm = tuple[str, str, dict[float, list[float]]]  # label, group, seeds by the tested multiple


def arms(folder: Path, given: Sequence[Arm]) -> list[ArmSummary]:
    named = [(f"a{i}", label, group) for i, (label, group, _) in enumerate(given)]
    for (name, label, _), (_, _, by_length) in zip(named, given, strict=True):
        run = write_run(folder / name, label, until=0)
        rows = [
            {"seed": seed, "variant": None, "length": m, "multiple": m, "exact": {"joint": value}}
            for m, values in by_length.items()
            for seed, value in enumerate(values)
        ]
        (run / "results.json").write_text(json.dumps({"format": 1, "rows": rows}))
    return [summarise_arm(arm) for arm in read([write_study(folder, named, [])])[0].arms]


def titles(figure: Figure) -> list[str]:
    return [ax.get_title(loc="left") for ax in figure.axes]


def texts(ax: Axes) -> list[str]:
    return [text.get_text().strip() for text in ax.texts]


def dots(ax: Axes) -> list[list[float]]:
    return [sorted(line.get_xdata()) for line in ax.lines if line.get_marker() == "o"]


def test_each_seed_is_a_dot_beside_the_mean_and_how_many_hold(tmp_path: Path) -> None:
    given = [
        ("both heaps", "", {1: [1.0, 1.0, 0.95], 3: [0.1, 0.99, 0.92], 10: [0.0, 0.98, 0.5]}),
        ("none", "", {1: [0.2, 0.2, 0.2], 3: [0.1, 0.1, 0.1], 10: [0.0, 0.0, 0.0]}),
    ]
    figure = seed_dots_figure(arms(tmp_path, given), WIDE)
    assert figure is not None
    assert titles(figure) == ["1×", "3×", "10×"]
    first, middle, last = figure.axes
    assert dots(middle) == [[0.1, 0.92, 0.99], [0.1, 0.1, 0.1]]
    assert [t for t in texts(middle) if "/" in t] == ["2/3", "0/3"]
    assert [t for t in texts(last) if "/" in t] == ["1/3", "0/3"]
    means = [line.get_xdata()[0] for line in middle.lines if line.get_color() == INK]
    assert means == pytest.approx([0.67, 0.1])
    assert {"both heaps", "none"} <= set(texts(first))  # the names stand once
    assert "none" not in texts(middle)
    assert png(figure)


def test_on_a_phone_there_is_one_length(tmp_path: Path) -> None:
    given = [("an arm", "", {m: [0.5, 0.6] for m in (1, 2, 3, 4)})]
    figure = seed_dots_figure(arms(tmp_path, given), NARROW)
    assert figure is not None
    assert titles(figure) == ["3×"]


def test_a_group_has_a_line_of_its_own_and_says_what_its_arms_share(tmp_path: Path) -> None:
    one = {1: [0.5, 0.6]}
    given = [
        ("serial, joint", "serial", one),
        ("serial, dat", "serial", one),
        ("lstm, wide", "pure", one),
        ("lstm", "pure", one),
    ]
    figure = seed_dots_figure(arms(tmp_path, given), WIDE)
    assert figure is not None
    (ax,) = figure.axes
    at = {text.get_text().strip(): text.get_position()[1] for text in ax.texts}
    names = ("serial", "joint", "dat", "pure", "lstm, wide", "lstm")
    assert [at[name] for name in names] == [0, 1, 2, 3, 4, 5]


def names(summaries: list[ArmSummary], form: Form) -> list[str]:
    """The arms' names as they stand in the figure, from the top."""
    figure = seed_dots_figure(summaries, form)
    assert figure is not None
    left = [text for text in figure.axes[0].texts if text.get_position()[0] < 0]
    return [text.get_text() for text in sorted(left, key=lambda text: text.get_position()[1])]


GRID = [
    f"grid lr={lr} method={method} weight_decay={decay}"
    for lr in (0.001, 0.003)
    for method in ("none", "dat(mode=skip, switch=plateau)")
    for decay in (0, 0.1)
]


@pytest.mark.parametrize("form", [WIDE, NARROW])
def test_the_names_of_a_grid_are_whole_but_for_what_all_share(tmp_path: Path, form: Form) -> None:
    found = names(arms(tmp_path, [(label, "", {1: [0.5, 0.6]}) for label in GRID]), form)
    assert [name.replace("\n", " ") for name in found] == [
        label.removeprefix("grid ") for label in GRID
    ]
    assert max(len(row) for name in found for row in name.split("\n")) <= LETTERS * 2.6


@pytest.mark.parametrize("form", [WIDE, NARROW])
def test_names_in_rows_have_room(tmp_path: Path, form: Form) -> None:
    given = [(label, "", {1: [0.5, 0.6]}) for label in (*GRID, "grid short")]
    figure = seed_dots_figure(arms(tmp_path, given), form)
    assert figure is not None
    figure.draw_without_rendering()
    panel = figure.axes[0].get_window_extent()
    left = [text for text in figure.axes[0].texts if text.get_position()[0] < 0]
    boxes = sorted((text.get_window_extent() for text in left), key=lambda box: -box.y0)
    assert len(boxes) == len(given)
    assert all(above.y0 >= below.y1 for above, below in pairwise(boxes))
    assert all(box.x0 >= 0 and box.x1 <= panel.x0 for box in boxes)


def test_names_so_long_that_they_are_cut_stay_different(tmp_path: Path) -> None:
    long = "x" * 300
    given = [(label, "", {1: [0.5, 0.6]}) for label in (f"a {long}", f"b {long}1", f"b {long}2")]
    cut, *whole = [name.replace("\n", "") for name in names(arms(tmp_path, given), WIDE)]
    assert cut.endswith("…")
    assert [name[-2:] for name in whole] == ["x1", "x2"]


@pytest.mark.parametrize(
    ("labels", "left"),
    [
        (["grid a=1", "grid a=2"], ["a=1", "a=2"]),
        (["grid", "grid a=2"], ["grid", "grid a=2"]),  # each keeps a word
        (["grid a=1"], ["grid a=1"]),
        (["the dat(x=1, y=1)", "the dat(x=1, y=2)"], ["dat(x=1, y=1)", "dat(x=1, y=2)"]),
        (["one way", "another way"], ["one way", "another way"]),
    ],
)
def test_words_that_all_names_begin_with(labels: list[str], left: list[str]) -> None:
    cut = _same_words(labels)
    assert [label[cut:] for label in labels] == left


def test_what_was_not_tested_is_said_and_hides_no_other(tmp_path: Path) -> None:
    given = [("far", "", {1: [0.5, 0.6], 10: [0.3, 0.4]}), ("near", "", {1: [0.5, 0.6]})]
    figure = seed_dots_figure(arms(tmp_path, given), WIDE)
    assert figure is not None
    assert titles(figure) == ["1×", "10×"]
    assert "not tested" in texts(figure.axes[1])
    assert dots(figure.axes[1]) == [[0.3, 0.4]]


@pytest.mark.parametrize("seeds", [[0.5], []])
def test_one_seed_or_none_is_no_distribution(tmp_path: Path, seeds: list[float]) -> None:
    assert seed_dots_figure(arms(tmp_path, [("one", "", {1: seeds, 3: seeds})]), WIDE) is None


def test_dots_that_would_lie_on_each_other_are_heaped_around_their_line() -> None:
    xs, ys = _heaped([1.0, 0.2, 1.0, 0.995, 1.0])
    assert xs == [0.2, 0.995, 1.0, 1.0, 1.0]
    assert ys[0] == 0
    assert sum(ys) == pytest.approx(0)
    assert len(set(ys[1:])) == 4
    many, heights = _heaped([1.0] * 100)
    assert len(many) == 100
    assert max(heights) <= 0.5  # within the line
