"""What an onlooker sees: plain lines where there is no terminal, a bar where there is one."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import outlast.workflow.progress as progress_module
from outlast.train.run_state import Progress
from outlast.workflow.progress import Total, clock, progress, sentence


def report(step: int, **other: object) -> Progress:
    values = {
        "step": step, "steps": 100, "seconds_left": 61.0, "loss": {"state": 0.5, "recall": 0.25},
        "probe": {}, "waiting": 0, "seeds": 4,
    }  # fmt: skip
    return Progress(**(values | other))  # type: ignore[arg-type]


def test_sentence_names_losses_probes_and_phases() -> None:
    assert sentence(report(10)) == "loss state 0.500  recall 0.250"
    full = report(10, probe={"1": 0.98, "3": 0.31}, waiting=2)
    assert sentence(full) == (
        "loss state 0.500  recall 0.250  | right 1x 0.98  3x 0.31  | phase 1: 2 of 4 seeds"
    )


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0:00"), (61.9, "1:01"), (3600, "60:00")])
def test_clock_shows_minutes_and_seconds(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


def test_plain_lines_are_seconds_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    with progress(Console(file=out, force_terminal=False)) as show:
        show("a", "started")
        show("a", report(10))
        show("b", report(10))
        now[0] += 5
        show("a", report(20))  # too soon
        now[0] += 11
        show("a", report(30))
        show("a", report(100))  # the end is always told
        show("a", "done")
    lines = out.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "a: started", "a: step 10/100", "b: step 10/100", "a: step 30/100", "a: step 100/100",
        "a: done",
    ]  # fmt: skip
    assert "1:01 left" in lines[1]


def test_terminal_shows_a_bar() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, color_system=None)
    with progress(console) as show:
        show("my run", report(50))
        show("my run", "done")
    assert "my run" in out.getvalue()
    assert "100%" in out.getvalue()


def test_narrow_sentence_leaves_out_pieces_and_cuts_no_number() -> None:
    full = report(10, probe={"1": 0.98, "3": 0.31}, waiting=2)
    assert sentence(full, 40) == "loss state 0.500  recall 0.250"
    assert sentence(full, 25) == "right 1x 0.98  3x 0.31"
    assert sentence(full, 5) == ""


@pytest.mark.parametrize("width", [40, 60, 80])
def test_bar_of_a_narrow_terminal_cuts_no_number(width: int) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, color_system=None)
    with progress(console) as show:
        show("the study", Total(0.5, 61.0, "1 of 2 arms at their end, 50 % of all seed-steps"))
        show("joint", report(50, probe={"1": 0.98, "3": 0.31}, waiting=2))
    assert "…" not in out.getvalue()
    assert "about 1:01 left" in out.getvalue()
    assert " 50%" in out.getvalue()


def test_total_is_told_now_and_then_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    with progress(Console(file=out, force_terminal=False)) as show:
        show("all", Total(0.0, None, "0 of 2 arms"))
        show("all", Total(0.1, 9.0, "too soon"))
        now[0] += 16
        show("all", Total(0.5, 61.0, "1 of 2 arms"))
        show("all", Total(1.0, 0.0, "2 of 2 arms"))
    assert out.getvalue().splitlines() == [
        "all: 0 of 2 arms", "all: 1 of 2 arms, about 1:01 left", "all: 2 of 2 arms, about 0:00 left"
    ]  # fmt: skip


def test_brackets_in_names_and_errors_are_not_markup() -> None:
    for terminal in (False, True):
        out = io.StringIO()
        console = Console(file=out, force_terminal=terminal, width=120, color_system=None)
        with progress(console) as show:
            show("dat [bold]x[/bold]", report(10))
            show("dat [bold]x[/bold]", "cannot read [/tmp/a]")
        assert "dat [bold]x[/bold]" in out.getvalue()
        assert "cannot read [/tmp/a]" in out.getvalue()
