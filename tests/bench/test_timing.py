"""The shared way to measure: sides take turns, failures are rows, a spent budget begins nothing."""

import math

import pytest
import torch

from outlast.bench import timing
from outlast.bench.timing import Bench, Row, line
from outlast.errors import SpecError
from tiny_runs import CPU


def test_sides_take_turns_and_are_compared_with_the_first():
    order = []
    sides = {name: lambda name=name: order.append(name) for name in ("peer", "ours")}
    bench = Bench(CPU, seconds=60, repeats=3)
    bench.compare("section", "what", sides, {"ours": 1e-3}, "a note")
    assert order[-6:] == ["peer", "ours"] * 3
    peer, ours = bench.rows
    assert peer.against == 1.0
    assert ours.error == 1e-3
    assert "error 1e-03" in line(ours)
    assert line(ours).endswith("a note")


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (RuntimeError("no such kernel\nand a long trace"), "n/a: no such kernel"),
        (NotImplementedError(), "n/a: NotImplementedError()"),
    ],
    ids=["text", "no text"],
)
@pytest.mark.parametrize("sound_runs", [0, 4])
def test_failing_side_is_a_row_and_the_others_are_measured(error, note, sound_runs):
    """At once, or in one of its later turns."""
    calls = {"broken": 0, "ours": 0}

    def side(name, limit):
        calls[name] += 1
        if calls[name] > limit:
            raise error

    bench = Bench(CPU, seconds=60, repeats=5)
    sides = {"broken": lambda: side("broken", sound_runs), "ours": lambda: side("ours", 99)}
    bench.compare("section", "what", sides)
    assert calls == {"broken": sound_runs + 1, "ours": 7}  # two to warm up
    broken, ours = bench.rows
    assert (broken.ms, broken.note) == (None, note)
    assert ours.ms is not None
    assert ours.against is None


def test_times_are_of_one_step_and_notes_may_be_made_from_them(bench, monkeypatch):
    monkeypatch.setattr(Bench, "once", lambda self, side: side())
    sides = {"peer": lambda: 10.0, "ours": lambda: 5.0}
    bench.compare("section", "what", sides, note=lambda ms: f"{1 / ms} a ms", steps=5)
    assert [(r.ms, r.against, r.note) for r in bench.rows] == [
        (2.0, 1.0, "0.5 a ms"),
        (1.0, 0.5, "1.0 a ms"),
    ]


def test_nothing_is_begun_after_the_budget(spent):
    spent.compare("section", "what", {"ours": pytest.fail})
    (row,) = spent.rows
    assert "budget is spent" in line(row)


def test_peak_memory_is_measured(bench):
    peak = bench.peak(lambda: torch.ones(1 << 25))  # 128 MiB
    assert peak is None or peak > 100


def test_peak_memory_is_none_where_it_cannot_be_seen(bench, monkeypatch):
    monkeypatch.setattr(timing, "_resident", lambda _: None)
    assert bench.peak(lambda: pytest.fail("it need not run")) is None


def test_cpu_bench_shares_rows_and_budget():
    bench = Bench(torch.device("cuda"), seconds=1e-9, repeats=1)
    small = bench.on_cpu()
    assert small.device == CPU
    assert small.left() <= 0
    small.add(Row("cpu", "what", "ours", 1.0))
    assert bench.rows == small.rows != []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        *(({"seconds": x}, f"budget={x}: expected seconds") for x in (0, -1, math.nan, math.inf)),
        ({"seconds": 1, "repeats": 0}, "repeats=0: expected a whole number from 1"),
        ({"seconds": 1, "repeats": 10**30}, "repeats=1000.*: expected a whole number from 1"),
    ],
)
def test_bad_budget_or_repeats_is_refused(options, says):
    with pytest.raises(SpecError, match=says):
        Bench(CPU, **options)
