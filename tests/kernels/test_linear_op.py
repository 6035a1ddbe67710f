"""The linear map with a vmap rule of its own: torch's, with gradients that lie as the weights."""

import pytest
import torch
import torch.nn.functional as F
from kernel_cases import beside_others, draw, same
from torch.func import vmap

from outlast.kernels.linear import linear

pytestmark = pytest.mark.filterwarnings("error")


def inputs(biased: bool) -> list[torch.Tensor]:
    bias = [draw(3, 5, seed=3)] if biased else []
    return [draw(3, 6, 4, seed=1), beside_others(draw(3, 5, 4, seed=2)), *bias]


@pytest.mark.parametrize("axes", [(0, 0, 0), (None, 0, 0), (1, 2, 1), (0, None, None)], ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_a_stack_is_each_of_it_alone(axes, biased):
    given = [
        (a[0] if axis is None else a.movedim(0, axis)).requires_grad_()
        for a, axis in zip(inputs(biased), axes, strict=False)
    ]
    axes = axes[: len(given)]
    alone = torch.stack(
        [
            F.linear(
                *(a if x is None else a.select(x, row) for a, x in zip(given, axes, strict=True))
            )
            for row in range(3)
        ]
    )
    found = vmap(linear, in_dims=axes)(*given)
    same([found], [alone])
    above = draw(*found.shape, seed=5)
    same(torch.autograd.grad(found, given, above), torch.autograd.grad(alone, given, above))


def test_weight_gradients_lie_as_the_weights_do():
    x, weight, bias = (a.requires_grad_() for a in inputs(True))
    found = torch.autograd.grad(vmap(linear)(x, weight, bias).sum(), (weight, bias))
    assert all(f.is_contiguous() for f in found)


def test_the_ops_keep_torchs_rules_and_second_derivatives():
    x, weight, bias = (a.requires_grad_() for a in inputs(True))
    alone = [a[0].detach().requires_grad_() for a in (x, weight, bias)]
    torch.library.opcheck(torch.ops.outlast.linear.default, alone)
    torch.library.opcheck(torch.ops.outlast.product.default, (x, weight))
    assert torch.autograd.gradgradcheck(vmap(linear), (x, weight, bias))
    assert torch.equal(linear(*alone), F.linear(*alone))
