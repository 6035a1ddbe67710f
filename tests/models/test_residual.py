"""The residual stream: sums that wait for the next norm, as on a GPU, equal sums made at once."""

import pytest
import torch

import outlast
from outlast.mixers.base import Norm
from outlast.models import build_model, residual
from outlast.models.residual import ResidualStream

LINES = [
    "2 x (lstm | attention > mlp) @ 8",
    "2 x (lstm > attention(rope) > glu) @ 8",
    "attention | mlp | gru | attention @ 8",
    "(lstm > mlp) | attention > mlp @ 8",
    "2 x (attention | mlp) @ 8, norm=rms",
    "2 x (attention > mlp) @ 8, residual=normalised",
    "2 x (attention > glu) @ 8, norm=rms, residual=normalised",
]


def run(
    line: str, gate: float, upstream_grad: float, lends_bias: bool = False
) -> list[torch.Tensor]:
    """Logits and gradients."""
    built = build_model(line, 11, 11, seed=0).double()
    with torch.no_grad():
        for name, weight in built.named_parameters():
            if name.endswith("bias"):  # some begin at 0
                weight += torch.arange(weight.numel()) / weight.numel()
    for sublayer in built.sublayers():
        sublayer.lends_bias = lends_bias
    for sublayer in built.sublayers()[::2]:
        sublayer.set_gate(gate)
        sublayer.set_upstream_grad(upstream_grad)
    logits, state = built(torch.arange(10).view(2, 5))
    more, _ = built(torch.arange(6).view(2, 3), state)
    out = torch.cat([logits, more], 1)
    return [
        out,
        *torch.autograd.grad(out.pow(2).sum(), list(built.parameters()), allow_unused=True),
    ]


@pytest.mark.parametrize(
    ("gate", "upstream_grad"), [(1, 1), (0, 1), (0.5, 1), (1, 0), (1, 0.5)], ids=str
)
@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("lends_bias", [True, False])
def test_deferred_sums_equal_immediate_sums(line, gate, upstream_grad, lends_bias, monkeypatch):
    wanted = run(line, gate, upstream_grad)
    monkeypatch.setattr(residual, "can_fuse", lambda *tensors: True)
    for one, two in zip(run(line, gate, upstream_grad, lends_bias), wanted, strict=True):
        assert (one is None) == (two is None)
        if one is not None:
            torch.testing.assert_close(one, two, atol=1e-10, rtol=1e-10)


def test_at_most_two_sums_are_pending(monkeypatch):
    monkeypatch.setattr(residual, "can_fuse", lambda *tensors: True)
    x, y, bias = torch.randn(3, 2, 4), torch.randn(3, 2, 4), torch.randn(4)
    stream = ResidualStream(x)
    for _ in range(3):
        stream = stream.plus(y, bias)
    torch.testing.assert_close(stream._x, x + 2 * y + 2 * bias)
    total = x + 3 * y + 3 * bias
    norm = Norm(4)
    torch.testing.assert_close(stream.normed(norm), norm(total))
    torch.testing.assert_close(stream.x, total)


def test_replaced_forward_of_a_mixer_is_called_when_sums_are_deferred(monkeypatch):
    monkeypatch.setattr(residual, "can_fuse", lambda *tensors: True)
    built = build_model("attention > mlp @ 8", 11, 11, seed=0)
    delayed = outlast.delay(built, lambda name, _: name.endswith(".mixer"), switch=5)
    ends = built.head(built.norm(built.embedding(torch.arange(4)[None])))
    assert torch.equal(built(torch.arange(4)[None])[0], ends)
    delayed.remove()
    assert not torch.equal(built(torch.arange(4)[None])[0], ends)
