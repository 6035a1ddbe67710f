"""The recurrent mixers against torch's own layers, and how their weights begin."""

import pytest
import torch
from torch import nn

from outlast.registry import mixers

WIDTH = 6


def x(tokens: int = 5, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, tokens, WIDTH, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize(("name", "torchs"), [("lstm", nn.LSTM), ("gru", nn.GRU)])
def test_recurrent_mixer_equals_the_torch_layer(name, torchs):
    ours = mixers.build(name, width=WIDTH).double()
    theirs = torchs(WIDTH, WIDTH, batch_first=True, dtype=torch.float64)
    theirs.load_state_dict(
        {
            "weight_ih_l0": ours.input.weight,
            "bias_ih_l0": ours.input.bias,
            "weight_hh_l0": ours.weight,
            "bias_hh_l0": ours.bias,
        }
    )
    first, state = ours(x())
    wanted, their_state = theirs(x())
    torch.testing.assert_close(first, wanted)
    second, _ = ours(x(seed=1), state)
    torch.testing.assert_close(second, theirs(x(seed=1), their_state)[0])
    flat = [s[0] for s in their_state] if isinstance(their_state, tuple) else [their_state[0]]
    for one, two in zip(state if isinstance(state, tuple) else [state], flat, strict=True):
        torch.testing.assert_close(one, two)


def test_lstm_that_prefers_torch_gives_the_same_without_gradients_and_trains_as_before():
    mixer, tokens = mixers.build("lstm", width=WIDTH), x(tokens=9).float()
    trained, _ = mixer(tokens)
    with torch.no_grad():
        wanted, wanted_state = mixer(tokens)
        mixer.prefers_torch = True
        whole, state = mixer(tokens)
        first, between = mixer(tokens[:, :4])
        second, _ = mixer(tokens[:, 4:], between)
    torch.testing.assert_close(whole, wanted)
    torch.testing.assert_close(state, wanted_state)
    torch.testing.assert_close(torch.cat([first, second], 1), wanted)
    assert torch.equal(mixer(tokens)[0], trained)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_recurrent_weights_start_as_in_torch(name):
    mixer = mixers.build(name, width=64)
    for parameter in mixer.parameters():
        assert parameter.abs().max() <= 1 / 8
        assert parameter.abs().max() > 0.9 / 8
        assert parameter.std().item() == pytest.approx(1 / 8 / 3**0.5, rel=0.15)


def test_lstm_init_orthogonal_and_forget_bias_one():
    lstm = mixers.build("lstm(init=orthogonal, forget_bias=1)", width=16)
    for block in lstm.weight.detach().chunk(4):
        torch.testing.assert_close(block @ block.T, torch.eye(16), atol=1e-5, rtol=0)
    both = (lstm.input.bias + lstm.bias).detach().chunk(4)
    assert torch.equal(both[1], torch.ones(16))
    assert not any(torch.equal(b, torch.ones(16)) for b in (both[0], both[2], both[3]))


def test_lstm_gates_that_remember_and_let_little_in():
    lstm = mixers.build("lstm(forget_bias=3, input_bias=-3)", width=16)
    enter, forget, *others = (lstm.input.bias + lstm.bias).detach().chunk(4)
    assert (enter == -3).all()
    assert (forget == 3).all()
    assert all(each.abs().max() <= 0.5 for each in others)


def test_lstm_forget_bias_zero_differs_from_the_default():
    lstm = mixers.build("lstm(forget_bias=0)", width=16)
    assert not (lstm.input.bias + lstm.bias).detach().chunk(4)[1].any()
    by_default = mixers.build("lstm", width=16)
    assert (by_default.input.bias + by_default.bias).detach().chunk(4)[1].any()


def test_lstm_state_is_float32_under_autocast():
    lstm = mixers.build("lstm", width=WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        _, (h, c) = lstm(x().float())
    assert h.dtype == c.dtype == torch.float32
