"""What a terminal shows of the tables of analyses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from outlast.cli import common
from outlast.cli.analysis_table import MOST_LINES, show_analysis
from outlast.runs.analyses import Row

PATH = Path("runs/why/analysis/some.json")


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 80 columns."""
    monkeypatch.setattr(common, "console", Console(width=80, color_system=None))


def rows_of(
    columns: Row, value: str, steps: Sequence[int | None] = (None,), seeds: int = 2
) -> list[Row]:
    """A number for each seed, step and length."""
    return [
        {**columns, "seed": seed, "step": step, "multiple": multiple, value: seed / 4 + 1 / 8}
        for step in steps
        for seed in range(seeds)
        for multiple in (1.0, 3.0, 10.0)
    ]


@pytest.mark.parametrize(
    ("name", "value", "columns", "headings"),
    [
        ("anatomy", "share", {"part": "recall", "cause": "no_attention"}, "part cause"),
        ("ablation", "exact", {"ablation": "positions drawn", "part": "joint", "layer": None},
         "ablation"),
        ("state-probe", "accuracy", {"layer": "11.attention", "place": "stream", "bin": None},
         "layer place"),
        ("sharpness", "weight", {"layer": "11.attention", "head": 7}, "layer head"),
        ("token-filter", "exact",
         {"ranking": "answers", "masked": "later", "share": 1.0, "part": "joint"},
         "ranked by layers masked kept"),
    ],
)  # fmt: skip
def test_spread_over_seeds_is_kept_at_80_columns_for_three_lengths(
    name: str, value: str, columns: Row, headings: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show_analysis(name, rows_of(columns, value), PATH)
    said = capsys.readouterr().out
    assert "left out" not in said
    assert said.count("[0.125, 0.375]") == 3
    assert "mean of 2 seeds [lowest, highest]" in " ".join(said.split())
    assert f"{headings} 1 x 3 x 10 x" in " ".join(said.split())
    assert max(map(len, said.splitlines())) <= 80


def test_spread_stands_beside_the_mean_where_there_is_room(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of({"layer": "2.attention", "head": 0}, "weight")
    show_analysis("sharpness", rows, PATH)
    assert "0.250 [0.125" not in capsys.readouterr().out
    monkeypatch.setattr(common, "console", Console(width=100, color_system=None))
    show_analysis("sharpness", rows, PATH)
    assert "0.250 [0.125, 0.375]" in capsys.readouterr().out
    monkeypatch.setattr(common, "console", Console(width=50, color_system=None))
    show_analysis("sharpness", rows, PATH)
    said = capsys.readouterr().out
    assert "0.250  0.250  0.250" in said
    assert "(left out at 50 columns: the lowest and the highest seed)" in said


def test_step_is_named_and_several_have_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    columns: Row = {"layer": "2.attention", "place": "stream", "bin": None}
    show_analysis("key-probe", rows_of(columns, "accuracy", [1000]), PATH)
    assert "at their value at step 1,000, mean" in capsys.readouterr().out
    show_analysis("key-probe", rows_of(columns, "accuracy"), PATH)
    assert "step" not in capsys.readouterr().out
    show_analysis("key-probe", rows_of(columns, "accuracy", [0, 500, 1000]), PATH)
    said = " ".join(capsys.readouterr().out.split())
    assert "at their value at step 1,000, the last of 3, mean" in said
    assert "at their value at 1 x, by step, mean over seeds layer place 0 500 1,000" in said
    assert said.endswith("2.attention stream 0.250 0.250 0.250")


def test_of_many_steps_some_are_shown_and_the_last_is_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = range(0, 2100, 100)
    rows = [
        {"layer": "all", "part": "all", "seed": seed, "step": step, "cosine": -0.5}
        for step in steps
        for seed in (0, 1)
    ]
    show_analysis("gradients", rows, PATH)
    said = capsys.readouterr().out
    assert "part through attention, by step, mean" in " ".join(said.split())
    assert "layer       0     400     800   1,200   1,600   2,000" in said
    assert f"(6 of 21 steps; all are in {PATH})" in said


def test_single_layers_and_heads_have_a_table_if_they_are_few(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole: Row = {"ablation": "whole", "part": "joint", "layer": None, "head": None}
    layer: Row = {**whole, "ablation": "layer off", "layer": "2.attention"}
    heads: list[Row] = [{**layer, "ablation": "head off", "head": n} for n in range(MOST_LINES)]
    tables = [rows_of(each, "exact") for each in (whole, layer, *heads)]
    show_analysis("ablation", [row for table in tables[:4] for row in table], PATH)
    words = capsys.readouterr().out.split()
    said = " ".join(words)
    assert "right, without one layer or head, mean of 2 seeds" in said
    assert [words[i + 1] for i, word in enumerate(words) if word == "2.attention"] == [
        "all", "0", "1",
    ]  # fmt: skip
    show_analysis("ablation", [row for table in tables for row in table], PATH)
    said = capsys.readouterr().out
    assert "2.attention" not in said
    assert f"13 single layers and heads are in {PATH}; outlast report shows them" in said
