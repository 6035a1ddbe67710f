"""mlp, glu, and the linear map and norm that stand in for torch's own."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, vmap

from outlast.mixers.base import Linear, Norm
from outlast.registry import mixers

X = torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_mlp_is_two_maps_with_a_gelu_between():
    mlp = mixers.build("mlp(expand=2)", width=8).double()
    assert mlp.up.weight.shape == (16, 8)
    inner = F.gelu(X @ mlp.up.weight.T + mlp.up.bias)
    torch.testing.assert_close(mlp(X)[0], inner @ mlp.down.weight.T + mlp.down.bias)


def test_glu_multiplies_a_value_by_its_gate():
    glu = mixers.build("glu", width=8).double()
    value, gate = (X @ glu.up.weight.T + glu.up.bias).chunk(2, -1)
    inner = value * gate * torch.sigmoid(gate)
    torch.testing.assert_close(glu(X)[0], inner @ glu.down.weight.T + glu.down.bias)


def test_glu_has_about_the_weights_of_an_mlp():
    sizes = [sum(p.numel() for p in mixers.build(n, width=96).parameters()) for n in ("mlp", "glu")]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.01)


@pytest.mark.parametrize(
    ("ours", "torchs"),
    [
        (Linear(8, 6), nn.Linear(8, 6)),
        (Linear(8, 6, bias=False), nn.Linear(8, 6, bias=False)),
        (Norm(8), nn.LayerNorm(8)),
    ],
    ids=["Linear", "Linear without bias", "Norm"],
)
@pytest.mark.filterwarnings("error")
def test_linear_and_norm_equal_torch_alone_and_stacked(ours, torchs):
    ours, torchs = ours.double(), torchs.double()
    weights = {
        name: torch.randn(3, *p.shape, dtype=torch.float64).requires_grad_()
        for name, p in torchs.named_parameters()
    }
    together = vmap(lambda part: functional_call(ours, part, (X,)))(weights)
    for seed in range(3):
        part = {name: w[seed] for name, w in weights.items()}
        wanted = functional_call(torchs, part, (X,))
        torch.testing.assert_close(together[seed], wanted)
        torch.testing.assert_close(functional_call(ours, part, (X,)), wanted)
        grads = [
            torch.autograd.grad(y.pow(2).sum(), list(weights.values()), retain_graph=True)
            for y in (together[seed], wanted)
        ]
        for one, two in zip(*grads, strict=True):
            torch.testing.assert_close(one, two)
