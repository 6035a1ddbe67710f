"""Delayed attention beside optimisers, copies, other delays and losses that are not finite."""

import copy
import gc
import json
import math
import pickle

import pytest
import torch
from delayed_models import WIDTH, Attn, Layer, X, model, moved, train
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

import outlast
from outlast.errors import SpecError

pytestmark = pytest.mark.filterwarnings("error")


# ---- optimisers --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["skip", "freeze", "ramp"])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_gradients_and_momentum_from_before_do_not_move_attention(mode, kind):
    net = model()
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimiser = kind(net.parameters(), lr=0.01, weight_decay=0.1, **options)
    for _ in range(2):  # gives momentum, and leaves gradients
        net(X).pow(2).mean().backward()
        optimiser.step()
    before = copy.deepcopy(net)
    delayed = outlast.delay(net, "*.attn", mode=mode, switch=3)
    optimiser.step()
    for _ in range(3):
        optimiser.zero_grad(set_to_none=False)
        net(X).pow(2).mean().backward()
        optimiser.step()
        assert moved(net, before) == (False, True)
        delayed.step(1.0)
    net(X).pow(2).mean().backward()
    optimiser.step()
    assert moved(net, before) == (True, True)


def test_gradients_set_by_a_closure_do_not_move_attention():
    net = model()
    before = copy.deepcopy(net)
    delayed = outlast.delay(net, "*.attn", mode="freeze", switch=3)
    optimiser = torch.optim.AdamW(net.parameters(), lr=0.01)

    def closure() -> Tensor:
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        return torch.ones(())

    for optimise in (lambda: optimiser.step(closure), lambda: optimiser.step(closure=closure)):
        optimise()
        assert moved(net, before) == (False, True)
    assert delayed.switched is None


@pytest.mark.parametrize("mode", ["skip", "freeze", "ramp", "detach"])
def test_optimiser_of_trainable_parameters_trains_attention_after_the_switch(mode):
    net = model()
    delayed = outlast.delay(net, "*.attn", mode=mode, switch=1, ramp=1)
    optimiser = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad])
    delayed.step(1.0)
    before = copy.deepcopy(net)
    net(X).pow(2).mean().backward()
    optimiser.step()
    assert moved(net, before) == (True, True)


def test_parameter_shared_with_other_modules_still_trains_under_skip():
    net = nn.Sequential(Layer(Attn), Layer(Attn)).double()
    net[0].mlp.bias = net[0].attn.shared = nn.Parameter(torch.zeros(WIDTH, dtype=torch.float64))
    delayed = outlast.delay(net, "*.attn")
    train(net, delayed, 2)
    assert net[0].mlp.bias.any()


def test_optimiser_hook_is_gone_after_the_switch_and_with_the_handle():
    hooks = _global_optimizer_pre_hooks
    gc.collect()
    others = len(hooks)
    delayed = outlast.delay(model(), "*.attn", switch=1)
    assert len(hooks) == others + 1
    delayed.step(1.0)
    assert len(hooks) == others
    delayed = outlast.delay(model(), "*.attn")
    del delayed
    gc.collect()
    assert len(hooks) == others


# ---- copies, and two delays --------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["skip", "freeze", "ramp", "detach"])
@pytest.mark.parametrize("make", [copy.deepcopy, torch.optim.swa_utils.AveragedModel])
def test_copy_from_before_the_switch_opens_with_the_model(make, mode):
    net = model()
    whole = net(X)
    delayed = outlast.delay(net, "*.attn", mode=mode, switch=1, ramp=1)
    twin = make(net)
    assert torch.equal(twin(X), net(X))
    delayed.step(1.0)
    assert torch.equal(twin(X), whole)
    twin(X).sum().backward()
    assert all(p.grad is not None for p in twin.parameters())


