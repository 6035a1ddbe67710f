"""Other libraries and trained gates beside TRA: what is missing is said, what is there is right."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from outlast.bench import tra_beside
from outlast.bench.timing import Bench
from outlast.bench.tra import SECTIONS, default
from outlast.bench.tra_sides import fused
from outlast.kernels import libraries
from outlast.kernels.entmax import entmax15
from tiny_runs import CPU, tiny, trained

TRA = "2 x (attention(tra, heads=4) > mlp) @ 16"


def small() -> Bench:
    return Bench(CPU, seconds=60, repeats=1)


def test_a_library_that_is_missing_is_a_row(monkeypatch):
    monkeypatch.setattr(tra_beside, "installed", lambda _: False)
    bench = small()
    tra_beside.beside(bench, length=64, width=16)
    notes = {row.side: row.note for row in bench.rows}
    assert notes["fox, fla"] == "n/a: fla-core is not installed (outlast[fast])"
    assert notes["adasplash"] == "n/a: adasplash is not installed (outlast[fast])"
    assert all(row.ms for row in bench.rows if row.side == "tra")
    assert len(bench.rows) == 8


def test_a_library_that_fails_is_a_row_and_one_that_runs_has_its_error(monkeypatch):
    def fox(q, k, v, g):
        kept = g.cumsum(1).permute(0, 2, 1)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        scores = scores + kept[..., :, None] - kept[..., None, :]
        later = torch.ones(scores.shape[-2:]).triu(1).bool()
        return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(later, -torch.inf).softmax(-1), v)

    def splash(q, k, v, alpha):
        assert q.shape[-2] != 64, "too short"
        later = torch.ones(q.shape[-2], q.shape[-2]).triu(1).bool()
        return entmax15((q @ k.mT / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf)) @ v

    for name in ("fla", "fla.ops", "fla.ops.forgetting_attn", "adasplash"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["fla.ops.forgetting_attn"].parallel_forgetting_attn = fox
    sys.modules["adasplash"].adasplash = splash
    monkeypatch.setattr(tra_beside, "installed", lambda _: True)
    bench = small()
    tra_beside.beside(bench, length=64, width=16)
    tra_beside.beside(bench, length=96, width=16)
    short, long = bench.rows[:8], bench.rows[8:]
    assert next(r.note for r in short if r.side == "adasplash") == "n/a: AssertionError: too short"
    for row in long:
        assert row.ms
        if row.side in ("fox, fla", "adasplash") and row.what.endswith("forward"):
            assert row.error < 1e-4
    assert libraries.PACKAGES.keys() == {"fla", "adasplash"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tra") / "run"
    return trained(tiny(model=TRA, task="flipflop(length=8)", steps=20), path)


def test_the_gates_of_a_trained_model_are_taken_and_timed(folder):
    bench = small()
    bench.run = folder
    taken = tra_beside.capture(bench, 64)
    assert len(taken) == 2
    q, k, v, gate = taken[0]
    assert q.shape == k.shape == v.shape == (8, 4, 64, 4)  # 32 heads
    assert gate.shape == (8, 4, 64)
    assert (gate < 0).all()
    torch.testing.assert_close(q.square().mean(-1), torch.ones(8, 4, 64), rtol=1e-3, atol=1e-3)
    data = tra_beside.inputs(bench, taken[1])
    assert data.error(fused, True) < 1e-4
    SECTIONS["trained"](bench)
    early = [row for row in bench.rows if row.side == "tra, early"]
    assert [row.what for row in early] == [
        f"layer {layer}, n 512, 32 heads, {name}"
        for layer in (0, 1)
        for name in ("forward", "fwd+bwd")
    ]
    assert all(row.ms and row.error < 1e-3 and "gates" in row.note for row in early)
    assert all("density 0." in row.note for row in early)


def test_without_a_run_it_says_how_to_give_one(tmp_path):
    bench = small()
    SECTIONS["trained"](bench)
    assert "--run" in bench.rows[0].note
    bench.run = trained(tiny(steps=10, probe_every=0, checkpoint_every=10), tmp_path / "nope")
    SECTIONS["trained"](bench)
    assert "no attention(tra)" in bench.rows[1].note


def test_what_takes_long_or_needs_a_run_is_asked_for():
    named = default(torch.device("cuda"))
    assert "peers" in named
    assert not {"trained", "compiled", "cpu"} & set(named)
