"""Kernels of other libraries: taken where they can be, in their layout, equal to ours.

On a CPU stand-ins take their place, written after their documented layout; what is installed is
compared as it is.
"""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap

import library_stand_ins
from outlast.errors import SpecError
from outlast.kernels import libraries
from outlast.kernels.entmax import entmax, entmax15
from outlast.mixers.attention import Attention
from outlast.registry import mixers

WIDTH, ROWS, TOKENS = 32, 2, 256
CASES = {
    "forget": "attention(forget, heads=2)",
    "entmax": "attention(heads=2, weights=entmax)",
}
every = pytest.mark.parametrize("spec", CASES.values(), ids=CASES.keys())
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    """Stand-ins where the libraries would be; the list says which were asked."""
    monkeypatch.setattr(libraries, "obstacle", lambda *_: None)
    return library_stand_ins.install(monkeypatch)


def make(spec: str, seed: int = 0) -> Attention:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return mixers.build(spec, width=WIDTH).double()


def draw(tokens: int = TOKENS, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, tokens, WIDTH, dtype=torch.float64, generator=generator)


@every
def test_library_matches_the_blocks_with_gradients(spec, calls, monkeypatch):
    layer, x = make(spec), draw().requires_grad_()
    inputs, above = [x, *layer.parameters()], draw(seed=1)
    fast = layer(x)[0]
    assert len(calls) == 1
    actual = torch.autograd.grad((fast * above).sum(), inputs)
    calls.clear()  # the backward pass ran it once more
    monkeypatch.setattr(libraries, "obstacle", lambda *_: "no")
    slow = layer(x)[0]
    assert not calls
    wanted = torch.autograd.grad((slow * above).sum(), inputs)
    # the gates go over in float32
    for got, want in zip([fast, *actual], [slow, *wanted], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@every
def test_stacked_seeds_are_one_call(spec, calls):
    layer, x = make(spec), torch.stack([draw(seed=s) for s in range(3)])
    together = vmap(lambda x: layer(x)[0])(x)
    assert len(calls) == 1
    assert torch.autograd.grad(together.sum(), layer.out.weight)[0].isfinite().all()
    for seed in range(3):
        torch.testing.assert_close(together[seed], layer(x[seed])[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "spec",
    [
        "attention(forget, heads=2, weights=sink)",
        "attention(forget, heads=2, weights=entmax)",
        "attention(alibi, heads=2, weights=entmax)",
        "attention(heads=2, weights=entmax(alpha=1.7))",
        "attention(heads=2, weights=entmax(alpha=learned))",
        "attention(tra, heads=2)",
        "attention(rope, heads=2, weights=asentmax)",
    ],
)
def test_schemes_it_does_not_compute_are_left_to_the_blocks(spec, calls):
    make(spec)(draw())
    assert calls == []


def test_sharp_scores_go_to_adasplash_only_without_gradients(calls, monkeypatch):
    layer, x = make("attention(rope, heads=2, weights=asentmax)"), draw()
    with torch.no_grad():
        fast = layer(x)[0]
        assert calls == ["adasplash"]
        monkeypatch.setattr(libraries, "obstacle", lambda *_: "no")
        torch.testing.assert_close(fast, layer(x)[0], rtol=1e-9, atol=1e-9)


def test_adasplash_is_taken_for_powers_of_two_alone(calls):
    layer = make(CASES["entmax"])
    for tokens in (64, 128, 255, 257, 300):
        layer(draw(tokens))
    assert calls == []
    layer(draw(512))
    assert calls == ["adasplash"]


def test_obstacle_says_why_a_library_is_not_taken(monkeypatch):
    q = torch.zeros(1, 1, 64, 16, dtype=torch.bfloat16)
    monkeypatch.setattr(libraries, "installed", lambda _: False)
    assert "fla-core is not installed" in str(libraries.obstacle("fla", q, q, q))
    monkeypatch.setattr(libraries, "installed", lambda _: True)
    assert "gradient" in str(libraries.obstacle("fla", q, q, q))
    with torch.no_grad():
        assert "on a GPU" in str(libraries.obstacle("fla", q, q, q))
    monkeypatch.setenv(libraries.SWITCH, "on")
    assert "on a GPU" in str(libraries.obstacle("fla", q, q, q))
    monkeypatch.setenv(libraries.SWITCH, "off")
    assert "=off" in str(libraries.obstacle("fla", q, q, q))
    monkeypatch.setenv(libraries.SWITCH, "yes")
    with pytest.raises(SpecError, match="OUTLAST_LIBRARIES=yes: expected auto"):
        libraries.obstacle("fla", q, q, q)


def test_switch_on_logs_once_why_a_library_is_not_taken(monkeypatch, caplog):
    q = torch.zeros(1, 1, 256, 16, dtype=torch.bfloat16)
    libraries._say.cache_clear()
    monkeypatch.setattr(libraries, "installed", lambda _: False)
    for switch in ("auto", "off"):
        monkeypatch.setenv(libraries.SWITCH, switch)
        assert libraries.forgetting(q, q, q) is None
    assert not caplog.records
    monkeypatch.setenv(libraries.SWITCH, "on")
    for _ in range(2):
        assert libraries.forgetting(q, q, q) is None
        assert libraries.entmax15(q, q, q) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"OUTLAST_LIBRARIES=on, but {name} is not taken: {name} is not installed "
        "(pip install -e '.[fast]' in a clone, or pip install 'outlast[fast]')"
        for name in ("fla-core", "adasplash")
    ]
    caplog.clear()
    monkeypatch.setattr(libraries, "obstacle", lambda *_: None)
    wide = q.repeat(1, 1, 1, 20)
    assert libraries.forgetting(wide, wide, wide) is None
    assert libraries.entmax15(wide, wide, wide) is None
    assert libraries.entmax15(q[:, :, :255], q, q) is None
    said = caplog.text
    for why in ("a head is wider than 256", "none of 16, 32", "no power of 2 from 256 on"):
        assert why in said
    assert libraries.entmax15(q, q, q) is libraries.entmax_attend


def test_forget_scheme_matches_flas_plain_version():
    naive = pytest.importorskip("fla.ops.forgetting_attn").naive_forgetting_attn
    q, k, v = (draw(seed=s).unflatten(-1, (2, 16)) for s in range(3))
    gates = torch.nn.functional.logsigmoid(draw(seed=3)[..., :2])
    torch.testing.assert_close(
        library_stand_ins.fox(q, k, v, gates.float()),
        naive(q, k, v, gates).double(),
        rtol=1e-3,
        atol=1e-4,
    )


def test_entmax_matches_the_entmax_package():
    package = pytest.importorskip("entmax")
    scores = 3 * draw()
    torch.testing.assert_close(entmax15(scores), package.entmax15(scores, -1))
    ours = entmax(scores, scores.new_full((), 1.3))
    torch.testing.assert_close(ours, package.entmax_bisect(scores, 1.3, -1), rtol=1e-6, atol=1e-8)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("tokens", [64, 256, 1024])
@every
def test_on_a_gpu_the_library_matches_the_reference_with_gradients(spec, tokens, monkeypatch):
    pytest.importorskip("fla.ops.forgetting_attn" if "forget" in spec else "adasplash")
    layer, x = make(spec).float().cuda(), draw(tokens).float().cuda().requires_grad_()
    inputs, above = [x, *layer.parameters()], draw(tokens, seed=1).float().cuda()
    results = {}
    for switch in ("on", "off"):
        monkeypatch.setenv(libraries.SWITCH, switch)
        with torch.autocast("cuda", torch.bfloat16):
            y = layer(x)[0]
        results[switch] = [y, *torch.autograd.grad((y * above).sum(), inputs)]
    exact = make(spec).cuda()
    arguments = x.detach().double().requires_grad_()
    truth = exact(arguments)[0]
    truths = [truth, *torch.autograd.grad((truth * above).sum(), [arguments, *exact.parameters()])]
    for fast, slow, wanted in zip(results["on"], results["off"], truths, strict=True):
        scale = wanted.norm()
        error = (fast.double() - wanted).norm() / scale
        assert error < 3 * (slow.double() - wanted).norm() / scale + 1e-2
