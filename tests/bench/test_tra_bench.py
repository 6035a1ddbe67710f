"""The sections of `outlast bench tra`, small and on the CPU: errors and densities are measured."""

import sys
from types import ModuleType

import pytest
import torch

from outlast.bench.graphs import REPLAYED
from outlast.bench.timing import Bench
from outlast.bench.tra import libraries, trained
from outlast.bench.tra import sections as tra
from outlast.bench.tra.inputs import (
    COUNTED,
    ENTMAX,
    FORGETTING,
    PLAIN,
    TRA_FUSED,
    Contender,
    Inputs,
    fused,
)
from outlast.kernels.libraries import PACKAGES
from outlast.mixers.attention.pure import Inputs as LookInputs
from outlast.registry import mixers
from tiny_runs import CPU, tiny
from tiny_runs import trained as trained_run

SMALL = {
    "short": lambda bench: tra.short(bench, ((16, 2),)),
    "decode": lambda bench: tra.decode(bench, (128,)),
    "growth": lambda bench: tra.growth(bench, (32, 64)),
    "eager": lambda bench: tra.against_eager(bench, 64),
    "cpu": tra.cpu,
}


@pytest.mark.parametrize("section", SMALL)
def test_rows_of_ours_have_error_gates_and_density(bench, section):
    SMALL[section](bench)
    rows = [r for r in bench.rows if r.section == section]
    ours = [r for r in rows if r.side in ("tra", "eager") or r.side.startswith("n ")]
    assert ours
    for row in ours:
        assert row.ms
        assert row.error < 1e-4
        assert "gates 0." in row.note
        assert "density 0." in row.note
        assert REPLAYED not in row.note  # there is no graph on a CPU


@pytest.mark.parametrize(("section", "passes"), [("forward", "forward"), ("backward", "fwd+bwd")])
def test_rows_have_the_name_of_their_section(bench, section, passes, monkeypatch):
    monkeypatch.setattr(tra, "LENGTHS", (32,))
    tra.SECTIONS[section](bench)
    assert {(r.section, r.what) for r in bench.rows} == {
        (section, f"n 32, width {width}, {passes}") for width in tra.WIDTHS
    }


def test_density_is_the_share_of_kept_keys(bench):
    data = Inputs.draw(bench, (2, 8, 64, 16))
    q, k = (t[0, :COUNTED].detach() for t in (data.q, data.k))
    kept = (q @ k.mT > 0).tril()
    assert data.density() == pytest.approx(kept.sum().item() / (COUNTED * 64 * 65 / 2))
    last = Inputs.draw(bench, (2, 8, 64, 16), queries=1)
    q, k = (t[0, :COUNTED].detach() for t in (last.q, last.k))
    assert last.density() == pytest.approx((q @ k.mT > 0).float().mean().item())
    with torch.no_grad():
        data.k.copy_(data.q)
        data.k[:, :, 1:] = 0
    assert data.density() < 0.05
    assert "all gates 0.9, density" in Inputs.draw(bench, (1, 1, 8, 16), 0.9).description()


def test_failing_attention_has_no_error_and_the_others_have(bench):
    def broken(*_):
        raise NotImplementedError("no such thing")

    errors = Inputs.draw(bench, (1, 1, 16, 16)).errors(
        TRA_FUSED | {"other": Contender(broken)}, True
    )
    assert list(errors) == ["tra"]


@pytest.mark.gpu
@pytest.mark.parametrize("section", ["short", "decode"])
def test_graphs_are_replayed_on_a_gpu(section):
    bench = Bench(torch.device("cuda"), seconds=60, repeats=1)
    SMALL[section](bench)
    ours = [r for r in bench.rows if r.side == "tra"]
    assert ours
    assert all(r.ms and r.error < 1e-2 and REPLAYED in r.note for r in ours)


