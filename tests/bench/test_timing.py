"""The shared way to measure: sides take turns, failures are rows, a spent budget begins nothing."""

import json

import pytest
import torch

from outlast.bench import BENCHES, bench_module, timing, tra
from outlast.bench.timing import Bench, Row, line
from outlast.cli.bench_ import main
from outlast.errors import SpecError

CPU = torch.device("cpu")


def test_sides_take_turns_and_are_given_against_the_first():
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


def test_a_side_that_cannot_run_is_said_and_the_others_are_measured():
    def broken():
        raise RuntimeError("no such kernel\nand a long trace")

    bench = Bench(CPU, seconds=60, repeats=1)
    found = bench.compare("section", "what", {"broken": broken, "ours": lambda: None})
    assert list(found) == ["ours"]
    assert bench.rows[0].ms is None
    assert bench.rows[0].note == "n/a: no such kernel"
    assert bench.rows[1].against is None


def test_a_side_that_fails_in_its_turn_is_said_and_the_others_go_on():
    calls = {"broken": 0, "ours": 0}

    def side(name, limit):
        calls[name] += 1
        if calls[name] > limit:
            raise RuntimeError("out of memory")

    bench = Bench(CPU, seconds=60, repeats=5)
    sides = {"broken": lambda: side("broken", 4), "ours": lambda: side("ours", 99)}
    assert list(bench.compare("section", "what", sides)) == ["ours"]
    assert calls == {"broken": 5, "ours": 7}  # two to warm up, and one that failed
    assert (bench.rows[0].ms, bench.rows[0].note) == (None, "n/a: out of memory")
    assert bench.rows[1].ms is not None


def test_nothing_is_begun_after_the_budget():
    bench = Bench(CPU, seconds=1e-9, repeats=1)
    assert bench.compare("section", "what", {"ours": pytest.fail}) == {}
    assert "budget is spent" in line(bench.rows[0])


def test_memory_of_a_run_is_seen():
    bench = Bench(CPU, seconds=60, repeats=1)
    found = bench.peak(lambda: torch.ones(1 << 25))  # 128 MiB
    assert found is None or found > 100


def test_where_memory_cannot_be_seen_nothing_is_said(monkeypatch):
    monkeypatch.setattr(timing, "_resident", lambda _: None)
    bench = Bench(CPU, seconds=60, repeats=1)
    assert bench.peak(lambda: pytest.fail("it need not run")) is None


def test_rows_of_the_cpu_stand_in_the_same_table_and_budget():
    bench = Bench(torch.device("cuda"), seconds=1e-9, repeats=1)
    small = bench.on_cpu()
    assert small.device == CPU
    assert small.left() <= 0
    small.add(Row("cpu", "what", "ours", 1.0))
    assert bench.rows == small.rows != []


def test_an_error_without_a_word_is_told_by_its_name():
    bench = Bench(CPU, seconds=60, repeats=1)

    def never():
        raise NotImplementedError

    bench.compare("section", "what", {"ours": never})
    assert bench.rows[0].note == "n/a: NotImplementedError()"


@pytest.mark.parametrize("given", [{"seconds": 0}, {"seconds": 1, "repeats": 0}])
def test_what_cannot_be_is_refused(given):
    with pytest.raises(SpecError, match="expected"):
        Bench(CPU, **given)


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_has_sections_with_a_word_on_each(name):
    module = bench_module(name)
    assert set(module.default(CPU)) <= set(module.SECTIONS)
    assert all(section.__doc__ for section in module.SECTIONS.values())
    with pytest.raises(SpecError, match=r"name=tar: expected tra \| seeds"):
        bench_module("tar")


def test_sections_that_need_a_gpu_are_refused_without_one_and_others_are_not(capsys):
    with pytest.raises(SpecError, match=r"sections=forward: expected cpu \| trained where there"):
        main("tra", ("forward",), device="cpu")
    with pytest.raises(SpecError, match=r"sections=one: expected cpu where there"):
        main("lstm", ("one",), device="cpu")
    main("tra", ("trained",), device="cpu", repeats=1)
    assert "--run" in capsys.readouterr().out


def test_each_row_is_told_once_and_as_it_comes(capfd, caplog, monkeypatch):
    rows = [Row("cpu", "what", side, 1.0) for side in ("peer", "ours")]
    told = []

    def cpu(bench):
        for row in rows:
            bench.add(row)
            told.append(capfd.readouterr())

    monkeypatch.setitem(tra.SECTIONS, "cpu", cpu)
    with caplog.at_level("INFO"):
        main("tra", ("cpu",), device="cpu")
    head, first = told[0].out.splitlines()
    assert head == f"outlast bench tra: CPU, torch {torch.__version__}, median of 20"
    assert [first, told[1].out.rstrip("\n")] == [line(row) for row in rows]
    assert [*(t.err for t in told), *capfd.readouterr()] == [""] * 4
    assert not caplog.records


def test_the_rows_of_a_bench_within_a_bench_are_told_once(capfd, tmp_path, caplog):
    with caplog.at_level("INFO"):
        main("tra", ("cpu",), device="cpu", repeats=1, out=tmp_path / "rows.json")
    rows = [Row(**row) for row in json.loads((tmp_path / "rows.json").read_text())["rows"]]
    out, err = capfd.readouterr()
    assert rows
    assert out.splitlines()[1:] == [line(row) for row in rows]
    assert (err, caplog.records) == ("", [])


@pytest.mark.parametrize(("repeats", "times"), [(19, 1), (20, 0)])
def test_too_few_turns_for_a_record_are_said_once(repeats, times, capsys, monkeypatch):
    monkeypatch.setitem(tra.SECTIONS, "cpu", lambda bench: None)
    main("tra", ("cpu",), device="cpu", repeats=repeats)
    said = capsys.readouterr().out
    assert said.count("for trying out, not for a record: fewer than 20 turns") == times


def test_what_was_measured_before_a_failure_is_kept(tmp_path, monkeypatch):
    def cpu(bench):
        bench.add(Row("cpu", "what", "ours", 1.0))
        raise RuntimeError("device-side assert")

    monkeypatch.setitem(tra.SECTIONS, "cpu", cpu)
    with pytest.raises(RuntimeError, match="assert"):
        main("tra", ("cpu",), device="cpu", out=tmp_path / "rows.json")
    (row,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert row["ms"] == 1.0
