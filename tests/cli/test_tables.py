"""Tables on terminals of any width: numbers are shown whole, words are not broken."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from shell import Shell

import outlast.cli.common as common
from outlast.cli.common import wrapped
from outlast.cli.results import remarks, show_accuracies
from outlast.cli.show_ import fold_columns, reflow
from outlast.cli.tables import Column, show_table
from outlast.runs.records import ResultRow

WIDTHS = (40, 60, 80)


@pytest.fixture
def at_width(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], io.StringIO]:
    """Makes the console so wide, and returns what is printed from then on."""

    def set_width(width: int) -> io.StringIO:
        text = io.StringIO()
        console = Console(file=text, width=width, color_system=None, highlight=False)
        monkeypatch.setattr(common, "console", console)
        return text

    return set_width


COLUMNS = [
    Column("arm", "name"), Column("model", rank=2), Column("parameters", "number", 3),
    Column("steps", "number"),
]  # fmt: skip
ROWS = [("joint", "1 x (lstm(init=orthogonal, forget_bias=1) > mlp) @ 64", "1,587,468", "2,200")]


@pytest.mark.parametrize(
    ("width", "left_out"), [(80, []), (44, ["parameters"]), (30, ["model", "parameters"])]
)
def test_narrow_table_leaves_out_columns_by_rank(
    width: int, left_out: list[str], at_width: Callable[[int], io.StringIO]
) -> None:
    printed = at_width(width)
    show_table(COLUMNS, ROWS)
    text = printed.getvalue()
    assert "…" not in text
    assert "2,200" in text
    assert ("1,587,468" in text) == ("parameters" not in left_out)
    assert ("lstm(init=orthogonal," in text) == ("model" not in left_out)
    note = f"(left out at {width} columns: {', '.join(left_out)})"
    assert (note in " ".join(text.split())) == bool(left_out)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width


def test_table_too_narrow_for_its_last_columns_becomes_lines_with_all_columns(
    at_width: Callable[[int], io.StringIO],
) -> None:
    printed = at_width(10)
    show_table(COLUMNS, ROWS)
    words = printed.getvalue().split()
    assert words[:2] == ["joint", "model:"]
    assert words[-4:] == ["parameters:", "1,587,468", "steps:", "2,200"]


def rows_of_results() -> list[ResultRow]:
    names = ("joint", "state", "recall", "running")
    shares = dict.fromkeys(names, 0.8765)
    reason = "the model ends at 16 tokens, this takes 42"
    return [
        {"seed": 0, "variant": "sparse", "length": 10, "multiple": 1, "exact": shares, "nan": 0.25},
        {"seed": 1, "variant": "sparse", "length": 10, "multiple": 1, "exact": shares},
        {"seed": 0, "variant": "sparse", "length": 20, "multiple": 2, "exact": None,
         "reason": reason},
        {"seed": 1, "variant": "sparse", "length": 20, "multiple": 2, "exact": None,
         "reason": reason},
    ]  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
def test_accuracies_are_whole_at_any_width(
    width: int, at_width: Callable[[int], io.StringIO]
) -> None:
    printed = at_width(width)
    show_accuracies(rows_of_results(), ("state", "recall", "running"))
    first = next(line for line in printed.getvalue().splitlines() if "1 x" in line)
    numbers = re.findall(r"\d\S*", first)
    assert numbers[:2] == ["10", "1"]
    assert set(numbers[2:]) == {"0.876", "0.12"}
    assert "sparse" in first
    assert len(first.rstrip()) <= width


def test_nan_has_no_column_where_there_is_none(at_width: Callable[[int], io.StringIO]) -> None:
    printed = at_width(80)
    show_accuracies(rows_of_results()[1:2], ("state", "recall", "running"))
    assert "NaN" not in printed.getvalue()


def test_remarks_say_why_na_and_which_seeds_are_nan() -> None:
    assert remarks(rows_of_results()) == [
        "n/a at length 20 (2 x): the model ends at 16 tokens, this takes 42",
        "NaN: share of the answers that are NaN or all -inf (seed 0); they count as wrong",
    ]


def test_eval_says_why_a_length_is_not_tested(here: Path, shown: Shell) -> None:
    model = "attention(learned(ceiling=16), heads=2) @ 8"
    command = (
        "train",
        "--task",
        "parity(length=8)",
        "--model",
        model,
        "--out",
        "run",
        "--steps",
        "2",
    )
    text = shown(*command, "--batch-size", "4").line
    assert "n/a at length 80 (10 x): the model ends at 16 tokens, this takes 81" in text
    text = shown("eval", "run", "--lengths", "1", "4", "--sequences", "8").line
    assert "n/a at length 32 (4 x): the model ends at 16 tokens, this takes 33" in text
    assert "10 x" not in text


def words_of(text: str) -> list[str]:
    return re.sub(r"[│╭╮╰╯─]", " ", text).split()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "command",
    [
        ("list",),
        ("doctor",),
        ("show", "attention"),
        ("show", "serial"),
        ("show", "phase1"),
        ("show", "4 x (lstm(init=orthogonal, forget_bias=1) > attention(rope, heads=2) > mlp) @ 8"),
        ("reproduce", "dat", "--dry"),
    ],
    ids=" ".join,
)
def test_no_command_breaks_a_word_or_shortens_a_number(
    command: tuple[str, ...],
    width: int,
    at_width: Callable[[int], io.StringIO],
    shown: Shell,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("outlast.studies.estimate.BUDGET", 0.0)
    wide = at_width(400)
    shown(*command)
    narrow = at_width(width)
    shown(*command)
    assert "…" not in narrow.getvalue()
    known = set(words_of(wide.getvalue())) | {"(left", "out", "at", "columns:", str(width)}
    names = {f"{word}{end}" for word in known for end in (",", ")", ":")}
    broken = [w for w in words_of(narrow.getvalue()) if w not in known | names]
    assert broken == []


def test_example_of_a_task_is_cut_between_columns(at_width: Callable[[int], io.StringIO]) -> None:
    at_width(12)
    drawing = "tokens  k1 5 k22 3\nlabels  .  5 .   3"
    assert fold_columns(drawing) == "tokens  k1\nlabels  .\n\n5 k22 3\n5 .   3"
    at_width(40)
    assert fold_columns(drawing) == drawing


def test_docstring_is_filled_anew(at_width: Callable[[int], io.StringIO]) -> None:
    at_width(20)
    text = (
        "A paragraph of a few\nwords that fit.\n\n- an entry of a list that\n  goes on\n\n    code"
    )
    assert reflow(text) == (
        "A paragraph of a few\nwords that fit.\n\n- an entry of a list\n  that goes on\n\n    code"
    )
    at_width(16)
    assert reflow(text).startswith("A paragraph of a\nfew words that\nfit.\n\n")


def test_wrapped_never_breaks_a_word(at_width: Callable[[int], io.StringIO]) -> None:
    at_width(10)
    assert wrapped("on parity(length=40), seeds 0-3") == "on\nparity(length=40),\nseeds 0-3"
