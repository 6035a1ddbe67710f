"""Serial, parallel and nested wiring, each worked out by hand from its sublayers."""

import pytest
import torch
from torch import Tensor

from outlast.models import Model, build_model

TOKENS = torch.randint(7, (3, 6), generator=torch.Generator().manual_seed(0))


def build(line: str) -> Model:
    return build_model(f"{line} @ 8, embedding=1", 7, 5, seed=0).double()


def parts(model: Model) -> list:
    """Each sublayer as the function f(norm(x)) it adds."""
    return [lambda x, s=s: s.mixer(s.norm(x))[0] for s in model.sublayers()]


def stream(model: Model) -> Tensor:
    return model.embedding(TOKENS)


def serial(a, b, c, x):
    x = x + a(x)
    x = x + b(x)
    return x + c(x)


def parallel(a, b, c, x):
    x = x + a(x) + b(x)
    return x + c(x)


def nested(a, b, c, x):
    after_b = x + b(x)
    after_c = after_b + c(after_b)
    return x + a(x) + (after_c - x)


def late(a, b, c, x):
    x = x + a(x)
    return x + b(x) + c(x)


LINES = {
    "gru > attention > mlp": serial,
    "(gru > attention) > mlp": serial,
    "gru | attention > mlp": parallel,
    "(gru | attention) > mlp": parallel,
    "gru | (attention > mlp)": nested,
    "gru > attention | mlp": late,
}


@pytest.mark.parametrize(("line", "by_hand"), LINES.items(), ids=LINES)
def test_model_is_wired_as_the_line_says(line, by_hand):
    model = build(line)
    x = by_hand(*parts(model), stream(model))
    torch.testing.assert_close(model(TOKENS)[0], model.head(model.norm(x)))


def test_normalised_residual_stream_by_hand():
    model = build_model("gru > mlp @ 8, norm=rms, residual=normalised", 7, 5, seed=0).double()
    x = 3 * model.embedding(TOKENS)
    with torch.no_grad():
        model.embedding.weight.mul_(3)
    for sublayer in model.sublayers():
        x = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * sublayer.norm.weight
        x = x + sublayer.mixer(x)[0]
    x = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(model(TOKENS)[0], model.head(x))


def test_closed_gate_does_not_normalise_the_stream():
    model = build_model("gru > mlp @ 8, norm=rms, residual=normalised", 7, 5, seed=0).double()
    for sublayer in model.sublayers():
        sublayer.set_gate(0)
    wanted = model.head(model.norm(model.embedding(TOKENS)))
    torch.testing.assert_close(model(TOKENS)[0], wanted)


def test_different_lines_give_different_outputs():
    outputs = [build(line)(TOKENS)[0] for line in LINES]
    distinct = [outputs[0], outputs[2], outputs[4], outputs[5]]
    for i, one in enumerate(distinct):
        assert not any(torch.allclose(one, other) for other in distinct[i + 1 :])


def test_repeat_by_hand():
    model = build("2 x (gru | mlp)")
    a, b, c, d = parts(model)
    x = stream(model)
    x = x + a(x) + b(x)
    x = x + c(x) + d(x)
    torch.testing.assert_close(model(TOKENS)[0], model.head(model.norm(x)))


@pytest.mark.parametrize("line", LINES)
def test_states_come_in_the_order_of_the_sublayers(line):
    model = build(line)
    _, state = model(TOKENS)
    assert len(state) == 3
    assert state[0].shape == (3, 8), "the recurrence's"
    assert state[1].keys.shape == (3, 4, 6, 2), "attention's"
    assert state[2] is None, "within a token"
