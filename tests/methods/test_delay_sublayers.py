"""Which sublayers a delay holds, and what a skipped sublayer returns."""

import copy

import pytest
import torch
from delayed_models import WIDTH, Attn, Layer, X, first, kinds, model
from torch import Tensor, nn

import outlast
from outlast.errors import SpecError

pytestmark = pytest.mark.filterwarnings("error")


# ---- what is not attention ---------------------------------------------------------------------


class AttentionDecoderLayer(Layer):
    """A whole layer whose class is named after attention."""


class AttentionWithBias(Attn):
    """Attention that has an MLP inside."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attention = nn.Sequential()
        self.self_attention.bias_mlp = nn.Linear(1, 1)


def parts() -> nn.Module:
    net = nn.Module()
    net.attn, net.mixer = Attn(), AttentionWithBias()
    net.mlp, net.post_attention_layernorm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
    net.layer, net.decoder = Layer(Attn), AttentionDecoderLayer(Attn)
    net.encoder = nn.TransformerEncoderLayer(WIDTH, 2, 16)
    net.attention_mlp = nn.Linear(WIDTH, WIDTH)
    return net


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("m*", r"mlp \(Linear\)"),
        ("mlp", r"mlp \(Linear\)"),
        ("*attention*", r"post_attention_layernorm \(LayerNorm\)"),
        ("layer", r"layer \(Layer\)"),
        ("decoder", r"decoder \(AttentionDecoderLayer\)"),
        ("encoder", r"encoder \(TransformerEncoderLayer\)"),
        ("attention_mlp", r"attention_mlp \(Linear\)"),
        (["attn", "mlp"], r"mlp \(Linear\)"),
    ],
    ids=str,
)
def test_pattern_that_matches_more_than_attention_is_refused(pattern, named):
    net = parts()
    with pytest.raises(SpecError, match=f"matches {named}, which does not look like attention"):
        outlast.delay(net, pattern)
    assert not any("forward" in vars(m) for m in net.modules())


@pytest.mark.parametrize(
    ("where", "modules"),
    [
        (["attn", "mixer", "*.self_attn"], ["attn", "mixer", "encoder.self_attn"]),
        (lambda name, module: name == "mlp", ["mlp"]),
        (nn.TransformerEncoderLayer, ["encoder"]),
        (["attn", nn.LayerNorm, nn.TransformerEncoderLayer], None),
    ],
    ids=["attention", "function", "type", "list"],
)
def test_attention_by_name_and_anything_by_type_or_function(where, modules):
    held = outlast.delay(parts(), where).modules
    assert held == (modules or ["attn", "post_attention_layernorm", "encoder"])


def test_handle_shows_what_it_holds():
    delayed = outlast.delay(model(), "*.attn", switch=1)
    held = "[0.attn (Attn), 1.attn (Attn)]"
    assert delayed.modules == ["0.attn", "1.attn"]
    assert repr(delayed) == f"Delay(mode=skip, switch=1, held back, step 0: {held})"
    delayed.step(1.0)
    assert repr(delayed) == f"Delay(mode=skip, switch=1, switched at step 1: {held})"
    delayed.remove()
    assert delayed.modules == []
    assert repr(delayed) == "Delay(mode=skip, switch=1, removed: [])"


# ---- the output of a skipped sublayer ----------------------------------------------------------


class Flexible(Attn):
    """Attention with keyword arguments, a cache and an output of another width."""

    def __init__(self, out: int = WIDTH) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, out)

    def forward(self, mask=None, memory=None, x=None, cache=None, weights=False):
        out = self.out(super().forward(x))
        if cache is not None:
            cache.append(x)
        return (out, torch.ones(1) if weights else None) if weights is not None else out


def held_and_free(out: int = WIDTH) -> tuple[nn.Module, nn.Module]:
    """A sublayer that is skipped, and the same one that is not."""
    net = nn.Sequential(Flexible(out).double())
    free = copy.deepcopy(net[0])
    outlast.delay(net, Flexible)
    return net[0], free


@pytest.mark.parametrize("weights", [None, False, True])
@pytest.mark.parametrize("out", [WIDTH, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_skipped_output_is_zeros_of_the_real_shape_and_dtype(weights, out, dtype):
    held, free = (sublayer.to(dtype) for sublayer in held_and_free(out))
    for length, autocast in ((5, False), (5, True), (7, True), (5, False)):
        arguments = {
            "memory": torch.ones(2, 5, WIDTH),  # at first it has the shape of the output
            "mask": torch.ones(length, length, dtype=torch.bool),
            "x": torch.ones(2, length, WIDTH, dtype=dtype),
            "weights": weights,
        }
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            one, two = held(**arguments), free(**arguments)
        assert type(one) is type(two)
        assert first(one).shape == first(two).shape
        assert first(one).dtype == first(two).dtype
        assert (first(one).dtype == torch.bfloat16) == (autocast and dtype == torch.float32)
        assert not first(one).any()
        if weights:
            assert torch.equal(one[1], two[1])


@pytest.mark.parametrize(
    ("arguments", "out", "runs"),
    [
        ({}, WIDTH, 2),
        ({"weights": None}, WIDTH, 2),
        ({"weights": True}, WIDTH, 6),
        ({"cache": list}, WIDTH, 6),
        ({}, 3, 6),
    ],
    ids=["tuple", "tensor", "with weights", "with a cache", "other width"],
)
def test_skipped_sublayer_runs_once_for_each_kind_of_call(arguments, out, runs):
    held, _ = held_and_free(out)
    for length in (5, 7, 5, 7, 5, 7):
        x = torch.ones(2, length, WIDTH, dtype=torch.float64)
        held(x=x, **{k: v() if v is list else v for k, v in arguments.items()})
    assert held.calls == runs


def test_skipped_sublayer_fills_its_cache_at_each_call():
    held, _ = held_and_free()
    cache: list[Tensor] = []
    for _ in range(3):
        held(x=X, cache=cache)
    assert len(cache) == 3


@kinds
def test_skipped_sublayer_draws_no_random_numbers(attention):
    class Dropout(attention):
        def forward(self, x):
            return super().forward(nn.functional.dropout(x, 0.5, self.training))

    net = model(Dropout)
    outlast.delay(net, Dropout)
    before = torch.get_rng_state()
    for _ in range(2):
        net(X)
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("mode", ["skip", "freeze", "ramp", "detach"])
def test_compiled_model_follows_the_delay_in_one_graph(mode):
    net = model()
    delayed = outlast.delay(net, "*.attn", mode=mode, switch=1, ramp=2)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    for _ in range(3):
        gradients = []
        for call in (net, compiled):
            net.zero_grad()
            out = call(X)
            out.sum().backward()
            gradients.append([p.grad for p in net.parameters()])
        torch.testing.assert_close(out, net(X))
        for one, two in zip(*gradients, strict=True):
            assert (one is None) == (two is None)
            torch.testing.assert_close(one, two)
        delayed.step(1.0)
