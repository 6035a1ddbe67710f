"""Bias and gated unit: the reference against torch's own, the op's rules, the fused kernel."""

import pytest
import torch
import torch.nn.functional as F
from kernel_cases import beside_others, draw, same
from torch import Tensor
from torch.func import vmap

from outlast.kernels.pointwise import bias_glu, fused, reference
from outlast.mixers.base import linear_glu

# the interpreter's own
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

# seeds, rows, width of value and gate together: rows that fill no tile, several spans, several
# blocks of columns, one number
SHAPES = [(2, 5, 8), (1, 1, 2), (3, 130, 4), (2, 3, 288)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=["x".join(map(str, s)) for s in SHAPES])


def inputs(*shape: int) -> list[Tensor]:
    return [2 * draw(*shape, seed=1), draw(*shape[:-2], shape[-1], seed=2)]


def plain(z: Tensor, bias: Tensor) -> Tensor:
    value, gate = (z + bias).chunk(2, -1)
    return value * F.silu(gate)


@shapes
def test_the_reference_is_torchs(shape):
    z, bias = (a.requires_grad_() for a in inputs(*shape))
    wanted = plain(z, bias[:, None])
    same([reference.forward_glu(z, bias)], [wanted])
    above = draw(*wanted.shape, seed=4)
    same(reference.backward_glu(above, z, bias), torch.autograd.grad(wanted, (z, bias), above))


def test_without_a_gpu_the_product_has_its_bias_to_the_bit():
    x, weight, bias = draw(3, 4, 6).float(), draw(8, 6, seed=1).float(), draw(8, seed=2).float()
    value, gate = F.linear(x.reshape(-1, 6), weight, bias).reshape(3, 4, 8).chunk(2, -1)
    wanted = value * F.silu(gate)
    assert torch.equal(linear_glu(x, weight, bias), wanted)
    assert not fused(x, bias)


def test_the_op_keeps_torchs_rules():
    z, bias = (a.requires_grad_() for a in inputs(2, 4, 6))
    torch.library.opcheck(torch.ops.outlast.bias_glu.default, (z, bias))
    rest = (draw(2, 4, 3), z.detach(), bias.detach())
    utils = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.outlast.bias_glu_backward.default, rest, test_utils=utils)
    (first,) = torch.autograd.grad(bias_glu(z[0], bias[0]).sum(), z, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        torch.autograd.grad(first.sum(), z)


@pytest.mark.parametrize("axes", [(0, 0), (None, 0), (2, 1), (0, None)], ids=str)
def test_a_stack_is_each_of_it_alone(axes):
    given = [
        (a[0] if axis is None else a.movedim(0, axis)).requires_grad_()
        for a, axis in zip(inputs(3, 4, 6), axes, strict=True)
    ]
    rows = [
        [a if axis is None else a.select(axis, row) for a, axis in zip(given, axes, strict=True)]
        for row in range(3)
    ]
    found = vmap(bias_glu, in_dims=axes)(*given)
    alone = torch.stack([plain(*row) for row in rows])
    same([found], [alone])
    above = draw(*found.shape, seed=5)
    same(torch.autograd.grad(found, given, above), torch.autograd.grad(alone, given, above))


def compare(shape, device, dtype=torch.float32, tolerance=1e-5) -> None:
    pytest.importorskip("triton")
    from outlast.kernels.pointwise import triton as kernel

    z, bias = inputs(*shape)
    above = draw(*shape[:-1], shape[-1] // 2, seed=6)
    z, above = (a.to(dtype).double() for a in (z, above))
    bias = bias.float()
    near = z.to(device, dtype), beside_others(bias.to(device))
    found = kernel.forward_glu(*near)
    assert found.dtype == dtype
    same([found.cpu()], [reference.forward_glu(z, bias.double())], tolerance)
    found = kernel.backward_glu(above.to(device, dtype), *near)
    wanted = reference.backward_glu(above, z, bias.double())
    same([found[0].cpu()], wanted[:1], tolerance)
    # a sum over many rows: float32 to the size of its terms
    same([found[1].cpu() / shape[1] ** 0.5], [wanted[1] / shape[1] ** 0.5], 1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the test on the GPU does this")
@shapes
def test_in_the_interpreter_it_is_the_reference(shape):
    compare(shape, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, (4, 7552, 512), (2, 77, 1024)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str
)
def test_on_a_gpu_it_is_the_reference(shape, dtype, tolerance):
    compare(shape, "cuda", dtype, tolerance)


@pytest.mark.gpu
def test_on_a_gpu_seeds_together_are_each_alone():
    stacked = [a.to("cuda", torch.float32).requires_grad_() for a in inputs(3, 299, 512)]
    assert fused(*stacked)
    found = vmap(bias_glu)(*stacked)
    above = torch.randn_like(found)
    together = torch.autograd.grad(found, stacked, above)
    for row in range(3):
        own = [a[row].detach().requires_grad_() for a in stacked]
        one = bias_glu(*own)
        assert torch.equal(one, found[row])
        alone = torch.autograd.grad(one, own, above[row])
        same(alone, [t[row] for t in together], 1e-5)
        assert torch.equal(alone[0], together[0][row])
