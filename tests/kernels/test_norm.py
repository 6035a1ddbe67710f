"""Layer norm: the reference against torch's own, the op's rules, the fused kernel."""

import pytest
import torch
import torch.nn.functional as F
from kernel_cases import beside_others, draw, same
from torch import Tensor
from torch.func import vmap

from outlast.kernels.norm import add_norm, norm, reference
from outlast.kernels.norm.op import back_end

# the interpreter's own
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

EPS = 1e-5
# seeds, two axes of rows, width: rows that fill no tile, several spans, no power of two, one number
SHAPES = [(2, 3, 5, 8), (1, 1, 1, 1), (3, 1, 130, 4), (2, 2, 3, 144), (1, 3, 1, 600)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=["x".join(map(str, s)) for s in SHAPES])


def inputs(*shape: int) -> list[Tensor]:
    """x, scale and shift; x far from mean 0 and spread 1."""
    lead, d = shape[:-3], shape[-1]
    return [3 * draw(*shape, seed=1) + 2, draw(*lead, d, seed=2), draw(*lead, d, seed=3)]


def op(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """The op itself for one seed; `norm` takes it only where it is fused."""
    return torch.ops.outlast.norm(x[None], scale[None], shift[None], EPS, x.dtype)[0]


@shapes
def test_the_reference_is_torchs(shape):
    x, scale, shift = (a.requires_grad_() for a in inputs(*shape))
    wanted = torch.stack(
        [
            F.layer_norm(one, one.shape[-1:], *own, EPS)
            for one, *own in zip(x, scale, shift, strict=True)
        ]
    )
    same([reference.forward(x, scale, shift, EPS, x.dtype)], [wanted])
    above = draw(*shape, seed=4)
    dx, affine, _ = reference.backward(above, None, x, scale, EPS)
    same([dx, *affine.unbind(1)], torch.autograd.grad(wanted, (x, scale, shift), above), 1e-9)


def test_without_a_gpu_it_is_todays_operations_to_the_bit():
    x, scale, shift = (a.float() for a in inputs(2, 3, 8))
    wanted = torch.addcmul(shift, F.layer_norm(x, (8,), eps=EPS), scale)
    assert torch.equal(norm(x, scale, shift, EPS), wanted)
    assert torch.equal(norm(x[0, 0], scale, shift, EPS), wanted[0, 0])
    assert back_end(x, scale) is reference
    assert torch.autograd.gradgradcheck(norm, [a.requires_grad_() for a in inputs(2, 2, 3)])


def test_the_op_keeps_torchs_rules():
    x, scale, shift = (a.requires_grad_() for a in inputs(2, 3, 4, 5))
    torch.library.opcheck(torch.ops.outlast.norm.default, (x, scale, shift, EPS, x.dtype))
    y = draw(*x.shape, seed=8).requires_grad_()
    third, bias = draw(*x.shape, seed=9).requires_grad_(), draw(2, 5, seed=10).requires_grad_()
    for z, b in ((None, None), (third, bias)):
        rest = (x, y, z, b, scale, shift, EPS, x.dtype)
        torch.library.opcheck(torch.ops.outlast.add_norm.default, rest)
    utils = ("test_schema", "test_faketensor")
    for past, narrow in ((None, None), (draw(*x.shape), torch.bfloat16)):
        rest = (draw(*x.shape), past, x.detach(), scale.detach(), EPS, narrow, past is not None)
        torch.library.opcheck(torch.ops.outlast.norm_backward.default, rest, test_utils=utils)
    (first,) = torch.autograd.grad(op(x[0], scale[0], shift[0]).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        torch.autograd.grad(first.sum(), x)


@pytest.mark.parametrize("axes", [(0, 0, 0), (None, 0, 0), (2, 1, 0), (0, None, None)], ids=str)
def test_a_stack_is_each_of_it_alone(axes):
    given = [
        (a[0] if axis is None else a.movedim(0, axis)).requires_grad_()
        for a, axis in zip(inputs(3, 2, 4, 5), axes, strict=True)
    ]
    rows = [
        [a if axis is None else a.select(axis, row) for a, axis in zip(given, axes, strict=True)]
        for row in range(3)
    ]
    found = vmap(op, in_dims=axes)(*given)
    alone = torch.stack([reference.plain(*row, EPS) for row in rows])
    same([found], [alone])
    above = draw(*found.shape, seed=5)
    wanted = torch.autograd.grad(alone, given, above)
    same(torch.autograd.grad(found, given, above), wanted, 1e-9)


def add(x: Tensor, y: Tensor, scale: Tensor, shift: Tensor, *more: Tensor):
    """The op for one seed, as `op`; more is z and a bias."""
    x, y, scale, shift, *more = (a[None] for a in (x, y, scale, shift, *more))
    z, bias = more or (None, None)
    total, normed = torch.ops.outlast.add_norm(x, y, z, bias, scale, shift, EPS, x.dtype)
    return total[0], normed[0]


@pytest.mark.parametrize("used", [(0, 1), (0,), (1,)], ids=["both", "the sum", "the norm"])
@pytest.mark.parametrize("more", [False, True], ids=["of two", "of three and a bias"])
def test_a_sum_and_its_norm_in_a_stack_whichever_is_used(used, more):
    x, scale, shift = inputs(3, 2, 4, 5)
    rest = [draw(*x.shape, seed=9), draw(3, 5, seed=10)] if more else []
    given = [a.requires_grad_() for a in (x, draw(*x.shape, seed=8), scale, shift, *rest)]
    found = [vmap(add)(*given)[i] for i in used]
    total = given[0] + given[1]
    if more:
        total = total + given[4] + given[5][:, None, None]
    wanted = [(total, reference.forward(total, scale, shift, EPS, x.dtype))[i] for i in used]
    same(found, wanted)
    above = [draw(*x.shape, seed=10 + i) for i in used]
    found = torch.autograd.grad(found, given, above, materialize_grads=True)
    same(found, torch.autograd.grad(wanted, given, above, materialize_grads=True), 1e-9)


def test_without_a_gpu_a_sum_and_its_norm_are_todays_operations_to_the_bit():
    x, scale, shift = (a.float() for a in inputs(2, 3, 8))
    y = draw(*x.shape, seed=8).float()
    total, normed = add_norm(x, y, scale, shift, EPS)
    assert torch.equal(total, x + y)
    assert torch.equal(normed, norm(x + y, scale, shift, EPS))
    total, normed = add_norm(x, y, scale, shift, EPS, y, shift)
    assert torch.equal(total, x + y + y + shift)
    assert torch.equal(normed, norm(total, scale, shift, EPS))


def test_without_a_gpu_gradients_may_be_taken_inside_the_stack():
    def one(*own):
        return torch.func.grad(lambda *a: norm(*a, EPS).pow(3).sum(), (0, 1, 2))(*own)

    stacked = inputs(3, 2, 4, 5)
    alone = zip(*(one(*row) for row in zip(*stacked, strict=True)), strict=True)
    same(vmap(one)(*stacked), [torch.stack(parts) for parts in alone], 1e-8)


def compare(shape, device, dtype=torch.float32, tolerance=1e-5, even=False) -> None:
    """Scales in a table; rows with the first axis inside the second, gradients the other way.

    If `even`, rows lie as gradients do.
    """
    pytest.importorskip("triton")
    from outlast.kernels.norm import triton as fused

    x, scale, shift = inputs(*shape)
    x = x.to(dtype).double()
    above = draw(*shape, seed=6).to(dtype).double()

    def moved(tensor):
        if tensor is None:
            return None
        tensor = tensor.to(device, dtype)
        return tensor if even else tensor.transpose(1, 2).contiguous().transpose(1, 2)

    turned = moved(x)
    near = [beside_others(a.to(device, torch.float32)) for a in (scale, shift)]
    found = fused.forward(turned, *near, EPS, dtype)
    assert found.dtype == dtype
    assert fused.forward(turned, *near, EPS, torch.bfloat16).dtype == torch.bfloat16
    scale, shift = scale.float().double(), shift.float().double()
    same([found.cpu()], [reference.forward(x, scale, shift, EPS, x.dtype)], tolerance)
    rows = shape[1] * shape[2]
    past = draw(*shape, seed=7).to(dtype).double()
    for by, narrow in ((None, None), (past, torch.bfloat16)):
        how = (EPS, narrow, narrow is not None)
        found = fused.backward(above.to(device, dtype), moved(by), turned, near[0], *how)
        wanted = reference.backward(above, by, x, scale, *how)
        same([found[0].cpu()], wanted[:1], tolerance)
        assert found[2].numel() == (0 if narrow is None else x.numel())
        if narrow is not None:
            same([found[2].cpu()], wanted[:1], 2e-2)
        # a sum over many rows: float32 to the size of its terms
        same([found[1].cpu() / rows**0.5], [wanted[1] / rows**0.5], 1e-5)
    biased = x + past + above + shift[:, None, None]
    for more, wanted in ((None, x + past), (above, biased)):
        rest = (None, None) if more is None else (more.to(device, dtype), near[1])
        total, normed = fused.add_forward(turned, moved(past), *rest, *near, EPS, dtype)
        assert total.dtype == normed.dtype == dtype
        same([total.cpu()], [wanted], tolerance)
        # the norm is that of the sum as it was written
        wanted = reference.forward(total.cpu().double(), scale, shift, EPS, x.dtype)
        same([normed.cpu()], [wanted], tolerance)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the test on the GPU does this")
@shapes
@pytest.mark.parametrize("even", [False, True])
def test_in_the_interpreter_it_is_the_reference(shape, even):
    compare(shape, "cpu", even=even)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, (4, 59, 128, 128), (2, 3, 77, 1024)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str
)
@pytest.mark.parametrize("even", [False, True])
def test_on_a_gpu_it_is_the_reference(shape, dtype, tolerance, even):
    compare(shape, "cuda", dtype, tolerance, even)


@pytest.mark.gpu
def test_on_a_gpu_under_autocast_it_comes_in_the_type_of_the_products():
    x, scale, shift = (a.to("cuda", torch.float32).requires_grad_() for a in inputs(9, 33, 128))
    with torch.autocast("cuda", torch.bfloat16):
        found = norm(x, scale, shift)
        total, normed = add_norm(x, found, scale, shift)
        more, _ = add_norm(x, found, scale, shift, z=found)
    assert found.dtype == normed.dtype == torch.bfloat16
    assert total.dtype == more.dtype == torch.float32
    same([more], [x + 2 * found.float()], 1e-6)
    same([found.float()], [norm(x, scale, shift)], 2e-2)
    grads = torch.autograd.grad(normed.float().pow(2).sum() + total.sum(), (x, scale, shift))
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in grads)


