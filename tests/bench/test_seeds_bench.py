"""The bench of many seeds: its peer is the same model; what its rows and its figure say."""

import importlib.util
import json
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import outlast.train.run_state as trainer_module
from outlast.bench import plain, processes, seeds
from outlast.bench.figure import curves
from outlast.bench.plain import Block, Hybrid, peer_batch, peer_step, training_step
from outlast.bench.timing import Bench, Row
from outlast.cli import main
from outlast.models import build_model
from outlast.registry import tasks

CPU = torch.device("cpu")
TINY = seeds.Size(1, 8, 2, "composite(keys=8, length=3, queries=1)", 4)
FLEET = SimpleNamespace(block=lambda: None)
JAX = Path(__file__).parents[2] / "benchmarks" / "jax_seeds.py"


def plain_and_ours(layout: str) -> tuple[Hybrid, torch.nn.Module]:
    """Two models with the same weights."""
    plain = Hybrid(2, 16, 4, 30, 30, layout)
    ours = build_model(seeds.Size(2, 16, layout=layout).model, 30, 7, seed=0)
    own = dict(ours.named_parameters())
    order = ("embedding.weight", *_block_names(0, layout), *_block_names(1, layout))
    order += ("norm.weight", "norm.bias", "head.weight", "head.bias")
    with torch.no_grad():
        for (name, weight), theirs in zip(plain.named_parameters(), order, strict=True):
            assert weight.shape == own[theirs].shape, (name, theirs)
            weight.copy_(own[theirs])
    assert len(order) == len(own)
    return plain, ours


def _block_names(index: int, layout: str) -> tuple[str, ...]:
    """Our names of a block's parameters, in the order of the plain block's."""
    if layout == "serial":
        subs = [f"body.nodes.{3 * index + n}" for n in range(3)]
    else:
        subs = [f"body.nodes.{2 * index}.nodes.{n}" for n in range(2)]
        subs.append(f"body.nodes.{2 * index + 1}")
    lstm, attention, mlp = (f"{sub}.mixer" for sub in subs)
    norms = [f"{sub}.norm.{kind}" for sub in subs for kind in ("weight", "bias")]
    rest = [f"{lstm}.{n}" for n in ("input.weight", "weight", "input.bias", "bias")]
    rest += [f"{attention}.{n}" for n in ("qkv.weight", "out.weight", "out.bias")]
    rest += [f"{mlp}.{a}.{b}" for a in ("up", "down") for b in ("weight", "bias")]
    return (*norms, *rest)


@pytest.mark.parametrize("layout", seeds.LAYOUTS)
def test_the_plain_peer_is_the_same_model(layout):
    plain, ours = plain_and_ours(layout)
    tokens = torch.randint(30, (3, 9))
    torch.testing.assert_close(plain(tokens), ours(tokens)[0], atol=1e-5, rtol=1e-4)


def test_the_layouts_are_the_lines_they_are_called_by():
    assert seeds.FULL.model == "4 x (lstm > attention > mlp) @ 128"
    parallel = seeds.laid(Bench(CPU, seconds=60, layout="parallel"))
    assert parallel.model == "4 x (lstm | attention > mlp) @ 128"
    assert replace(parallel, layout="serial") == seeds.FULL


@pytest.mark.parametrize("layout", seeds.LAYOUTS)
def test_all_sections_measure_the_layout_that_is_asked_for(layout, monkeypatch):
    sizes, lines = [], []

    def shared(count, make, *_):
        sizes.append(pickle.loads(pickle.dumps(make)).args[0])  # as a process is given it
        return 1600.0, True

    monkeypatch.setattr(seeds, "shared", shared)
    for name in ("_group", "_peers", "_shares", "_kernels", "_by_length"):
        monkeypatch.setattr(seeds, name, lambda *given: sizes.append(given[-1]))
    monkeypatch.setattr(processes, "_fleet", lambda _, model, *__: lines.append(model) or FLEET)
    bench = Bench(CPU, seconds=60, repeats=3, layout=layout)
    for name, section in seeds.SECTIONS.items():
        before = len(sizes) + len(lines)
        section(bench)
        assert len(sizes) + len(lines) > before, name
    assert {size.layout for size in sizes} == {layout}
    assert all((" | attention" in line) == (layout == "parallel") for line in lines)


