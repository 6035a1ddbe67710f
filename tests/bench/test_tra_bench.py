"""The sections of `outlast bench tra`, small and on the CPU: errors and densities are measured."""

import pytest
import torch

from outlast.bench import tra
from outlast.bench.timing import Bench
from outlast.bench.tra_sides import COUNTED, ENTMAX, FORGETTING, PLAIN, Inputs, fused
from outlast.mixers.attention.pure import Inputs as LookInputs
from outlast.registry import mixers
from tiny_runs import CPU

SMALL = {
    "short": lambda bench: tra.short(bench, ((16, 2),)),
    "decode": lambda bench: tra.decode(bench, (128,)),
    "growth": lambda bench: tra.growth(bench, (32, 64)),
    "eager": lambda bench: tra.against_eager(bench, 64),
    "cpu": tra.cpu,
}


def small() -> Bench:
    return Bench(CPU, seconds=60, repeats=1)


@pytest.mark.parametrize("section", SMALL)
def test_every_row_of_ours_has_its_error_and_what_was_kept(section):
    bench = small()
    SMALL[section](bench)
    rows = [r for r in bench.rows if r.section == section]
    ours = [r for r in rows if r.side in ("tra", "eager") or r.side.startswith("n ")]
    assert ours
    for row in ours:
        assert row.ms
        assert row.error < 1e-4
        assert "gates 0." in row.note
        assert "density 0." in row.note
        assert tra.GRAPHED not in row.note  # there is no graph on a CPU


@pytest.mark.parametrize(("section", "passes"), [("forward", "forward"), ("backward", "fwd+bwd")])
def test_rows_are_called_what_their_section_is(section, passes, monkeypatch):
    monkeypatch.setattr(tra, "LENGTHS", (32,))
    bench = small()
    tra.SECTIONS[section](bench)
    assert {(r.section, r.what) for r in bench.rows} == {
        (section, f"n 32, width {width}, {passes}") for width in tra.WIDTHS
    }


def test_the_density_is_counted():
    data = Inputs.draw(small(), (2, 8, 64, 16))
    q, k = (t[0, :COUNTED].detach() for t in (data.q, data.k))
    kept = (q @ k.mT > 0).tril()
    assert data.density() == pytest.approx(kept.sum().item() / (COUNTED * 64 * 65 / 2))
    last = Inputs.draw(small(), (2, 8, 64, 16), queries=1)
    q, k = (t[0, :COUNTED].detach() for t in (last.q, last.k))
    assert last.density() == pytest.approx((q @ k.mT > 0).float().mean().item())
    with torch.no_grad():
        data.k.copy_(data.q)
        data.k[:, :, 1:] = 0
    assert data.density() < 0.05
    assert "all gates 0.9, density" in Inputs.draw(small(), (1, 1, 8, 16), 0.9).words()


def test_a_side_that_cannot_be_captured_is_a_row(monkeypatch):
    def captured(side):
        if side is broken:
            raise RuntimeError("operation not permitted when stream is capturing")
        return lambda: replayed.append(side())

    def broken():
        pytest.fail("it is not to be timed as it is")

    replayed, bench = [], small()
    monkeypatch.setattr(tra, "captured", captured)
    assert tra.replayed(bench, {"ours": broken}) == {"ours": broken}
    bench.device = torch.device("cuda")
    sides = tra.replayed(bench, {"ours": lambda: 1, "peer": broken})
    assert tra.graphed(bench, "a note") == "a note, replay of a CUDA graph"
    bench.device = CPU
    bench.compare("short", "what", sides)
    assert replayed == [1, 1]
    assert [r.note[:30] for r in bench.rows] == ["", "n/a: operation not permitted w"]


def test_what_cannot_run_has_no_error_and_the_others_have(monkeypatch):
    def broken(*_):
        raise NotImplementedError("no such thing")

    found = Inputs.draw(small(), (1, 1, 16, 16)).errors(True, {"tra": fused, "other": broken})
    assert list(found) == ["tra"]


@pytest.mark.gpu
@pytest.mark.parametrize("section", ["short", "decode"])
def test_on_a_gpu_graphs_are_replayed(section):
    bench = Bench(torch.device("cuda"), seconds=60, repeats=1)
    SMALL[section](bench)
    ours = [r for r in bench.rows if r.side == "tra"]
    assert ours
    assert all(r.ms and r.error < 1e-2 and tra.GRAPHED in r.note for r in ours)


@pytest.mark.parametrize("backward", [False, True])
def test_each_kind_of_attention_is_held_against_its_own_definition(backward):
    data = Inputs.draw(small(), (2, 2, 200, 16))

    def plain(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    assert data.error(plain, backward, PLAIN) < 1e-5
    assert data.error(fused, backward) < 1e-5
    assert data.error(lambda q, k, v: 1.1 * plain(q, k, v), backward, PLAIN) > 0.05
    for truth, spec in ((FORGETTING, "forget"), (ENTMAX, "nope")):
        weights = "entmax" if truth is ENTMAX else "softmax"
        layer = mixers.build(f"attention({spec}, heads=2, weights={weights})", width=32)

        def attend(q, k, v, gate=None, layer=layer):
            features = None if gate is None else gate[..., None]
            inputs = LookInputs(torch.arange(k.shape[2]), None, features, q, k, v)
            return layer._look(inputs, None)[0]

        assert data.error(attend, backward, truth) < 1e-4
