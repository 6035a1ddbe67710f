"""Delayed attention in a plain training loop, on modules that know nothing of Outlast."""

import copy
import json
import pickle
import threading

import pytest
import torch
from delayed_models import (
    WIDTH,
    Attn,
    Layer,
    NamedAttn,
    Output,
    TupleAttn,
    X,
    attention_weights,
    first,
    kinds,
    model,
    moved,
    train,
)
from torch import Tensor, nn

import outlast
from outlast.errors import SpecError

pytestmark = pytest.mark.filterwarnings("error")


# ---- what is held back -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "held"),
    [
        ("*.attn", ["0", "1"]),
        ("0.attn", ["0"]),
        (Attn, ["0", "1"]),
        (lambda name, module: name.startswith("1.") and isinstance(module, Attn), ["1"]),
        (["0.attn", "1.attn"], ["0", "1"]),
        (["1.attn", TupleAttn], ["1"]),
        ("*.attn*", ["0", "1"]),
    ],
    ids=["glob", "name", "type", "function", "list", "list of both", "with what is inside"],
)
def test_sublayers_are_chosen_by_name_type_or_function(where, held):
    net = model()
    outlast.delay(net, where)
    closed = [n for n, layer in net.named_children() if n != "2" and "forward" in vars(layer.attn)]
    assert closed == held
    assert not any("forward" in vars(m) for n, m in net.named_modules() if n.endswith("qkv"))


@pytest.mark.parametrize("where", ["*.attention", nn.LSTM, lambda name, module: False, []])
def test_no_matching_module_is_refused_with_the_names_of_modules(where):
    with pytest.raises(
        SpecError, match=r"no module of the model matches; its modules are: 0, 0\.attn"
    ):
        outlast.delay(model(), where)


@pytest.mark.parametrize("where", ["self_attn", ["missing", "self_attn"]])
def test_pattern_without_the_outer_names_is_refused_with_the_one_that_was_meant(where):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    with pytest.raises(
        SpecError, match=r"whole name; did you mean '\*\.self_attn'\?\); its modules"
    ):
        outlast.delay(encoder, where)


# ---- the modes ---------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("mode", ["skip", "ramp"])
def test_skip_adds_nothing_until_the_switch(attention, mode):
    net = model(attention)
    bare = copy.deepcopy(net)
    for layer in (bare[0], bare[1]):
        layer.attn.forward = torch.zeros_like
    whole = net(X)
    delayed = outlast.delay(net, "*.attn", switch=1, mode=mode, ramp=2)
    for _ in range(2):  # the first call finds out what the sublayer returns
        assert torch.equal(net(X), bare(X))
    assert not torch.allclose(whole, bare(X))
    delayed.step(1.0)
    if mode == "skip":
        assert torch.equal(net(X), whole)


@kinds
@pytest.mark.parametrize("mode", ["skip", "freeze", "ramp"])
def test_adamw_does_not_move_attention_before_the_switch(attention, mode):
    net = model(attention)
    before = copy.deepcopy(net)
    delayed = outlast.delay(net, "*.attn", switch=4, mode=mode)
    assert train(net, delayed, 4) == [False, False, False, True]
    assert moved(net, before) == (False, True)
    between = copy.deepcopy(net)
    assert train(net, delayed, 2) == [False, False]
    assert moved(net, between) == (True, True)


def test_closed_sublayer_runs_only_once_to_learn_its_shape():
    net = model()
    outlast.delay(net, "*.attn")
    for _ in range(5):
        net(X)
    assert net[0].attn.calls == net[1].attn.calls == 1, "once, to learn what it returns"


@kinds
def test_closed_sublayer_hides_nan_weights(attention):
    net = model(attention)
    with torch.no_grad():
        net[0].attn.qkv.weight.fill_(torch.nan)
    assert net(X).isnan().any()
    outlast.delay(net, "*.attn")
    assert net(X).isfinite().all()


def test_closed_sublayer_keeps_the_other_outputs():
    net = model(NamedAttn)
    outlast.delay(net, "*.attn")
    output = net[0].attn(X)
    assert isinstance(output, Output)
    assert output.cache == "cache"
    assert not output.hidden.any()