@pytest.mark.parametrize(
    ("asked", "layout"), [((), "serial"), (("--layout", "parallel"), "parallel")]
)
def test_the_title_and_the_file_say_the_layout(asked, layout, monkeypatch, tmp_path, capsys):
    met, out = [], tmp_path / "seeds.json"
    monkeypatch.setitem(seeds.SECTIONS, "cpu", lambda bench: met.append(bench.layout))
    words = ("bench", "seeds", "--sections", "cpu", "--device", "cpu", "--out", str(out))
    assert not main([*words, *asked])
    assert met == [layout]
    assert json.loads(out.read_text())["layout"] == layout
    assert f"({layout}: {seeds.LAYOUTS[layout]})" in capsys.readouterr().out


@pytest.mark.parametrize("layout", seeds.LAYOUTS)
def test_our_side_and_the_peers_train_the_layout(layout, monkeypatch):
    built, size = [], replace(TINY, layout=layout)
    ours = seeds.Loop(Bench(CPU, seconds=60, repeats=1), 1, size)
    assert ours.trainer.run.model.startswith(f"1 x ({seeds.LAYOUTS[layout]}) @ 8")
    monkeypatch.setattr(plain, "Block", lambda *given: built.append(given[-1]) or Block(*given))
    peer_step(size, CPU)()
    assert built == [layout]


def test_where_the_time_of_a_step_goes(monkeypatch):
    ours = [("_norm_forward", 0, 3e3), ("lstm_backward", 4e3, 10e3), ("_norm_backward", 10e3, 13e3)]
    torchs = [("nvjet_hsh_128x128_TNT", 13e3, 22e3), ("void at::native::reduce_kernel", 22e3, 25e3)]
    monkeypatch.setattr(seeds, "spans", lambda side: ours + torchs)
    bench = Bench(CPU, seconds=60, repeats=1)
    seeds._kernels(bench, "auto", 2, TINY)
    found = {row.side: (row.ms, row.note) for row in bench.rows}
    assert found == {
        "products": (3.0, "37.5%, 0.333 kernels"),
        "norm": (2.0, "25.0%, 0.667 kernels"),
        "lstm": (2.0, "25.0%, 0.333 kernels"),
        "others": (1.0, "12.5%, 0.333 kernels"),
    }
    assert bench.rows[0].side == "products"


def test_a_profiler_that_sees_nothing_is_told(monkeypatch):
    monkeypatch.setattr(seeds, "spans", lambda side: [])
    bench = Bench(CPU, seconds=60, repeats=1)
    seeds._kernels(bench, "auto", 1, TINY)
    assert [(row.ms, row.note) for row in bench.rows] == [(None, "n/a: the profiler saw none")]


def test_the_plain_peer_learns():
    task = tasks.build(TINY.task)
    model = Hybrid(1, 8, 4, task.vocabulary, task.classes)
    before = [w.clone() for w in model.parameters()]
    training_step(model, task.sample(3, 4, torch.Generator().manual_seed(0)))()
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_its_rows_say_seeds_speed_and_shares():
    bench = Bench(CPU, seconds=60, repeats=1)
    seeds._group(bench, "cpu", "auto", (1, 3), set(), TINY)
    seeds._peers(bench, "peers", 2, TINY)
    seeds._shares(bench, "loop", 2, TINY)
    assert [r.what for r in bench.rows[:3]] == ["1 seed", "3 seeds", "1 seed"]
    assert all("seed-steps/s" in r.note for r in bench.rows[:4])
    assert "outlast with 2:" in bench.rows[2].note
    assert [r.side for r in bench.rows[4:]] == ["steps", "whole block", "data"]
    assert all(r.ms and r.ms > 0 for r in bench.rows)


def test_ways_to_train_seeds_on_a_cpu_stand_beside_one_seed():
    bench = Bench(CPU, seconds=60, repeats=1)
    processes.ways(bench, 8, 3, 2)
    assert [row.side for row in bench.rows] == ["1 seed", "3 seeds", "1 in each of 2", "3 in 2"]
    assert all(row.what == "width 8" and row.ms for row in bench.rows)
    assert "seed-steps/s, 1.00 x one after the other" in bench.rows[0].note
    assert processes.DEMO_WIDTH in processes.DEMO_HYBRID
    assert processes.PARALLEL[0] in processes.DEMO_HYBRID
    assert seeds.default(CPU) == ("cpu", "processes")


def test_on_one_core_there_is_nothing_to_share_seeds_among():
    bench = Bench(CPU, seconds=60, repeats=1)
    processes.ways(bench, 8, 2, 1)
    assert [row.side for row in bench.rows] == ["1 seed", "2 seeds"]
    spent = Bench(CPU, seconds=1e-9, repeats=1)
    processes.ways(spent, 8, 2, 1)
    assert [row.note for row in spent.rows] == ["skipped: the budget is spent"]


