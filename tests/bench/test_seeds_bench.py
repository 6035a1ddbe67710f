"""The bench of many seeds: its peer is the same model; what its rows and its figure say."""

import json
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from outlast.bench.seeds import plain, processes, sections
from outlast.bench.seeds.figure import curves, draw
from outlast.bench.seeds.loop import Loop
from outlast.bench.seeds.plain import FULL, LAYOUTS, Block, Hybrid, Size
from outlast.bench.timing import Bench, Row
from outlast.cli import main
from outlast.models import build_model
from outlast.registry import tasks
from outlast.train import run_state
from tiny_runs import CPU

TINY = Size(1, 8, 2, "composite(keys=8, length=3, queries=1)", 4)
TRAINER = SimpleNamespace(train=lambda blocks: None)


def in_peers_order(model):
    """Our parameters in the order of the plain peer's."""
    yield model.embedding.weight
    sublayers = iter(model.sublayers())
    for block in zip(sublayers, sublayers, sublayers, strict=True):
        for sublayer in block:
            yield from (sublayer.norm.weight, sublayer.norm.bias)
        lstm, attention, mlp = (sublayer.mixer for sublayer in block)
        yield from (lstm.input.weight, lstm.weight, lstm.input.bias, lstm.bias)
        yield from (attention.qkv.weight, attention.out.weight, attention.out.bias)
        yield from (mlp.up.weight, mlp.up.bias, mlp.down.weight, mlp.down.bias)
    yield from (model.norm.weight, model.norm.bias, model.head.weight, model.head.bias)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_plain_peer_is_the_same_model(layout):
    peer = Hybrid(2, 16, 4, 30, 30, layout)
    ours = build_model(Size(2, 16, layout=layout).model, 30, 7, seed=0)
    weights = list(in_peers_order(ours))
    assert len(weights) == len(list(ours.parameters()))
    with torch.no_grad():
        for (name, weight), same in zip(peer.named_parameters(), weights, strict=True):
            assert weight.shape == same.shape, name
            weight.copy_(same)
    tokens = torch.randint(30, (3, 9))
    torch.testing.assert_close(peer(tokens), ours(tokens)[0], atol=1e-5, rtol=1e-4)


def test_layout_names_and_model_lines_agree():
    assert FULL.model == "4 x (lstm > attention > mlp) @ 128"
    parallel = sections.with_layout(Bench(CPU, seconds=60, layout="parallel"))
    assert parallel.model == "4 x (lstm | attention > mlp) @ 128"
    assert replace(parallel, layout="serial") == FULL


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_section_measures_the_layout_asked_for(layout, monkeypatch):
    sizes, lines = [], []

    def sizes_among(arguments):
        return [argument for argument in arguments if isinstance(argument, Size)]

    def shared(count, make, *_):
        sizes.append(pickle.loads(pickle.dumps(make)).args[0])  # as a process is given it
        return 1600.0, True

    monkeypatch.setattr(sections, "shared_rate", shared)
    for name in ("_scaling", "_peers", "_block_shares", "_kernels", "_by_length"):
        monkeypatch.setattr(sections, name, lambda *args, **_: sizes.extend(sizes_among(args)))
    monkeypatch.setattr(processes, "_trainer", lambda _, model, *__: lines.append(model) or TRAINER)
    bench = Bench(CPU, seconds=60, repeats=3, layout=layout)
    for name, section in sections.SECTIONS.items():
        before = len(sizes) + len(lines)
        section(bench)
        assert len(sizes) + len(lines) > before, name
    assert {size.layout for size in sizes} == {layout}
    assert all((" | attention" in line) == (layout == "parallel") for line in lines)


@pytest.mark.parametrize(
    ("asked", "layout"), [((), "serial"), (("--layout", "parallel"), "parallel")]
)
def test_title_and_file_name_the_layout(asked, layout, monkeypatch, tmp_path, capsys):
    measured, out = [], tmp_path / "seeds.json"
    monkeypatch.setitem(sections.SECTIONS, "cpu", lambda bench: measured.append(bench.layout))
    words = ("bench", "seeds", "--sections", "cpu", "--device", "cpu", "--out", str(out))
    assert not main([*words, *asked])
    assert measured == [layout]
    assert json.loads(out.read_text())["layout"] == layout
    assert f"({layout}: {LAYOUTS[layout]})" in capsys.readouterr().out


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ours_and_the_peer_train_the_layout(bench, layout, monkeypatch):
    layouts, size = [], replace(TINY, layout=layout)
    ours = Loop(bench, 1, size)
    assert ours.run_state.run.model.startswith(f"1 x ({LAYOUTS[layout]}) @ 8")
    monkeypatch.setattr(plain, "Block", lambda *args: layouts.append(args[-1]) or Block(*args))
    plain.peer_step(size, CPU)()
    assert layouts == [layout]


def test_kernel_times_are_summed_by_kind(bench, monkeypatch):
    ours = [("_norm_forward", 0, 3e3), ("lstm_backward", 4e3, 10e3), ("_norm_backward", 10e3, 13e3)]
    torchs = [("nvjet_hsh_128x128_TNT", 13e3, 22e3), ("void at::native::reduce_kernel", 22e3, 25e3)]
    monkeypatch.setattr(sections, "kernel_spans", lambda side: ours + torchs)
    sections._kernels(bench, "auto", 2, TINY)
    assert [(row.side, row.ms, row.note) for row in bench.rows] == [
        ("matmuls", 3.0, "37.5%, 0.333 kernels"),
        ("norm", 2.0, "25.0%, 0.667 kernels"),
        ("lstm", 2.0, "25.0%, 0.333 kernels"),
        ("others", 1.0, "12.5%, 0.333 kernels"),
    ]


