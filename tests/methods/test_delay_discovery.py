"""Attention found without a pattern, and the gate where it scales what attention adds."""

import copy
import logging
from types import SimpleNamespace

import pytest
import torch
from delayed_models import WIDTH, Attn, X
from torch import Tensor, nn

import outlast
from outlast.errors import SpecError
from outlast.models import build_model

pytestmark = pytest.mark.filterwarnings("error")


class CausalAttention(Attn):
    """Attention with the attributes that those of transformers have."""

    is_causal, num_key_value_groups = True, 1


class SelfAttn(nn.Module):
    """A recurrence under the name of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x).cumsum(1)


class Block(nn.Module):
    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.self_attn, self.mlp = mixer, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(x)
        return x + self.mlp(x)


class Hybrid(nn.Module):
    """Layers as transformers has them, with a config that says what each is."""

    def __init__(self, *mixers: nn.Module, kinds: list[str] | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(mixer) for mixer in mixers)
        self.config = SimpleNamespace(layer_types=kinds)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


HYBRID = ["linear_attention", "full_attention", "linear_attention", "sliding_attention"]


def hybrid(kinds: list[str] | None = None) -> Hybrid:
    mixers = [SelfAttn(), CausalAttention(), SelfAttn(), CausalAttention()]
    return Hybrid(*mixers, kinds=HYBRID if kinds is None else kinds).double()


# ---- what is found -----------------------------------------------------------------------------


def test_attention_is_found_by_what_it_is_and_not_by_its_name(caplog):
    caplog.set_level(logging.INFO, "outlast")
    net = nn.Sequential(hybrid())
    delayed = outlast.delay(net, switch=3)
    assert delayed.modules == ["0.layers.1.self_attn", "0.layers.3.self_attn"] == delayed.gated
    assert "0.layers.1.self_attn (CausalAttention)" in repr(delayed)
    assert "2 attention modules (0.layers.1.self_attn, 0.layers.3.self_attn)" in caplog.text
    assert "layer 0 (linear_attention), layer 2 (linear_attention)" in caplog.text


def test_module_shared_by_layers_counts_for_each_of_them():
    shared = CausalAttention()
    net = Hybrid(SelfAttn(), shared, SelfAttn(), shared, kinds=HYBRID)
    assert outlast.delay(net).modules == ["layers.1.self_attn"]


def test_attention_of_torch_and_of_outlast_is_found():
    class Torch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.attention = nn.GRU(WIDTH, WIDTH), nn.MultiheadAttention(WIDTH, 2)

    assert outlast.delay(Torch()).modules == ["attention"]
    own = build_model("2 x (lstm > attention(rope, heads=2) > mlp) @ 8", 8, 8, seed=0)
    tokens = torch.ones(2, 6, dtype=torch.long)
    without = copy.deepcopy(own)
    for sublayer in without.sublayers():
        sublayer.set_gate(float(sublayer.pathway != "attention"))
    delayed = outlast.delay(own)
    assert [own.get_submodule(name).pathway for name in delayed.modules] == ["attention"] * 2
    assert torch.equal(own(tokens)[0], without(tokens)[0])


@pytest.mark.parametrize("kinds", [["full_attention"] * 4, ["conv"] * 4, ["recurrent"] * 4])
def test_config_with_another_number_of_attention_layers_is_refused(kinds):
    net = hybrid(kinds)
    with pytest.raises(SpecError, match=r"its config has attention in .*, but 2 attention modules"):
        outlast.delay(net)
    assert not any("forward" in vars(module) for module in net.modules())
    assert outlast.delay(net, CausalAttention).modules  # what is chosen is not checked


def test_model_without_attention_is_refused():
    with pytest.raises(SpecError, match=r"Hybrid: no attention found.*where="):
        outlast.delay(Hybrid(SelfAttn(), kinds=["recurrent"]))


@pytest.mark.parametrize("kind", ["full_attention", "hybrid"])
def test_model_without_recurrence_is_refused_unless_told(kind):
    net = Hybrid(CausalAttention(), kinds=[kind])
    with pytest.raises(SpecError, match=r"no recurrence found.*recurrence=False"):
        outlast.delay(net, mode="ramp")
    assert outlast.delay(net, mode="ramp", recurrence=False).modules == ["layers.0.self_attn"]
    for mode in ("freeze", "detach"):  # there attention runs in phase 1 too
        net = Hybrid(CausalAttention(), kinds=[kind])
        assert outlast.delay(net, mode=mode).modules


def test_hybrid_layer_with_a_convolution_beside_attention_has_a_recurrence():
    net = Hybrid(CausalAttention(), kinds=["hybrid"])
    net.layers[0].mamba = nn.Conv1d(1, 1, 1)
    assert outlast.delay(net).modules == ["layers.0.self_attn"]


def test_recurrence_that_is_no_bool_is_refused():
    with pytest.raises(SpecError, match="recurrence"):
        outlast.delay(hybrid(), recurrence="no")


# ---- where the gate sits -----------------------------------------------------------------------


class PostNorm(Block):
    """A norm (with a bias) between attention and the sum."""

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__(mixer)
        self.post = nn.LayerNorm(WIDTH)
        nn.init.ones_(self.post.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.5 * self.post(self.self_attn(x))


class Scaled(Block):
    """Factors, a view, a dropout and a bias change nothing that a gate could not scale."""

    def forward(self, x: Tensor) -> Tensor:
        out = nn.functional.dropout(self.self_attn(x), 0.0, training=True).flatten(1)
        return (2 * out.view_as(x) / x.abs().mean() + self.mlp.bias) + x


class FunctionalNorm(Block):
    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.layer_norm(self.self_attn(x), (WIDTH,))


class SharedNorm(PostNorm):
    """The norm after attention normalises something else too."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.post(x))