@pytest.mark.gpu
def test_on_a_gpu_it_can_be_captured():
    x, y = (draw(4, 59, 128, seed=s).float().cuda() for s in (1, 2))
    scale, shift = torch.ones(128, device="cuda"), torch.zeros(128, device="cuda")
    wanted = add_norm(x, y, scale, shift)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = add_norm(x, y, scale, shift)
    graph.replay()
    assert all(torch.equal(f, w) for f, w in zip(found, wanted, strict=True))


@pytest.mark.gpu
def test_on_a_gpu_seeds_together_are_each_alone_and_fused():
    from outlast.kernels.norm import triton as fused

    stacked = [a.to("cuda", torch.float32).requires_grad_() for a in inputs(3, 9, 33, 128)]
    assert back_end(*stacked[:2]) is fused
    assert back_end(stacked[0].double(), stacked[1]) is reference
    found = vmap(norm)(*stacked)
    above = torch.randn_like(found)
    together = torch.autograd.grad(found, stacked, above)
    for row in range(3):
        own = [a[row].detach().requires_grad_() for a in stacked]
        one = norm(*own)
        assert torch.equal(one, found[row])
        alone = torch.autograd.grad(one, own, above[row])
        total, normed = add_norm(one.detach(), *own)
        assert torch.equal(total, one + own[0])
        assert torch.equal(normed, norm(total, *own[1:]))
        same(alone, [t[row] for t in together], 1e-5)
        assert torch.equal(alone[0], together[0][row])