def test_under_a_budget_the_most_seeds_come_last():
    cuda = torch.device("cuda")
    first, *_ = order = seeds.default(cuda)
    assert first == "scaling"
    assert order[1:] == ("peers", "mps", "bf16", "loop", "lengths", "kernels", "between", "large")
    told = [*seeds.FIRST, *seeds.BETWEEN, *seeds.MOST]
    assert sorted(told) == [2**n for n in range(8)]


def test_the_peers_batch_and_vocabulary_are_ours():
    ours = seeds.Loop(Bench(CPU, seconds=60, repeats=1), 1, TINY)
    assert peer_batch(TINY, CPU).inputs.numel() == ours.tokens
    assert ours.trainer.stack.model.head.out_features == ours.trainer.task.vocabulary


def test_what_is_told_already_is_measured_but_not_said_again():
    bench = Bench(CPU, seconds=60, repeats=1)
    seeds._group(bench, "cpu", "auto", (1, 2), {1}, TINY)
    (row,) = bench.rows
    assert row.what == "2 seeds"
    assert row.against is not None


def test_more_seeds_than_fit_are_a_row_that_says_so(monkeypatch):
    loop = seeds.Loop

    class Full(loop):
        def __post_init__(self):
            if self.seeds > 1:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB\nmore")
            super().__post_init__()

    monkeypatch.setattr(seeds, "Loop", Full)
    bench = Bench(CPU, seconds=60, repeats=1)
    seeds._group(bench, "cpu", "auto", (1, 64), set(), TINY)
    assert bench.rows[0].ms is not None
    assert bench.rows[1].note == "n/a: CUDA out of memory. Tried to allocate 1 TiB"


def test_the_figure_is_drawn_from_the_rows(tmp_path):
    rows = [
        Row("scaling", seeds.counted(n), kind, 2.0 + n, mib=n * 400.0)
        for n in (1, 8, 32)
        for kind in ("auto", "bf16")
    ]
    rows.append(Row("scaling", "64 seeds", "auto", None))
    assert seeds.draw(rows, tmp_path / "seeds.png", "serial: lstm > attention > mlp")
    assert (tmp_path / "seeds.png").read_bytes().startswith(b"\x89PNG")
    assert not seeds.draw([Row("peers", "1 seed", "eager", 1.0)], tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_the_figure_of_a_cpu_is_without_memory(tmp_path):
    rows = [Row("cpu", seeds.counted(n), "auto", 2.0 + n) for n in (1, 8)]
    assert seeds.draw(rows, tmp_path / "seeds.png")
    assert (tmp_path / "seeds.png").read_bytes().startswith(b"\x89PNG")


def test_what_ran_on_the_cpu_is_a_curve_of_its_own():
    rows = [
        Row("scaling", "8 seeds", "auto", 2.0),
        Row("bf16", "8 seeds", "bf16", 1.0),
        Row("cpu", "8 seeds", "auto", 90.0),
        Row("cpu peers", "8 seeds", "outlast", 90.0),
        Row("cpu", "8 seeds", "all", None),
    ]
    found = {name: [row.ms for row in own] for name, own in curves(rows).items()}
    assert found == {"float32": [2.0], "bf16": [1.0], "float32 on the CPU": [90.0]}


def test_the_time_of_the_data_is_without_the_plan(monkeypatch):
    loop = seeds.Loop(Bench(CPU, seconds=60, repeats=1), 2, TINY)
    monkeypatch.setattr(loop.trainer.conductor, "plan", None)
    made = []
    monkeypatch.setattr(trainer_module, "fresh", lambda *args: made.append(args[4]))
    loop.data()
    assert made == [(TINY.block, TINY.batch)]


def test_without_jax_its_peer_is_a_clear_error():
    blocked = f"import sys, runpy; sys.modules['jax'] = None; runpy.run_path({str(JAX)!r})"
    found = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True)
    assert found.returncode == 1
    assert found.stderr.startswith("error: JAX cannot be imported (")
    assert "pip install" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.fixture
def jax_peer(monkeypatch):
    """The program with a stand-in for JAX, which cannot compute."""
    numpy, devices = SimpleNamespace(), [SimpleNamespace(device_kind="none")]
    jax = SimpleNamespace(__version__="0", devices=lambda: devices, numpy=numpy)
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "jax.numpy", numpy)
    return _jax_program()


