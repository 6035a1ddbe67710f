"""The bench of the LSTM: both sides compute the same, and errors are seen."""

import os

import pytest
import torch

from outlast.bench import lstm
from outlast.bench.timing import Bench
from outlast.kernels.lstm import layer

CPU = torch.device("cpu")


def test_our_layer_and_torchs_give_the_same_for_each_seed():
    case = lstm.Case.draw(CPU, width=6, steps=5, batch=3, seeds=2)
    for found, wanted in zip(case.ours()(), case.torchs(torch.float32)(), strict=True):
        for one, two in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)


def test_an_error_is_seen():
    case = lstm.Case.draw(CPU, width=6, steps=5, batch=3, seeds=2)
    assert case.error(case.ours()) < 1e-6
    assert 1e-5 < case.error(case.ours(half=True)) < 5e-2

    def off():
        (out, dx, *rest), *others = case.ours()()
        return [(out, dx * 1.1, *rest), *others]

    assert case.error(off) == pytest.approx(0.1, rel=1e-3)


def test_its_rows_stand_beside_torchs():
    bench = Bench(CPU, seconds=60, repeats=1)
    lstm._measure(bench, "cpu", [(8, 4, 2)], 2, False)
    assert [row.side for row in bench.rows] == ["torch fp32", "ours"]
    assert all(row.error is not None and row.error < 1e-5 for row in bench.rows)
    assert bench.rows[1].note == "plain, 2 seeds"


def test_where_one_seed_goes_by_cudnn_our_kernel_stands_beside_it(monkeypatch):
    calls = []
    run = torch.lstm
    monkeypatch.setattr(torch, "lstm", lambda *a, **k: (calls.append(1), run(*a, **k))[1])
    for module in (lstm, layer):
        monkeypatch.setattr(module, "cudnn_wins", lambda *_: os.environ[layer.SWITCH] != "fused")
    monkeypatch.setenv(layer.SWITCH, "auto")
    bench = Bench(CPU, seconds=60, repeats=1)
    lstm._measure(bench, "cpu", [(8, 4, 2)], 1, False)
    assert [row.side for row in bench.rows] == ["torch fp32", "ours", "ours, fused"]
    assert all(row.error is not None and row.error < 1e-5 for row in bench.rows)
    assert bench.rows[1].note == "plain, 1 seed, ours by cuDNN"
    assert len(calls) == 3  # for its error, to warm up and to be timed: of `ours` alone
    lstm._measure(bench, "cpu", [(8, 4, 2)], 2, False)
    assert [row.side for row in bench.rows[3:]] == ["torch fp32", "ours"]
    assert len(calls) == 3


@pytest.mark.parametrize("before", [None, "cudnn"])
def test_our_kernel_is_asked_for_and_the_switch_put_back(monkeypatch, before):
    if before is None:
        monkeypatch.delenv(layer.SWITCH, raising=False)
    else:
        monkeypatch.setenv(layer.SWITCH, before)
    with lstm._by_our_kernel():
        assert os.environ[layer.SWITCH] == "fused"
    assert os.environ.get(layer.SWITCH) == before


def test_nothing_is_begun_after_the_budget():
    bench = Bench(CPU, seconds=1e-9, repeats=1)
    lstm.cpu(bench)
    assert all(row.ms is None for row in bench.rows)


def test_narrow_and_widest_layers_are_measured_too_and_said_to_be_streamed(monkeypatch):
    asked = []
    monkeypatch.setattr(lstm, "_measure", lambda _, name, sizes, *__: asked.append((name, sizes)))
    bench = Bench(CPU, seconds=60, repeats=1)
    lstm.one(bench)
    lstm.many(bench)
    for name, sizes in asked:
        widths = [width for width, _, _ in sizes]
        assert set(widths) == {16, 64, 128, 256}
        assert widths.count(256) < widths.count(128), name  # a few, so that the run stays short
    monkeypatch.undo()
    monkeypatch.setattr(lstm, "form", lambda *_: "streamed")
    lstm._measure(bench, "cpu", [(8, 4, 2)], 2, False)
    assert bench.rows[-1].note == "plain, 2 seeds, ours streamed"


def test_many_seeds_are_measured_at_every_size_and_what_takes_long_comes_late(monkeypatch):
    asked = []
    monkeypatch.setattr(lstm, "_measure", lambda _, name, sizes, *__: asked.extend(sizes))
    lstm.many(Bench(CPU, seconds=60, repeats=1))
    grid = {(w, t, b) for w in (64, 128) for t in (64, 256, 1024) for b in (16, 128)}
    assert set(asked[:12]) == grid
    assert asked[:2] == [(64, 64, 128), (128, 64, 128)]
    assert [steps for _, steps, _ in asked[:12]] == [64] * 4 + [256] * 4 + [1024] * 4
    assert asked[12:] == [(16, 64, 128), (256, 64, 128)]


def test_a_size_without_room_is_a_row_that_says_so_and_the_next_is_measured(monkeypatch):
    draw = lstm.Case.draw

    def no_room(device, width, *size):
        if width == 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB\nmore")
        return draw(device, width, *size)

    monkeypatch.setattr(lstm.Case, "draw", no_room)
    bench = Bench(CPU, seconds=60, repeats=1)
    lstm._measure(bench, "cpu", [(8, 4, 2), (6, 4, 2)], 2, False)
    assert bench.rows[0].note == "n/a: CUDA out of memory. Tried to allocate 1 TiB"
    assert [(row.side, row.ms is None) for row in bench.rows] == [
        ("all", True),
        ("torch fp32", False),
        ("ours", False),
    ]