@pytest.mark.parametrize("backward", [False, True])
def test_attention_is_compared_with_its_own_definition(bench, backward):
    data = Inputs.draw(bench, (2, 2, 200, 16))

    def plain(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    assert data.error(Contender(plain, PLAIN), backward) < 1e-5
    assert data.error(Contender(fused), backward) < 1e-5
    off = Contender(lambda q, k, v: 1.1 * plain(q, k, v), PLAIN)
    assert data.error(off, backward) > 0.05
    for truth, spec in ((FORGETTING, "forget"), (ENTMAX, "nope")):
        weights = "entmax" if truth is ENTMAX else "softmax"
        layer = mixers.build(f"attention({spec}, heads=2, weights={weights})", width=32)

        def attend(q, k, v, gate=None, layer=layer):
            features = None if gate is None else gate[..., None]
            inputs = LookInputs(torch.arange(k.shape[2]), None, features, q, k, v)
            return layer._look(inputs, None)[0]

        assert data.error(Contender(attend, truth), backward) < 1e-4


# ---- other libraries, and a trained model --------------------------------------------------------

TWO_LAYERS = "2 x (attention(tra, heads=4) > mlp) @ 16"


def test_missing_library_is_a_row(bench, monkeypatch):
    monkeypatch.setattr(libraries, "installed", lambda _: False)
    libraries.libraries(bench, length=64, width=16)
    notes = {row.side: row.note for row in bench.rows}
    assert notes["fox, fla"] == "n/a: fla-core is not installed (outlast[fast])"
    assert notes["adasplash"] == "n/a: adasplash is not installed (outlast[fast])"
    assert all(row.ms for row in bench.rows if row.side == "tra")
    assert len(bench.rows) == 8


def test_failing_library_is_a_row_and_a_running_one_has_its_error(bench, monkeypatch):
    def fox(*tokens_first):
        return FORGETTING.attend(*(t.transpose(1, 2) for t in tokens_first)).transpose(1, 2)

    def splash(q, k, v, alpha):
        assert q.shape[-2] != 64, "too short"
        assert alpha == 1.5
        return ENTMAX.attend(q, k, v)

    for name in ("fla", "fla.ops", "fla.ops.forgetting_attn", "adasplash"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["fla.ops.forgetting_attn"].parallel_forgetting_attn = fox
    sys.modules["adasplash"].adasplash = splash
    monkeypatch.setattr(libraries, "installed", lambda _: True)
    libraries.libraries(bench, length=64, width=16)
    libraries.libraries(bench, length=96, width=16)
    short, long = bench.rows[:8], bench.rows[8:]
    assert next(r.note for r in short if r.side == "adasplash") == "n/a: AssertionError: too short"
    for row in long:
        assert row.ms
        if row.side in ("fox, fla", "adasplash") and row.what.endswith("forward"):
            assert row.error < 1e-4
    assert PACKAGES.keys() == {"fla", "adasplash"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tra") / "run"
    return trained_run(tiny(model=TWO_LAYERS, task="flipflop(length=8)", steps=20), path)


def test_layers_of_a_trained_model_are_captured_and_timed(bench, folder):
    bench.run = folder
    layers = trained.capture_layers(folder, CPU, 64)
    assert len(layers) == 2
    q, k, v, gate = layers[0]
    assert q.shape == k.shape == v.shape == (8, 4, 64, 4)  # 32 heads
    assert gate.shape == (8, 4, 64)
    assert (gate < 0).all()
    torch.testing.assert_close(q.square().mean(-1), torch.ones(8, 4, 64), rtol=1e-3, atol=1e-3)
    data = trained.as_inputs(bench, layers[1])
    assert data.error(Contender(fused), True) < 1e-4
    trained.trained(bench)
    early = [row for row in bench.rows if row.side == "tra, early"]
    assert [row.what for row in early] == [
        f"layer {layer}, n 512, 32 heads, {name}"
        for layer in (0, 1)
        for name in ("forward", "fwd+bwd")
    ]
    assert all(row.ms and row.error < 1e-3 and "gates" in row.note for row in early)
    assert all("density 0." in row.note for row in early)


def test_missing_or_other_run_is_a_row_that_says_so(bench, tmp_path):
    trained.trained(bench)
    assert "--run" in bench.rows[0].note
    bench.run = trained_run(tiny(steps=10, probe_every=0, checkpoint_every=10), tmp_path / "nope")
    trained.trained(bench)
    assert "no attention(tra)" in bench.rows[1].note
