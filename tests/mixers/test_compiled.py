"""The compiled path of attention is the path it stands for, by whatever backend."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.func import functional_call, vmap

from outlast.errors import OutlastError
from outlast.mixers.attention import Attention, compiled
from outlast.mixers.base import Context
from small_attention import WIDTH, make, randn, stacked_weights

TOKENS = 9
SPECS = [
    "attention(tra(distance=plain), heads=2)",
    "attention(tra(gate=key), heads=2)",
    "attention(tra(threshold=learned), heads=2)",
    "attention(stick_breaking, heads=2)",
    "attention(cope(positions=3), heads=2)",
    "attention(dape, heads=2)",
    "attention(forget, heads=2, weights=sink)",
    "attention(alibi, heads=2, weights=doubly_normalised)",
    "attention(rope, heads=2, weights=entmax(alpha=learned))",
]
every = pytest.mark.parametrize("spec", SPECS)


@pytest.fixture(autouse=True)
def traced(monkeypatch):
    """Compiled by a backend that needs no compiler, whatever the size."""
    torch._dynamo.reset()
    compiled._program.cache_clear()
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    monkeypatch.setattr(compiled, "FEWEST", 1)
    monkeypatch.setattr(compiled, "_has_compiler", lambda q: True)
    yield
    compiled._program.cache_clear()


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return randn(*shape, TOKENS, WIDTH, seed=seed)


def seen(layer: Attention, weights: dict[str, torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    """What seeds get, and their gradients."""
    y = vmap(lambda of_seed, x: functional_call(layer, of_seed, (x,))[0])(weights, x)
    above = draw(2, 3, seed=1)
    return [y, *torch.autograd.grad((y * above).sum(), [x, *weights.values()])]


@every
def test_compiled_program_runs_once_per_seed_and_equals_eager(spec, monkeypatch):
    layers = [make(spec, seed) for seed in range(2)]
    weights = stacked_weights(layers)
    x = draw(2, 3).requires_grad_()
    calls = []
    forward = compiled._BySeed.forward
    monkeypatch.setattr(
        compiled._BySeed,
        "forward",
        staticmethod(lambda *inputs: (calls.append(1), forward(*inputs))[1]),
    )
    actual = seen(layers[0], weights, x)
    assert len(calls) == 2, "once for each seed"
    monkeypatch.setenv(compiled.SWITCH, "off")
    wanted = seen(layers[0], weights, x)
    assert len(calls) == 2
    for one, two in zip(actual, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def test_layers_of_one_spec_and_shape_share_a_program():
    x = draw(3)
    for seed in range(3):
        make(SPECS[0], seed)(x)
    make(SPECS[1])(x)
    make(SPECS[1])(x[:, :4])
    assert compiled._program.cache_info().misses == 3


def test_every_program_is_compiled_past_the_recompile_limit(monkeypatch):
    """Torch gives up on what was compiled so many times, and would run the next as it is."""
    counter, most = CompileCounter(), 3
    monkeypatch.setattr(compiled, "BACKEND", counter)
    with torch._dynamo.config.patch(recompile_limit=most):
        for spec in (SPECS[0], SPECS[3]):
            layer = make(spec)
            for tokens in range(2, 2 + most):
                layer(draw(2)[:, :tokens])
    assert counter.frame_count == 2 * most


@pytest.mark.parametrize("spec", [SPECS[0], SPECS[4], SPECS[7]])
def test_large_batch_is_compiled_in_equal_parts(spec, monkeypatch):
    layer, x = make(spec), draw(6).requires_grad_()
    inputs, above = [x, *layer.parameters()], draw(6, seed=1)

    def actual() -> list[torch.Tensor]:
        y = layer(x)[0]
        return [y, *torch.autograd.grad((y * above).sum(), inputs)]

    sizes = []
    attend = compiled._attend
    monkeypatch.setattr(
        compiled, "_attend", lambda look, *t: (sizes.append(t[0].q.shape[0]), attend(look, *t))[1]
    )
    a_row = layer.heads * layer.scheme.scores_memory * TOKENS**2
    monkeypatch.setattr(compiled, "MOST", 4 * a_row)  # the next divisor of 6 is 3
    in_parts = actual()
    assert sizes == [3, 3]
    monkeypatch.setenv(compiled.SWITCH, "off")
    for one, two in zip(in_parts, actual(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def test_compiled_dropout_equals_eager(monkeypatch):
    layer = make("attention(tra(gate=key), heads=2, dropout=0.3)")
    layer.context = Context(key=torch.tensor(7))
    x = draw(4)
    calls = []
    attend = compiled._attend
    monkeypatch.setattr(compiled, "_attend", lambda *t: (calls.append(1), attend(*t))[1])
    by_program = layer(x)[0]
    assert calls
    monkeypatch.setattr(compiled, "MOST", 1)  # too large as a whole, and dropout allows no parts
    plain = layer(x)[0]
    assert len(calls) == 1
    torch.testing.assert_close(by_program, plain)


def test_compiling_starts_and_ends_at_its_sizes(monkeypatch):
    q = draw(3)
    assert compiled.pays(q, 3 * compiled.MOST)
    assert not compiled.pays(q, 3 * compiled.MOST + 1)
    assert not compiled.pays(q, compiled.MOST + 1, whole=True)
    monkeypatch.setattr(compiled, "FEWEST", 100)
    assert compiled.pays(q, 100)
    assert not compiled.pays(q, 99)
    with torch.no_grad():
        assert not compiled.pays(q, 100)
        assert compiled.pays(q, compiled.FEWEST_TO_TEST)
    monkeypatch.setenv(compiled.SWITCH, "off")
    assert not compiled.pays(q, 100)
    monkeypatch.setenv(compiled.SWITCH, "maybe")
    with pytest.raises(OutlastError, match=r"OUTLAST_COMPILE=maybe: expected auto \| off"):
        compiled.pays(q, 100)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every
def test_inductor_on_a_gpu_is_deterministic_and_equals_eager(spec, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(compiled, "FEWEST", 1)
    results = []
    for switch in ("auto", "auto", "off"):
        monkeypatch.setenv(compiled.SWITCH, switch)
        layer, x = make(spec).float().cuda(), draw(3).float().cuda().requires_grad_()
        y = layer(x)[0]
        grads = torch.autograd.grad((y * draw(3, seed=1).cuda()).sum(), [x, *layer.parameters()])
        results.append([y, *grads])
        compiled._program.cache_clear()
    for first, again, wanted in zip(*results, strict=True):
        if "cope" not in spec:  # whose gradient is added up in no fixed order
            assert torch.equal(first, again)
        torch.testing.assert_close(first, wanted, rtol=1e-4, atol=1e-5)
