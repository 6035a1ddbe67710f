"""Attention over short sequences against explicit scores in float64, gradients included.

Without a GPU the kernel runs in Triton's interpreter (see tests/conftest.py), with one on it.
"""

import pytest
import torch
from kernel_cases import draw, same
from torch.func import vmap

from outlast.kernels.attention import attend, attend_packed
from outlast.kernels.attention.reference import attend as reference

pytest.importorskip("triton")
# the interpreter's own
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")


@pytest.fixture(autouse=True)
def _precision_as_before():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def tf32():
    torch.set_float32_matmul_precision("high")


# rows, heads, tokens, head width: one token, tokens and widths that fill no tile, more than a tile
SHAPES = [(1, 1, 1, 8), (2, 3, 7, 20), (1, 2, 33, 16), (1, 1, 70, 32)]


def packed(shape, device, dtype):
    """q, k and v as views of one projection, as attention makes them, and in float64."""
    b, h, t, d = shape
    both = draw(b, t, 3, h, d, seed=1).to(dtype)
    views = both.to(device).permute(2, 0, 3, 1, 4).unbind()
    return views, [e.requires_grad_() for e in both.double().permute(2, 0, 3, 1, 4).unbind()]


def compare(shape, device, dtype=torch.float32, tolerance=2e-6):
    from outlast.kernels.attention import triton as fused

    (q, k, v), exact = packed(shape, device, dtype)
    wanted, above = reference(*exact), draw(*shape, seed=2).to(dtype)
    same([fused.forward(q, k, v).cpu()], [wanted], tolerance)
    found = fused.backward(above.to(device), q, k, v)
    wanted = torch.autograd.grad(wanted, exact, above.double())
    same([f.cpu() for f in found], wanted, tolerance)
    whole = torch.stack([t.transpose(1, 2) for t in (q, k, v)], 2)
    whole = fused.backward_packed(above.to(device), whole)
    assert whole.is_contiguous()
    assert all(torch.equal(a, b) for a, b in zip(fused.views(whole), found, strict=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the test on the GPU does this")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_in_the_interpreter_it_is_the_reference(shape):
    compare(shape, "cpu")


def test_the_heads_of_a_token_lie_side_by_side():
    from outlast.kernels.attention import triton as fused

    device = "cuda" if torch.cuda.is_available() else "cpu"
    (q, k, v), _ = packed((2, 3, 5, 8), device, torch.float32)
    assert fused.forward(q, k, v).transpose(1, 2).is_contiguous()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, (9, 4, 128, 32), (300, 4, 59, 32)], ids=str)
def test_on_a_gpu_it_is_the_reference(shape, dtype, tf32):
    compare(shape, "cuda", dtype, 4e-2 if dtype == torch.bfloat16 else 1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(3, 2, 40, 16), (2, 2, 200, 16), (2, 2, 128, 128)], ids=str)
@pytest.mark.parametrize("precision", ["high", "highest"])
def test_on_a_gpu_the_op_is_the_reference_whatever_takes_it(shape, precision):
    torch.set_float32_matmul_precision(precision)
    (q, k, v), exact = packed(shape, "cuda", torch.float32)
    inputs = [t.detach().requires_grad_() for t in (q, k, v)]
    found, wanted, above = attend(*inputs), reference(*exact), draw(*shape, seed=2)
    same([found.cpu()], [wanted], 1e-2)
    found = torch.autograd.grad(found, inputs, above.cuda().float())
    same([f.cpu() for f in found], torch.autograd.grad(wanted, exact, above), 2e-2)


def test_second_derivatives_are_refused_not_wrong():
    """Of the op itself: on the CPU `attend` never takes it."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    (q, k, v), _ = packed((1, 1, 3, 8), device, torch.float32)
    q = q.detach().requires_grad_()
    out = torch.ops.outlast.attend_short(q, k, v)
    (first,) = torch.autograd.grad(out.pow(2).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        torch.autograd.grad(first.sum(), q)


def test_second_derivatives_of_the_packed_op_are_refused_too():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    whole = draw(1, 3, 3, 1, 8).to(device, torch.float32).requires_grad_()
    out = torch.ops.outlast.attend_packed_short(whole)
    (first,) = torch.autograd.grad(out.pow(2).sum(), whole, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        torch.autograd.grad(first.sum(), whole)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [40, 200])
def test_on_a_gpu_a_packed_stack_is_three_views_in_one_piece(tokens, tf32):
    packed = draw(3, 2, tokens, 3, 2, 16).cuda().float().requires_grad_()
    found = vmap(attend_packed)(packed)
    wanted = vmap(attend)(*packed.permute(3, 0, 1, 4, 2, 5))
    assert torch.equal(found, wanted)
    above = torch.randn_like(found)
    (one,), (two,) = (torch.autograd.grad(y, packed, above) for y in (found, wanted))
    torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-6)
    assert one.is_contiguous() or tokens == 200  # where one program takes a whole sequence
