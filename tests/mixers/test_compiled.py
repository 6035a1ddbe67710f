"""The compiled path of attention is the path it stands for, by whatever backend."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.func import functional_call, vmap

from outlast.errors import OutlastError
from outlast.mixers.attention import Attention, compiled
from outlast.mixers.chance import Told
from outlast.registry import mixers

WIDTH, TOKENS = 8, 9
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


def make(spec: str, seed: int = 0) -> Attention:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = mixers.build(spec, width=WIDTH)
        with torch.no_grad():  # what starts at 0 hides what it does
            for parameter in layer.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return layer.double()


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, TOKENS, WIDTH, dtype=torch.float64, generator=generator)


def seen(layer: Attention, weights: dict[str, torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    """What seeds get, and their gradients."""
    y = vmap(lambda own, x: functional_call(layer, own, (x,))[0])(weights, x)
    above = draw(2, 3, seed=1)
    return [y, *torch.autograd.grad((y * above).sum(), [x, *weights.values()])]


@every
def test_seeds_through_a_compiled_program_are_what_they_were(spec, monkeypatch):
    layers = [make(spec, seed) for seed in range(2)]
    names = [name for name, _ in layers[0].named_parameters()]
    weights = {
        name: torch.stack([layer.get_parameter(name).detach() for layer in layers]).requires_grad_()
        for name in names
    }
    x = draw(2, 3).requires_grad_()
    calls = []
    forward = compiled._BySeed.forward
    monkeypatch.setattr(
        compiled._BySeed,
        "forward",
        staticmethod(lambda *given: (calls.append(1), forward(*given))[1]),
    )
    found = seen(layers[0], weights, x)
    assert len(calls) == 2, "once for each seed"
    monkeypatch.setenv(compiled.SWITCH, "off")
    wanted = seen(layers[0], weights, x)
    assert len(calls) == 2
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def test_layers_of_one_spec_and_shape_share_a_program():
    x = draw(3)
    for seed in range(3):
        make(SPECS[0], seed)(x)
    make(SPECS[1])(x)
    make(SPECS[1])(x[:, :4])
    assert compiled._program.cache_info().misses == 3


def test_however_many_there_are_each_is_compiled(monkeypatch):
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
def test_a_large_batch_goes_through_it_in_parts(spec, monkeypatch):
    layer, x = make(spec), draw(6).requires_grad_()
    inputs, above = [x, *layer.parameters()], draw(6, seed=1)

    def found() -> list[torch.Tensor]:
        y = layer(x)[0]
        return [y, *torch.autograd.grad((y * above).sum(), inputs)]

    sizes = []
    attend = compiled._attend
    monkeypatch.setattr(
        compiled, "_attend", lambda look, *t: (sizes.append(t[3].shape[0]), attend(look, *t))[1]
    )
    a_row = layer.heads * layer.scheme.heavy * TOKENS**2
    monkeypatch.setattr(compiled, "MOST", 4 * a_row)  # the next divisor of 6 is 3
    in_parts = found()
    assert sizes == [3, 3]
    monkeypatch.setenv(compiled.SWITCH, "off")
    for one, two in zip(in_parts, found(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def test_dropout_is_what_it_was(monkeypatch):
    layer = mixers.build("attention(tra(gate=key), heads=2, dropout=0.3)", width=WIDTH).double()
    layer.told = Told(key=torch.tensor(7))
    x = draw(4)
    calls = []
    attend = compiled._attend
    monkeypatch.setattr(compiled, "_attend", lambda *t: (calls.append(1), attend(*t))[1])
    here = layer(x)[0]
    assert calls
    monkeypatch.setattr(compiled, "MOST", 1)  # what is dropped goes by the place in the whole
    there = layer(x)[0]
    assert len(calls) == 1
    torch.testing.assert_close(here, there)


def test_it_is_for_sizes_that_pay(monkeypatch):
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
def test_on_a_gpu_inductor_gives_the_same_twice_and_what_eager_gives(spec, monkeypatch):
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