def test_unknown_output_of_a_held_sublayer_is_refused():
    net = model()
    net[0].attn.forward = lambda x: {"hidden": x}
    outlast.delay(net, "0.attn")
    with pytest.raises(SpecError, match="must return a tensor or a tuple that begins with one"):
        net(X)


def test_config_of_ones_own_is_neither_copied_nor_changed():
    net = model()
    net.config = config = {"lock": threading.Lock()}  # no copy can be made of it
    outlast.delay(net, "*.attn")
    assert net.config is config
    assert config.keys() == {"lock"}


def test_freeze_changes_no_output():
    net = model()
    whole = net(X)
    outlast.delay(net, "*.attn", mode="freeze")
    assert torch.equal(net(X), whole)


@kinds
def test_ramp_scales_the_output_step_by_step(attention):
    net = model(attention)
    whole = first(net[0].attn(X))
    delayed = outlast.delay(net, "*.attn", mode="ramp", switch=1, ramp=4)
    shares = []
    for _ in range(5):
        delayed.step(1.0)
        shares.append(round((first(net[0].attn(X)) / whole).mean().item(), 6))
    assert shares == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_detach_stops_the_gradient_upstream_only():
    layer = Layer(Attn).double()
    outlast.delay(nn.Sequential(layer), "*.attn", mode="detach", switch=1)
    x = X.clone().requires_grad_()
    layer.attn(x).sum().backward()
    assert x.grad is None
    assert layer.attn.qkv.weight.grad.any()


def test_detach_covers_keyword_arguments():
    net = nn.Sequential(nn.MultiheadAttention(WIDTH, 2, dtype=torch.float64))
    delayed = outlast.delay(net, "0", mode="detach", switch=1)
    x = X.clone().requires_grad_()
    (out,) = torch.autograd.grad(net[0](query=x, key=x, value=x)[0].sum(), [x], allow_unused=True)
    assert out is None
    delayed.step(1.0)
    (out,) = torch.autograd.grad(net[0](query=x, key=x, value=x)[0].sum(), [x])
    assert out.any()


@pytest.mark.parametrize("training", [True, False])
def test_torch_encoder_layer_is_held_back_in_train_and_eval_mode(training):
    layer = nn.TransformerEncoderLayer(
        WIDTH, 2, 16, dropout=0.0, batch_first=True, dtype=torch.float64
    )
    layer.train(training)
    net = nn.Sequential(layer)

    def without_attention(x: Tensor) -> Tensor:
        x = layer.norm1(x)
        return layer.norm2(x + layer.linear2(layer.linear1(x).relu()))

    delayed = outlast.delay(net, nn.MultiheadAttention, switch=1)
    with torch.no_grad():
        torch.testing.assert_close(net(X), without_attention(X))
        delayed.step(1.0)
        assert not torch.allclose(net(X), without_attention(X))


# ---- the switch --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "at"),
    [
        ({"switch": 3}, 3),
        ({"switch": "3"}, 3),
        ({"switch": 0.5, "steps": 8}, 4),
        ({"switch": "0.5", "steps": 8}, 4),
        ({"switch": "below(0.5)"}, 6),
        ({"switch": "below(1e-9)", "latest": 7}, 7),
        ({"switch": "below(1e-9)", "latest": 0.25, "steps": 8}, 2),
        ({"switch": "below(1e-9)", "latest": 8, "steps": 8}, 8),
        ({"switch": "below(1e-9)"}, None),
        ({"switch": "below(1e-9)", "steps": 5}, None),
    ],
    ids=str,
)
def test_step_of_the_switch(arguments, at, monkeypatch):
    monkeypatch.setattr("outlast.methods.triggers.SMOOTHING", 1.0)
    delayed = outlast.delay(model(), "*.attn", **arguments)
    returned = [delayed.step(torch.tensor(2.0 if step < 6 else 0.1)) for step in range(1, 10)]
    assert [step for step, switched in enumerate(returned, 1) if switched] == ([at] if at else [])
    assert delayed.switched == at


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"switch": 0.5}, "switch=0.5: a share of training needs steps="),
        ({"switch": "0.5"}, "switch=0.5: a share of training needs steps="),
        ({"latest": 0.5}, "latest=0.5: a share of training needs steps="),
        ({"switch": "bellow(1)"}, "no trigger 'bellow'; did you mean 'below'?"),
        ({"switch": -1}, "switch=-1 (int): expected a step >= 0"),
        ({"mode": "skipp"}, "mode='skipp': expected skip | freeze | ramp | detach"),
        ({"ramp": -1}, "ramp=-1: expected a whole number from 0 to"),
    ],
    ids=str,
)
def test_bad_argument_is_refused_before_the_model_changes(arguments, says):
    net = model()
    with pytest.raises(SpecError) as caught:
        outlast.delay(net, "*.attn", **arguments)
    assert says in str(caught.value)
    assert not any("forward" in vars(m) for m in net.modules())


