"""What is particular to bias and GELU, and to bias and gated unit."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from kernel_cases import draw, same
from outlast.kernels.pointwise import bias_gelu, bias_glu, fused
from outlast.mixers.base import linear_gelu, linear_glu


def gelu(z: Tensor) -> Tensor:
    return F.gelu(z)


def glu(z: Tensor) -> Tensor:
    value, gate = z.chunk(2, -1)
    return value * F.silu(gate)


@pytest.mark.parametrize(("linear", "plain"), [(linear_gelu, gelu), (linear_glu, glu)])
def test_without_gpu_the_matmul_adds_the_bias_to_the_bit(linear, plain):
    x, weight, bias = draw(3, 4, 6).float(), draw(8, 6, seed=1).float(), draw(8, seed=2).float()
    wanted = plain(F.linear(x.reshape(-1, 6), weight, bias).reshape(3, 4, 8))
    assert torch.equal(linear(x, weight, bias), wanted)
    assert not fused(x, bias)


@pytest.mark.parametrize(("function", "plain"), [(bias_gelu, gelu), (bias_glu, glu)])
@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 4, 6)], ids=str)
def test_any_number_of_axes_alone_and_stacked(function, plain, shape):
    z, bias = draw(3, *shape, seed=1), draw(3, 6, seed=2)
    wanted = [plain(one + piece) for one, piece in zip(z, bias, strict=True)]
    same([function(z[0], bias[0])], wanted[:1])
    same([vmap(function)(z, bias)], [torch.stack(wanted)])