def one_layer(kind: type[Block]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(kind(CausalAttention())).double()


@pytest.mark.parametrize(
    ("kind", "gated"),
    [(Block, "0.self_attn"), (Scaled, "0.self_attn"), (PostNorm, "0.post")],
)
@pytest.mark.parametrize("example", [X, (X,), {"input": X}], ids=["tensor", "tuple", "dict"])
def test_gate_scales_what_attention_adds(kind, gated, example):
    net = one_layer(kind)
    whole = net(X)
    delayed = outlast.delay(net, mode="ramp", switch=1, ramp=4, recurrence=False, example=example)
    assert delayed.gated == [gated]
    assert delayed.modules == ["0.self_attn"]
    nothing = net(X)
    if kind is PostNorm:  # zeros through the norm would still add its bias
        assert torch.equal(nothing, X)
    for share in (0.25, 0.5, 0.75, 1.0):
        delayed.step(1.0)
        if kind is not Block:  # an MLP follows there
            torch.testing.assert_close(net(X) - nothing, share * (whole - nothing))
    assert torch.equal(net(X), whole)


@pytest.mark.parametrize(
    ("kind", "obstacle"),
    [
        (FunctionalNorm, r"aten::native_layer_norm comes between the output of 0\.self_attn"),
        (SharedNorm, r"0\.post also handles other activations"),
    ],
)
def test_ramp_is_refused_where_no_gate_could_scale(kind, obstacle):
    net = one_layer(kind)
    with pytest.raises(SpecError, match=f"mode=ramp: cannot find where .*{obstacle}"):
        outlast.delay(net, mode="ramp", recurrence=False, example=X)
    delayed = outlast.delay(net, mode="skip", recurrence=False, example=X)
    assert delayed.gated == ["0.self_attn"]


def test_ramp_is_refused_if_the_example_does_not_fit():
    with pytest.raises(SpecError, match="a small forward pass failed: RuntimeError"):
        outlast.delay(one_layer(Block), mode="ramp", recurrence=False, example=X[..., :3])


@pytest.mark.parametrize("mode", ["skip", "ramp"])
def test_norm_after_attention_is_not_moved_by_weight_decay_in_phase_one(mode):
    net = one_layer(PostNorm)
    net.append(nn.Linear(WIDTH, 1).double())
    before = copy.deepcopy(net.state_dict())
    delayed = outlast.delay(net, mode=mode, switch=3, recurrence=False, example=X)
    optimiser = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(3):
        loss = net(X).pow(2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        delayed.step(loss)
    moved = {n for n, p in net.state_dict().items() if not torch.equal(p, before[n])}
    assert moved == {"1.weight", "1.bias"}
    assert {id(p) for p in optimiser.state} == {id(p) for p in net[1].parameters()}


def test_small_pass_leaves_no_trace_in_the_model_or_the_random_state():
    net = one_layer(PostNorm)
    net[0].post.register_forward_pre_hook(lambda module, args: torch.rand(1) and None)
    before, hooks = torch.get_rng_state(), len(net[0].post._forward_pre_hooks)
    outlast.delay(net, mode="ramp", recurrence=False, example=X).remove()
    assert torch.equal(torch.get_rng_state(), before)
    assert len(net[0].post._forward_pre_hooks) == hooks
    assert not net[0].post._forward_hooks
    assert all(module.training for module in net.modules())
    assert not any("forward" in vars(module) for module in net.modules())


def test_copy_of_a_model_with_a_tail_can_be_delayed_on_its_own():
    net = one_layer(PostNorm)
    outer = outlast.delay(net, mode="ramp", switch=1, ramp=1, recurrence=False, example=X)
    twin = copy.deepcopy(net)
    inner = outlast.delay(twin, mode="ramp", switch=2, ramp=1, recurrence=False, example=X)
    outer.step(1.0)
    assert not torch.equal(net(X), X)
    assert torch.equal(twin(X), X)
    inner.remove()
    assert torch.equal(twin(X), net(X))
