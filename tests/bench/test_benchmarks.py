"""`outlast bench`: which sections run, and what is printed and written of them."""

import json
from pathlib import Path

import pytest
import torch

from outlast.bench.registry import BENCHMARKS
from outlast.bench.timing import Row, line
from outlast.bench.tra import sections as tra
from outlast.cli.bench_ import main
from outlast.errors import SpecError
from tiny_runs import CPU


@pytest.mark.parametrize("benchmark", BENCHMARKS.values(), ids=BENCHMARKS)
def test_every_benchmark_has_known_sections_with_a_docstring(benchmark):
    assert all(section.__doc__ for section in benchmark.sections.values())
    assert benchmark.defaults.keys() == {"cpu", "cuda"}
    named = {name for names in benchmark.defaults.values() for name in names}
    assert named | set(benchmark.cpu_sections) <= set(benchmark.sections)
    assert set(benchmark.defaults["cpu"]) <= set(benchmark.cpu_sections)


@pytest.mark.parametrize(
    ("name", "cuda", "cpu"),
    [
        ("tra", "forward backward early short decode growth memory peers eager", "cpu"),
        ("seeds", "scaling peers mps bf16 loop lengths kernels between large", "cpu processes"),
        ("lstm", "one plain many", "cpu"),
        ("llama", "train generate memory", "cpu"),
        ("long", "equal thousands hundred_thousand", "equal thousands"),
    ],
)
def test_default_sections(name, cuda, cpu):
    """What takes long comes last; what takes longest, or needs a run, has to be named."""
    benchmark = BENCHMARKS[name]
    assert benchmark.choose_sections((), torch.device("cuda")) == tuple(cuda.split())
    assert benchmark.choose_sections((), CPU) == tuple(cpu.split())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tar", {}, r"name=tar: expected tra \| seeds \| lstm \| llama \| long"),
        ("tra", {"sections": ("forward",)}, r"sections=forward: expected cpu \| trained where"),
        ("lstm", {"sections": ("one",)}, r"sections=one: expected cpu where there"),
        ("lstm", {"sections": ("two",)}, r"sections=two: expected one \| plain"),
        ("seeds", {"layout": "diagonal"}, r"layout=diagonal: expected serial \| parallel"),
        ("tra", {"layout": "serial"}, "--layout serial cannot be combined with outlast bench tra"),
        ("tra", {"run": Path("x")}, "--run x cannot be combined .*: add --sections trained"),
        (
            "lstm",
            {"run": Path("x")},
            "--run x cannot be combined with outlast bench lstm: it measures no run",
        ),
    ],
)
def test_wrong_options_are_refused(name, options, message):
    with pytest.raises(SpecError, match=message):
        main(name, device="cpu", **options)


def test_cpu_section_that_is_not_a_default_runs_when_named(capsys):
    main("tra", ("trained",), device="cpu", repeats=1)
    assert "--run" in capsys.readouterr().out


def test_each_row_is_printed_once_and_at_once(capfd, caplog, monkeypatch):
    rows = [Row("cpu", "what", side, 1.0) for side in ("peer", "ours")]
    outputs = []

    def cpu(bench):
        for row in rows:
            bench.add(row)
            outputs.append(capfd.readouterr())

    monkeypatch.setitem(tra.SECTIONS, "cpu", cpu)
    with caplog.at_level("INFO"):
        main("tra", ("cpu",), device="cpu")
    head, first = outputs[0].out.splitlines()
    assert head == f"outlast bench tra: CPU, torch {torch.__version__}, median of 20"
    assert [first, outputs[1].out.rstrip("\n")] == [line(row) for row in rows]
    assert [*(t.err for t in outputs), *capfd.readouterr()] == [""] * 4
    assert not caplog.records


def test_rows_measured_on_the_cpu_are_printed_once(capfd, tmp_path, caplog):
    with caplog.at_level("INFO"):
        main("tra", ("cpu",), device="cpu", repeats=1, out=tmp_path / "rows.json")
    rows = [Row(**row) for row in json.loads((tmp_path / "rows.json").read_text())["rows"]]
    out, err = capfd.readouterr()
    assert rows
    assert out.splitlines()[1:] == [line(row) for row in rows]
    assert (err, caplog.records) == ("", [])


@pytest.mark.parametrize(("repeats", "times"), [(19, 1), (20, 0)])
def test_too_few_repeats_are_noted_once(repeats, times, capsys, monkeypatch):
    monkeypatch.setitem(tra.SECTIONS, "cpu", lambda bench: None)
    main("tra", ("cpu",), device="cpu", repeats=repeats)
    text = capsys.readouterr().out
    assert text.count("for trying out, not for a record: fewer than 20 turns") == times


def test_rows_before_a_failure_are_written(tmp_path, monkeypatch):
    def cpu(bench):
        bench.add(Row("cpu", "what", "ours", 1.0))
        raise RuntimeError("device-side assert")

    monkeypatch.setitem(tra.SECTIONS, "cpu", cpu)
    with pytest.raises(RuntimeError, match="assert"):
        main("tra", ("cpu",), device="cpu", out=tmp_path / "rows.json")
    (row,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert row["ms"] == 1.0