def _jax_program():
    spec = importlib.util.spec_from_file_location("jax_seeds", JAX)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_jax_took_is_kept_after_each_number_of_seeds(jax_peer, monkeypatch, tmp_path):
    out = tmp_path / "jax.json"

    def cut_short(seeds, *_):
        if seeds == 3:
            raise KeyboardInterrupt
        return 1.0, 2.0 * seeds

    monkeypatch.setattr(jax_peer, "measure", cut_short)
    monkeypatch.setattr(sys, "argv", ["jax_seeds.py", "--seeds", "1", "2", "3", "--out", str(out)])
    with pytest.raises(KeyboardInterrupt):
        jax_peer.main()
    kept = json.loads(out.read_text())
    assert [(r["seeds"], r["ms"]) for r in kept["rows"]] == [(1, 2), (2, 4)]
    assert kept["layout"] == "serial"
    assert list(tmp_path.iterdir()) == [out]


def test_where_jax_cannot_write_is_told_before_it_measures(jax_peer, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(jax_peer, "measure", lambda *_: pytest.fail("it is too early"))
    monkeypatch.setattr(sys, "argv", ["jax_seeds.py", "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        jax_peer.main()
    assert "expected a file in a folder that is there" in capsys.readouterr().err


@pytest.mark.parametrize("layout", seeds.LAYOUTS)
def test_jax_measures_the_layout_that_is_asked_for(jax_peer, monkeypatch, layout, capsys):
    asked = []
    monkeypatch.setattr(jax_peer, "measure", lambda *given: asked.append(given) or (1.0, 2.0))
    monkeypatch.setattr(sys, "argv", ["jax_seeds.py", "--seeds", "1", "--layout", layout])
    jax_peer.main()
    assert [given[-2] for given in asked] == [layout]
    assert layout in capsys.readouterr().out
    assert tuple(seeds.LAYOUTS) == jax_peer.LAYOUTS


def test_a_layout_jax_does_not_know_is_a_clear_error(jax_peer, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["jax_seeds.py", "--layout", "diagonal"])
    with pytest.raises(SystemExit):
        jax_peer.main()
    assert re.search("--layout: .*'diagonal'.*serial.*parallel", capsys.readouterr().err)


@pytest.mark.parametrize("layout", seeds.LAYOUTS)
def test_the_jax_peer_is_the_same_model(layout):
    pytest.importorskip("jax")
    program, (plain, _) = _jax_program(), plain_and_ours(layout)
    own = {name: weight.detach().numpy() for name, weight in plain.named_parameters()}

    def table(name):
        """A weight of all blocks, as x W has it."""
        found = np.stack([own[f"blocks.{n}.{name}"] for n in range(2)])
        return found.swapaxes(1, 2) if found.ndim == 3 else found

    def dense(name):
        return {"weight": table(f"{name}.weight"), "bias": table(f"{name}.bias")}

    def norm(scale, shift):
        return {"scale": scale, "shift": shift}

    lstm = {"input": "weight_ih", "recurrent": "weight_hh", "bias_in": "bias_ih", "bias": "bias_hh"}
    names = [f"norms.{n}" for n in range(3)]
    weights = {
        "embedding": own["embedding.weight"],
        "blocks": {
            "norms": [norm(table(f"{n}.weight"), table(f"{n}.bias")) for n in names],
            "lstm": {ours: table(f"lstm.{name}_l0") for ours, name in lstm.items()},
            "qkv": table("qkv.weight"),
            **{name: dense(name) for name in ("out", "up", "down")},
        },
        "norm": norm(own["norm.weight"], own["norm.bias"]),
        "head": {"weight": own["head.weight"].T, "bias": own["head.bias"]},
    }
    weights = program.jax.tree.map(program.jnp.asarray, weights)
    tokens = torch.randint(30, (3, 9))
    found = torch.tensor(np.array(program.logits(weights, tokens.numpy(), layout, 1)))
    torch.testing.assert_close(found, plain(tokens).detach(), atol=1e-4, rtol=1e-3)


def test_blocks_by_length_stand_beside_padded_ones():
    bench = Bench(CPU, 60, 2, lambda line: None)
    seeds._by_length(bench, "cpu lengths", "auto", 2, TINY)
    assert [(r.side, r.ms is not None) for r in bench.rows] == [
        ("padded", True),
        ("by length", True),
    ]
    assert bench.rows[0].against == 1
    assert "seed-steps/s" in bench.rows[1].note
