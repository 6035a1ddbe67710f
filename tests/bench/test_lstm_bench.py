"""The bench of the LSTM: both sides compute the same, and errors are seen."""

import os

import pytest
import torch

from outlast.bench.lstm import layers, sections
from outlast.bench.lstm.layers import Case
from outlast.kernels.lstm import layer
from tiny_runs import CPU


@pytest.fixture(scope="module")
def case():
    return Case.draw(CPU, width=6, steps=5, batch=3, seeds=2)


def measure(bench, seeds=2, sizes=((8, 4, 2),)):
    sections._measure(bench, "cpu", sizes, seeds, False)


def test_our_layer_equals_torchs_for_each_seed(case):
    for ours, torchs in zip(case.ours()(), case.torchs(torch.float32)(), strict=True):
        for one, two in zip(ours, torchs, strict=True):
            torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)


def test_error_of_a_gradient_is_seen(case):
    assert case.error(case.ours()) < 1e-6
    assert 1e-5 < case.error(case.ours(half=True)) < 5e-2

    def off():
        (out, dx, *rest), *others = case.ours()()
        return [(out, dx * 1.1, *rest), *others]

    assert case.error(off) == pytest.approx(0.1, rel=1e-3)


def test_rows_have_torch_and_ours_with_errors(bench):
    measure(bench)
    assert [row.side for row in bench.rows] == ["torch fp32", "ours"]
    assert all(row.error is not None and row.error < 1e-5 for row in bench.rows)
    assert bench.rows[1].note == "plain, 2 seeds"


def test_our_kernel_has_a_row_where_one_seed_goes_by_cudnn(bench, monkeypatch):
    calls = []
    run = torch.lstm
    monkeypatch.setattr(torch, "lstm", lambda *a, **k: (calls.append(1), run(*a, **k))[1])
    for module in (layers, layer):
        monkeypatch.setattr(module, "cudnn_wins", lambda *_: os.environ[layer.SWITCH] != "fused")
    monkeypatch.setenv(layer.SWITCH, "auto")
    measure(bench, seeds=1)
    assert [row.side for row in bench.rows] == ["torch fp32", "ours", "ours, fused"]
    assert all(row.error is not None and row.error < 1e-5 for row in bench.rows)
    assert bench.rows[1].note == "plain, 1 seed, ours by cuDNN"
    assert len(calls) == 3  # for its error, to warm up and to be timed: of `ours` alone
    measure(bench)
    assert [row.side for row in bench.rows[3:]] == ["torch fp32", "ours"]
    assert len(calls) == 3


@pytest.mark.parametrize("before", [None, "cudnn"])
def test_switch_is_restored_after_our_kernel_was_forced(monkeypatch, before):
    monkeypatch.delenv(layer.SWITCH, raising=False)
    if before is not None:
        monkeypatch.setenv(layer.SWITCH, before)
    with layers.by_our_kernel():
        assert os.environ[layer.SWITCH] == "fused"
    assert os.environ.get(layer.SWITCH) == before


def test_nothing_is_begun_after_the_budget(spent):
    sections.cpu(spent)
    assert all(row.ms is None for row in spent.rows)


def test_streamed_weights_are_noted(bench, monkeypatch):
    monkeypatch.setattr(sections, "form", lambda *_: "streamed")
    measure(bench)
    assert bench.rows[-1].note == "plain, 2 seeds, ours streamed"


def test_sizes_cover_the_grid_and_the_edges_and_slow_ones_come_last(bench, monkeypatch):
    sizes_of = {}
    monkeypatch.setattr(
        sections, "_measure", lambda _, name, *args: sizes_of.update({name: args[0]})
    )
    sections.one(bench)
    sections.many(bench)
    grid = {(w, t, b) for w in (64, 128) for t in (64, 256, 1024) for b in (16, 128)}
    for sizes in sizes_of.values():
        assert set(sizes[:12]) == grid
    # edges: a few, so that the run stays short
    assert sizes_of["one"][12:] == [(w, t, 128) for w in (16, 256) for t in (64, 256)]
    assert sizes_of["many"][12:] == [(16, 64, 128), (256, 64, 128)]
    assert sizes_of["many"][:2] == [(64, 64, 128), (128, 64, 128)]
    assert [steps for _, steps, _ in sizes_of["many"][:12]] == [64] * 4 + [256] * 4 + [1024] * 4


def test_size_without_memory_is_a_row_and_the_next_is_measured(bench, monkeypatch):
    draw = Case.draw

    def no_room(device, width, *size):
        if width == 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB\nmore")
        return draw(device, width, *size)

    monkeypatch.setattr(Case, "draw", no_room)
    measure(bench, sizes=[(8, 4, 2), (6, 4, 2)])
    assert bench.rows[0].note == "n/a: CUDA out of memory. Tried to allocate 1 TiB"
    assert [row.side for row in bench.rows] == ["all", "torch fp32", "ours"]
    assert [row.ms is None for row in bench.rows] == [True, False, False]
