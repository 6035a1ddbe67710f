"""Gates and upstream_grads: what a sublayer adds, what it costs, and what it teaches upstream."""

import pytest
import torch

from outlast.models import Model, build_model
from outlast.models.model import gate_mode

TOKENS = torch.randint(7, (3, 6), generator=torch.Generator().manual_seed(0))
#: a line, and the same line without its attention
LINES = {
    "gru > attention > mlp": "gru > mlp",
    "gru | attention > mlp": "gru > mlp",
    "gru | (attention > mlp)": "gru | mlp",
}
lines = pytest.mark.parametrize("line", LINES)


def build(line: str) -> Model:
    return build_model(f"{line} @ 8, embedding=1", 7, 5, seed=0).double()


def attention_of(model: Model):
    return next(s for s in model.sublayers() if s.pathway == "attention")


def gradients(model: Model) -> dict[str, torch.Tensor | None]:
    model.zero_grad()
    model(TOKENS)[0].pow(2).sum().backward()
    return {n: p.grad if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}


def refuse(*_):
    raise AssertionError("a closed sublayer was run")


@lines
def test_closed_gate_equals_a_model_without_the_sublayer(line):
    whole, bare = build(line), build(LINES[line])
    others = [s for s in whole.sublayers() if s.pathway != "attention"]
    for mine, theirs in zip(bare.sublayers(), others, strict=True):
        mine.load_state_dict(theirs.state_dict())
    for part in ("embedding", "norm", "head"):
        getattr(bare, part).load_state_dict(getattr(whole, part).state_dict())
    assert not torch.allclose(whole(TOKENS)[0], bare(TOKENS)[0])
    attention_of(whole).set_gate(0)
    torch.testing.assert_close(whole(TOKENS)[0], bare(TOKENS)[0])


@lines
def test_closed_gate_runs_nothing_and_has_no_gradients(line):
    model = build(line)
    closed = attention_of(model)
    closed.set_gate(0)
    for module in (closed.mixer, closed.norm, closed.mixer.qkv):
        module.register_forward_pre_hook(refuse)
    grads = gradients(model)
    pathways = model.pathways()
    assert all((g is None) == (pathways[n] == "attention") for n, g in grads.items())
    closed.set_gate(1)
    with pytest.raises(AssertionError, match="a closed sublayer was run"):
        model(TOKENS)


def test_all_gates_closed_leave_embedding_norm_and_head():
    model = build("gru | attention > mlp")
    for sublayer in model.sublayers():
        sublayer.set_gate(0)
    wanted = model.head(model.norm(model.embedding(TOKENS)))
    assert torch.equal(model(TOKENS)[0], wanted)


@pytest.mark.parametrize("gate", [0.5, 0.25, 2.0])
def test_gate_scales_the_output_of_a_sublayer(gate):
    sublayer = attention_of(build("attention"))
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    whole, _ = sublayer(x)
    sublayer.set_gate(gate)
    torch.testing.assert_close(sublayer(x)[0], gate * whole)
    sublayer.set_gate(1)
    assert torch.equal(sublayer(x)[0], whole)


@pytest.mark.parametrize("upstream_grad", [0.0, 0.3, 1.0])
def test_upstream_grad_scales_the_input_gradient_and_nothing_else(upstream_grad):
    sublayer = attention_of(build("attention"))

    def teach():
        x = torch.randn(2, 4, 8, dtype=torch.float64, generator=torch.Generator())
        x.requires_grad_()
        y, _ = sublayer(x)
        inputs = [x, *sublayer.parameters()]
        of_input, *of_weights = torch.autograd.grad(y.pow(2).sum(), inputs, allow_unused=True)
        return y, of_input, of_weights

    y, of_input, of_weights = teach()
    sublayer.set_upstream_grad(upstream_grad)
    same_y, scaled, same_of_weights = teach()
    assert torch.equal(same_y, y)
    if upstream_grad == 0:
        assert scaled is None
    else:
        torch.testing.assert_close(scaled, upstream_grad * of_input)
    for one, two in zip(of_weights, same_of_weights, strict=True):
        torch.testing.assert_close(one, two)


def test_upstream_grad_zero_detaches_attention_from_layers_before_it():
    model = build("gru > attention")
    recurrent, attention = model.sublayers()
    attention.set_upstream_grad(0)
    detached = gradients(model)

    x = model.embedding(TOKENS)
    x = x + recurrent(x)[0]
    x = x + attention.mixer(attention.norm(x.detach()))[0]
    model.zero_grad()
    model.head(model.norm(x)).pow(2).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(detached[name], parameter.grad)
    assert attention.mixer.qkv.weight.grad.any(), "attention itself learns"
    attention.set_upstream_grad(1)
    assert not torch.allclose(gradients(model)["embedding.weight"], detached["embedding.weight"])


def test_gates_are_not_in_the_state_dict():
    model = build("gru > attention")
    names = {n for n, _ in model.named_parameters()}
    attention_of(model).set_gate(0.5)
    assert set(model.state_dict()) == names
    again = build("gru > attention")
    again.load_state_dict(model.state_dict())
    assert attention_of(again).gate_mode == "on"


@pytest.mark.parametrize(
    ("values", "meant"),
    [([0.0, 0.0], "off"), ([1.0, 1.0], "on"), ([0.0, 1.0], "between"), ([0.5], "between")],
)
def test_gate_mode_of_several_gates(values, meant):
    assert gate_mode(values) == meant