def test_profiler_that_sees_nothing_is_a_row(bench, monkeypatch):
    monkeypatch.setattr(sections, "kernel_spans", lambda side: [])
    sections._kernels(bench, "auto", 1, TINY)
    assert [(row.ms, row.note) for row in bench.rows] == [(None, "n/a: the profiler saw none")]


def test_plain_peer_changes_every_weight():
    task = tasks.build(TINY.task)
    model = Hybrid(1, 8, 4, task.vocabulary, task.classes)
    before = [w.clone() for w in model.parameters()]
    plain.training_step(model, task.sample(3, 4, torch.Generator().manual_seed(0)))()
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_rows_have_seeds_rates_and_shares(bench):
    sections._scaling(bench, "cpu", "auto", (1, 3), TINY)
    sections._peers(bench, "peers", 2, TINY)
    sections._block_shares(bench, "loop", 2, TINY)
    assert [r.what for r in bench.rows[:3]] == ["1 seed", "3 seeds", "1 seed"]
    assert all("seed-steps/s" in r.note for r in bench.rows[:4])
    assert "outlast with 2:" in bench.rows[2].note
    assert [r.side for r in bench.rows[4:]] == ["steps", "whole block", "data"]
    assert all(r.ms and r.ms > 0 for r in bench.rows)


def test_cpu_processes_are_compared_with_one_seed(bench):
    processes.ways(bench, 8, 3, 2)
    assert [row.side for row in bench.rows] == ["1 seed", "3 seeds", "1 in each of 2", "3 in 2"]
    assert all(row.what == "width 8" and row.ms for row in bench.rows)
    assert "seed-steps/s, 1.00 x one after the other" in bench.rows[0].note
    assert processes.DEMO_WIDTH in processes.DEMO_HYBRID
    assert processes.PARALLEL[0] in processes.DEMO_HYBRID


def test_one_core_has_no_rows_of_processes(bench, spent):
    processes.ways(bench, 8, 2, 1)
    assert [row.side for row in bench.rows] == ["1 seed", "2 seeds"]
    processes.ways(spent, 8, 2, 1)
    assert [row.note for row in spent.rows] == ["skipped: the budget is spent"]


def test_scaling_measures_every_power_of_two_once():
    numbers = [*sections.FIRST, *sections.BETWEEN, *sections.MOST]
    assert sorted(numbers) == [2**n for n in range(8)]


def test_peer_has_our_batch_and_vocabulary(bench):
    ours = Loop(bench, 1, TINY)
    assert plain.peer_batch(TINY, CPU).inputs.numel() == ours.tokens
    head = ours.trainer.seeds.model.model.head
    assert head.out_features == ours.run_state.task.vocabulary


def test_hidden_number_of_seeds_is_measured_without_a_row(bench):
    sections._scaling(bench, "cpu", "auto", (1, 2), TINY, hide_first=True)
    (row,) = bench.rows
    assert row.what == "2 seeds"
    assert row.against is not None


def test_seeds_that_do_not_fit_are_a_row(bench, monkeypatch):
    class Full(Loop):
        def __post_init__(self):
            if self.seeds > 1:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB\nmore")
            super().__post_init__()

    monkeypatch.setattr(sections, "Loop", Full)
    sections._scaling(bench, "cpu", "auto", (1, 64), TINY)
    assert bench.rows[0].ms is not None
    assert bench.rows[1].note == "n/a: CUDA out of memory. Tried to allocate 1 TiB"


@pytest.mark.parametrize("section", ["scaling", "cpu"])
def test_figure_is_drawn_from_the_rows(section, tmp_path):
    """With memory, or without where it was not measured."""
    mib = 400.0 if section == "scaling" else None
    rows = [
        Row(section, f"{n} seeds", name, 2.0 + n, mib=mib and n * mib)
        for n in (1, 8, 32)
        for name in (("auto", "bf16") if mib else ("auto",))
    ]
    rows.append(Row(section, "64 seeds", "auto", None))
    assert draw(rows, tmp_path / "seeds.png", "serial: lstm > attention > mlp")
    assert (tmp_path / "seeds.png").read_bytes().startswith(b"\x89PNG")
    assert not draw([Row("peers", "1 seed", "eager", 1.0)], tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_cpu_rows_are_a_curve_of_their_own():
    rows = [
        Row("scaling", "8 seeds", "auto", 2.0),
        Row("bf16", "8 seeds", "bf16", 1.0),
        Row("cpu", "8 seeds", "auto", 90.0),
        Row("cpu peers", "8 seeds", "outlast", 90.0),
        Row("cpu", "8 seeds", "all", None),
    ]
    times = {name: [row.ms for row in points] for name, points in curves(rows).items()}
    assert times == {"float32": [2.0], "bf16": [1.0], "float32 on the CPU": [90.0]}


def test_time_of_data_excludes_the_plan(bench, monkeypatch):
    loop, shapes = Loop(bench, 2, TINY), []
    monkeypatch.setattr(loop.run_state.methods, "plan", None)
    monkeypatch.setattr(run_state, "sample_block", lambda *args, **_: shapes.append(args[4]))
    loop.data()
    assert shapes == [(TINY.block, TINY.batch)]


def test_blocks_by_length_are_compared_with_padded_ones(bench):
    sections._by_length(bench, "cpu lengths", "auto", 2, TINY)
    assert [row.side for row in bench.rows] == ["padded", "by length"]
    assert all(row.ms is not None for row in bench.rows)
    assert bench.rows[0].against == 1
    assert "seed-steps/s" in bench.rows[1].note
