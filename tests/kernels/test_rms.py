"""RMS norm on a stream: the reference against the formula, the op's rules, the fused kernel."""

import pytest
import torch
from kernel_cases import beside_others, draw, same
from torch import Tensor
from torch.func import vmap

from outlast.kernels.norm import reference, rms
from outlast.kernels.norm.op import back_end

# the interpreter's own
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

EPS = 1e-6
# seeds, two axes of rows, width: rows that fill no tile, several spans, no power of two, one number
SHAPES = [(2, 3, 5, 8), (1, 1, 1, 1), (3, 1, 130, 4), (2, 2, 3, 144), (1, 3, 1, 600)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=["x".join(map(str, s)) for s in SHAPES])


def inputs(*shape: int) -> list[Tensor]:
    """x, y, z, bias and scale; x far from mean 0 and spread 1."""
    lead, d = shape[:-3], shape[-1]
    x, y, z = (draw(*shape, seed=s) for s in (1, 2, 3))
    return [3 * x + 2, y, z, draw(*lead, d, seed=4), draw(*lead, d, seed=5)]


def formula(x: Tensor, scale: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * scale


def op(x, y, z, bias, scale, kept=None):
    """The op itself for one seed; `rms` takes it only where it is fused."""
    x, y, z, bias, scale = (None if a is None else a[None] for a in (x, y, z, bias, scale))
    found = torch.ops.outlast.rms(x, y, z, bias, scale, EPS, x.dtype, kept)
    return [out[0] for out in found]


@shapes
def test_the_reference_is_the_formula(shape):
    x, *_, scale = (a.requires_grad_() for a in inputs(*shape))
    wanted = formula(x, scale[:, None, None])
    _, found, kept = reference.stream_forward(x, (), None, scale, None, EPS, x.dtype, x.dtype)
    same([found, kept], [wanted, wanted])
    one, two = (draw(*shape, seed=s) for s in (6, 7))
    dx, affine, _ = reference.backward(one, None, x, scale, EPS, also=two, centred=False)
    wanted = torch.autograd.grad(wanted, (x, scale), one + two)
    same([dx, affine[:, 0]], wanted, 1e-9)
    assert affine.shape[1] == 1


def test_without_a_gpu_it_is_todays_operations_to_the_bit():
    x, y, z, bias, scale = (a.float() for a in inputs(2, 3, 8))
    total = x + y + z + bias
    wanted = total * (total.square().mean(-1, keepdim=True) + EPS).rsqrt() * scale
    found = rms(x, scale, EPS, (y, z), bias, keep=True)
    assert all(torch.equal(f, w) for f, w in zip(found, (total, wanted, wanted), strict=True))
    assert torch.equal(rms(x + bias, scale, EPS)[1], rms(x, scale, EPS, bias=bias)[1])
    assert back_end(x, scale) is reference
    given = [a.requires_grad_() for a in inputs(2, 2, 3)]
    assert torch.autograd.gradgradcheck(lambda x, scale: rms(x, scale)[1], (given[0], given[4]))


def test_the_op_keeps_torchs_rules():
    x, y, z, bias, scale = (a.requires_grad_() for a in inputs(2, 3, 4, 5))
    for added, kept in (((None, None, None), None), ((y, z, bias), torch.float32)):
        rest = (x, *added, scale, EPS, x.dtype, kept)
        torch.library.opcheck(torch.ops.outlast.rms.default, rest)
    utils = ("test_schema", "test_faketensor")
    for more, narrow in ((None, None), (draw(*x.shape), torch.bfloat16)):
        rest = (draw(*x.shape), more, more, x.detach(), scale.detach(), EPS, narrow, bool(narrow))
        torch.library.opcheck(torch.ops.outlast.rms_backward.default, rest, test_utils=utils)
    out = op(x[0], None, None, None, scale[0])[1]
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        torch.autograd.grad(first.sum(), x)


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("added", [0, 1, 2])
def test_a_stack_is_each_of_it_alone_whatever_is_used(added, used):
    if not added and 0 in used:
        pytest.skip("without a sum there is none to use")
    x, y, z, bias, scale = (a.requires_grad_() for a in inputs(3, 2, 4, 5))
    given = [x, y if added else None, z if added > 1 else None, bias if added > 1 else None, scale]
    axes = tuple(None if a is None else 0 for a in given)
    found = vmap(lambda *own: op(*own, kept=x.dtype), in_dims=axes)(*given)
    total = x + y if added else x
    total = total + z + bias[:, None, None] if added > 1 else total
    normed = formula(total, scale[:, None, None])
    found, wanted = ([outs[i] for i in used] for outs in (found, (total, normed, normed)))
    same(found, wanted)
    above = [draw(*x.shape, seed=10 + i) for i in used]
    given = [a for a in given if a is not None]
    found = torch.autograd.grad(found, given, above, materialize_grads=True, allow_unused=True)
    wanted = torch.autograd.grad(wanted, given, above, materialize_grads=True, allow_unused=True)
    same(found, wanted, 1e-9)


def compare(shape, device, dtype=torch.float32, tolerance=1e-5) -> None:
    """Scales in a table, rows with the first axis inside the second, gradients the other way."""
    pytest.importorskip("triton")
    from outlast.kernels.norm import triton as fused

    x, y, z, bias, scale = (a.to(dtype).double() for a in inputs(*shape))
    one, two, past = (draw(*shape, seed=s).to(dtype).double() for s in (6, 7, 8))
    rows = shape[1] * shape[2]

    def moved(tensor):
        if tensor is None:
            return None
        return tensor.to(device, dtype).transpose(1, 2).contiguous().transpose(1, 2)

    near = [beside_others(a.to(device, torch.float32)) for a in (bias, scale)]
    for added, own, kept in (((), None, None), ((y, z), near[0], torch.bfloat16)):
        own_too = None if own is None else bias
        wanted = reference.stream_forward(x, added, own_too, scale, None, EPS, x.dtype)
        some = [moved(a) for a in added]
        found = fused.stream_forward(moved(x), some, own, near[1], None, EPS, dtype, kept)
        same([found[0].cpu()], wanted[:1], tolerance)
        # the norm is that of the sum as it was written
        again = (found[0].cpu().double(), (), None, scale, None, EPS, x.dtype)
        same([found[1].cpu()], [reference.stream_forward(*again)[1]], tolerance)
        assert found[2].numel() == (0 if kept is None else x.numel())
        if kept is not None:
            same([found[2].cpu()], [found[1].cpu().to(kept).double()], 2e-2)
    for by, also, narrow in ((None, None, None), (past, two, torch.bfloat16)):
        how = (EPS, narrow, narrow is not None)
        near_by = (moved(by), moved(x), near[1])
        found = fused.backward(one.to(device, dtype), *near_by, *how, moved(also), False)
        wanted = reference.backward(one, by, x, scale, *how, also, False)
        same([found[0].cpu()], wanted[:1], tolerance)
        if narrow is not None:
            same([found[2].cpu()], wanted[:1], 2e-2)
        # a sum over many rows: float32 to the size of its terms
        same([found[1].cpu() / rows**0.5], [wanted[1] / rows**0.5], 1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the test on the GPU does this")
@shapes
def test_in_the_interpreter_it_is_the_reference(shape):
    compare(shape, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, (4, 59, 128, 256), (2, 3, 77, 1024)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str
)
def test_on_a_gpu_it_is_the_reference(shape, dtype, tolerance):
    compare(shape, "cuda", dtype, tolerance)


@pytest.mark.gpu
def test_on_a_gpu_under_autocast_the_norm_is_kept_in_the_type_of_the_stream_too():
    x, y, _, bias, scale = (
        a.to("cuda", torch.float32).requires_grad_() for a in inputs(9, 33, 256)
    )
    wanted = formula(x + y + bias, scale)
    with torch.autocast("cuda", torch.bfloat16):
        total, normed, kept = rms(x, scale, EPS, (y.bfloat16(),), bias, keep=True)
    assert [t.dtype for t in (total, normed, kept)] == [x.dtype, torch.bfloat16, x.dtype]
    assert torch.equal(kept.bfloat16(), normed)
    same([kept], [wanted], 2e-2)
    given = (x, y, bias, scale)
    found = torch.autograd.grad(normed.float().sum() + kept.sum(), given)
    for one, two in zip(found, torch.autograd.grad(2 * wanted.sum(), given), strict=True):
        assert (one - two).norm() < 3e-2 * two.norm()


@pytest.mark.gpu
def test_on_a_gpu_seeds_together_are_each_alone_and_fused():
    from outlast.kernels.norm import triton as fused

    x, *_, scale = (a.to("cuda", torch.float32).requires_grad_() for a in inputs(3, 9, 33, 256))
    assert back_end(x, scale) is fused
    found = vmap(lambda *own: rms(*own)[1])(x, scale)
    above = torch.randn_like(found)
    together = torch.autograd.grad(found, (x, scale), above)
    for row in range(3):
        own = [a[row].detach().requires_grad_() for a in (x, scale)]
        one = rms(*own)[1]
        assert torch.equal(one, found[row])
        alone = torch.autograd.grad(one, own, above[row])
        same(alone, [t[row] for t in together], 1e-5)
        assert torch.equal(alone[0], together[0][row])