def test_copy_is_open_after_remove():
    net = model()
    whole = net(X)
    delayed = outlast.delay(net, "*.attn")
    twin = copy.deepcopy(net)
    delayed.remove()
    delayed.step(1.0)
    assert torch.equal(twin(X), whole)


@pytest.mark.parametrize("make", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_handle_copied_with_its_model_controls_the_copy_alone(make):
    net = model()
    whole = net(X)
    delayed = outlast.delay(net, "*.attn", switch=1)
    twin, twin_delayed = make((net, delayed))
    twin_delayed.step(1.0)
    assert (delayed.switched, twin_delayed.switched) == (None, 1)
    assert torch.equal(twin(X), whole)
    assert not torch.equal(net(X), whole)


@pytest.mark.parametrize("make", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copy_can_be_delayed_on_its_own(make):
    net = model()
    whole = net(X)
    delayed = outlast.delay(net, "*.attn", switch=1)
    twin = make(net)
    twin_delayed = outlast.delay(twin, "*.attn", switch=2)
    delayed.step(1.0)
    assert torch.equal(net(X), whole)
    assert not torch.equal(twin(X), whole)
    twin_delayed.remove()
    assert torch.equal(twin(X), whole)
    assert not any("forward" in vars(m) or m._forward_pre_hooks for m in twin.modules())


def test_second_delay_on_a_module_is_refused_until_the_first_is_removed():
    net = model()
    whole = net(X)
    delayed = outlast.delay(net, "0.attn")
    with pytest.raises(
        SpecError, match=r"0\.attn: is delayed already by Delay\(.*remove\(\) first"
    ):
        outlast.delay(net, "*.attn")
    assert "forward" not in vars(net[1].attn)
    delayed.remove()
    second = outlast.delay(net, "*.attn")
    assert second.modules == ["0.attn", "1.attn"]
    second.remove()
    assert torch.equal(net(X), whole)
    assert not any("forward" in vars(m) or m._forward_pre_hooks for m in net.modules())


def test_delay_whose_handle_was_thrown_away_can_be_replaced():
    net = model()
    whole = net(X)
    outlast.delay(net, "*.attn")
    outlast.delay(net, "*.attn").remove()
    assert torch.equal(net(X), whole)
    assert not any("forward" in vars(m) or m._forward_pre_hooks for m in net.modules())


def test_remove_keeps_a_forward_that_was_wrapped_later():
    net = model()
    delayed = outlast.delay(net, "0.attn")
    inner = net[0].attn.forward
    net[0].attn.forward = wrapped = lambda x: inner(x) + 1
    delayed.remove()
    assert net[0].attn.forward is wrapped
    assert torch.equal(net[0].attn(X), Attn.forward(net[0].attn, X) + 1)


# ---- losses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("arguments", "losses", "at"),
    [
        ({"switch": "below(0.5)"}, [2.0, None, 0.1], 3),
        ({"switch": "below(0.5)"}, [None, 2.0, 0.1], 3),
        ({"switch": "below(0.5)"}, [None, None, 0.1], 3),
        ({"switch": "below(0.5)"}, [2.0, None, None], None),
        ({"switch": "below(0.5)", "latest": 2}, [None, None, 2.0], 2),
        ({"switch": 2}, [None, None, 2.0], 2),
        ({"switch": "plateau(patience=2)"}, [None, 2.0, None, 0.5, 0.5, None, 0.5], 6),
        ({"switch": "plateau(patience=1)"}, [None, 2.0, 2.0, 2.0, 2.0], None),
    ],
    ids=str,
)
def test_loss_that_is_not_finite_is_left_out(arguments, losses, at, bad, monkeypatch):
    monkeypatch.setattr("outlast.methods.triggers.SMOOTHING", 1.0)
    delayed = outlast.delay(model(), "*.attn", **arguments)
    for loss in losses:
        delayed.step(bad if loss is None else loss)
        json.dumps(delayed.state_dict(), allow_nan=False)
    assert delayed.switched == at
