"""A run as a CUDA graph: its replay keeps what the graph reads and writes."""

import gc
import weakref
from contextlib import nullcontext

import pytest
import torch

from outlast.bench.graphs import REPLAYED, captured, compare_replays
from outlast.bench.seeds.profile import covered
from outlast.bench.timing import Bench


class Pretended:
    """A stream or a graph where there is no GPU; replaying is counted."""

    replays = 0

    def wait_stream(self, other):
        assert other is not self

    def replay(self):
        Pretended.replays += 1


@pytest.fixture
def pretended(monkeypatch):
    monkeypatch.setattr(Pretended, "replays", 0)
    for name in ("CUDAGraph", "Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, Pretended)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, stream=None: nullcontext())


def double(read):
    """A side that is the only one to hold what it reads."""
    return lambda: read * 2


def test_replay_keeps_what_its_graph_reads_and_writes(pretended):
    read = torch.ones(3)
    alive = weakref.ref(read)
    replay = captured(double(read))
    del read
    gc.collect()
    assert torch.equal(replay(), torch.full((3,), 2.0))
    assert Pretended.replays == 1
    assert alive() is not None
    del replay
    gc.collect()
    assert alive() is None


@pytest.mark.gpu
def test_replay_on_a_gpu_reads_what_was_recorded():
    replay = captured(double(torch.ones(1 << 20, device="cuda")))
    # where the ones were, had they been freed
    others = [torch.full((1 << 20,), 5.0, device="cuda") for _ in range(8)]
    assert (replay() == 2).all()
    del others


@pytest.mark.gpu
def test_side_that_ran_on_the_default_stream_can_be_recorded():
    leaf = torch.ones(1000, device="cuda", requires_grad=True)

    def side():
        out = leaf * leaf
        return [out, *torch.autograd.grad(out.sum(), leaf)]

    side()
    replay = captured(side)
    with torch.no_grad():
        leaf.mul_(3)
    out, gradient = replay()
    assert (out == 9).all()
    assert (gradient == 6).all()


def test_side_that_cannot_be_captured_is_a_row(bench, monkeypatch):
    def capture(side):
        if side is broken:
            raise RuntimeError("operation not permitted when stream is capturing")
        return lambda: replayed.append(side())

    def broken():
        pytest.fail("it is not to be timed as it is")

    replayed, calls = [], []
    monkeypatch.setattr("outlast.bench.graphs.captured", capture)
    on_gpu = Bench(torch.device("cuda"), seconds=60, repeats=1)
    monkeypatch.setattr(on_gpu, "compare", lambda *args: calls.append(args))
    compare_replays(on_gpu, "short", "what", {"ours": lambda: 1, "peer": broken}, {}, "a note")
    ((*_, sides, _, note),) = calls
    assert note == f"a note, {REPLAYED}"
    bench.compare("short", "what", sides)
    assert replayed == [1, 1]
    assert [row.note[:30] for row in bench.rows] == ["", "n/a: operation not permitted w"]
    compare_replays(bench, "short", "what", {"ours": lambda: replayed.append(2)}, {}, "a note")
    assert replayed == [1, 1, 2, 2]  # as it is
    assert bench.rows[-1].note == "a note"


@pytest.mark.parametrize(
    ("spans", "share"),
    [([], None), ([(1, 1)], None), ([(0, 2), (1, 3), (3, 4)], 1.0), ([(0, 1), (3, 4)], 0.5)],
    ids=str,
)
def test_share_of_time_that_spans_cover(spans, share):
    assert covered(spans) == share