# ---- saving, and taking it off -----------------------------------------------------------------


@pytest.mark.parametrize("mode", ["skip", "freeze", "ramp", "detach"])
@pytest.mark.parametrize("stop", [2, 4, 6])
def test_resumed_delay_continues_exactly(mode, stop, monkeypatch):
    monkeypatch.setattr("outlast.methods.triggers.SMOOTHING", 0.5)
    arguments = {"mode": mode, "switch": "plateau(patience=1)", "ramp": 3}
    losses = [2.0, 1.0, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2]
    net = model()
    delayed = outlast.delay(net, "*.attn", **arguments)
    for loss in losses[:stop]:
        delayed.step(loss)
    saved = json.dumps(delayed.state_dict())
    kept = delayed.state_dict()

    other = model()
    resumed = outlast.delay(other, "*.attn", **arguments)
    resumed.load_state_dict(json.loads(saved))
    other.load_state_dict(net.state_dict())
    for loss in losses[stop:]:
        assert torch.equal(other(X), net(X))
        for twin in (net, other):
            twin.zero_grad()
            twin(X).sum().backward()
        for one, two in zip(net.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(one.grad, two.grad, rtol=0, atol=0)
        assert resumed.step(loss) == delayed.step(loss)
    assert resumed.switched == delayed.switched is not None
    assert json.dumps(kept) == saved, "what was saved does not change behind one's back"


@kinds
@pytest.mark.parametrize("mode", ["skip", "freeze", "detach"])
def test_remove_restores_the_model(attention, mode):
    net = model(attention)
    net[0].attn.qkv.bias.requires_grad_(False)
    whole = net(X)
    delayed = outlast.delay(net, "*.attn", mode=mode)
    delayed.remove()
    delayed.step(2.0)
    assert torch.equal(net(X), whole)
    assert [p.requires_grad for p in attention_weights(net)] == [True, False, True, True]
    for module in net.modules():
        assert "forward" not in vars(module)
        assert not module._forward_pre_hooks


def test_parameter_frozen_by_the_user_stays_frozen():
    net = model()
    net[0].attn.qkv.bias.requires_grad_(False)
    delayed = outlast.delay(net, "*.attn", mode="freeze", switch=2)
    for gets_gradient in ([False] * 4, [False] * 4, [True, False, True, True]):
        net.zero_grad()
        net(X).sum().backward()
        assert [p.grad is not None for p in attention_weights(net)] == gets_gradient
        assert [p.requires_grad for p in attention_weights(net)] == [True, False, True, True]
        delayed.step(1.0)


def test_remove_restores_a_patched_forward():
    net = model()
    net[0].attn.forward = patched = torch.zeros_like
    outlast.delay(net, "*.attn").remove()
    assert net[0].attn.forward is patched


def test_delayed_model_keeps_its_state_dict_names_and_pickles():
    net = model()
    names = list(net.state_dict())
    outlast.delay(net, "*.attn")
    assert list(net.state_dict()) == names
    assert torch.equal(pickle.loads(pickle.dumps(net))(X), net(X))
