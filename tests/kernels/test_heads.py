"""QK-norm out of a packed projection: the reference, the op's rules, the fused kernel."""

import pytest
import torch
from kernel_cases import draw, same
from torch import Tensor
from torch.func import vmap

from outlast.kernels.heads import normed_heads, reference
from outlast.kernels.heads.op import back_end

# the interpreter's own
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

EPS = 1e-6
# batch, tokens, heads, width: tiles not filled, over tokens and rows, no power of two, one number
SHAPES = [(2, 5, 2, 8), (1, 1, 1, 1), (3, 47, 3, 16), (2, 3, 5, 600), (5, 1, 7, 12)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=["x".join(map(str, s)) for s in SHAPES])


def inputs(b: int, t: int, h: int, d: int) -> tuple[Tensor, list[Tensor]]:
    """A projection and the gradients of q, k and v."""
    return 3 * draw(b, t, 3, h, d, seed=1), [draw(b, h, t, d, seed=s) for s in (2, 3, 4)]


def plain(packed: Tensor) -> list[Tensor]:
    q, k, v = (t.transpose(-3, -2) for t in packed.unbind(-3))
    return [*(t / (t.pow(2).mean(-1, keepdim=True) + EPS).sqrt() for t in (q, k)), v]


@shapes
def test_the_reference_is_the_formula(shape):
    packed, above = inputs(*shape)
    wanted = plain(packed.requires_grad_())
    for found in (reference.forward(packed, EPS), reference.plain(packed, EPS)):
        same(found, wanted)
    found = reference.backward(*above, packed, EPS)
    same([found], torch.autograd.grad(wanted, packed, above))


def test_without_a_gpu_every_derivative_exists():
    packed, _ = inputs(2, 2, 1, 3)
    assert back_end(packed) is reference
    assert torch.autograd.gradgradcheck(normed_heads, packed.requires_grad_())


def test_the_op_keeps_torchs_rules():
    packed, above = inputs(2, 5, 3, 4)
    torch.library.opcheck(torch.ops.outlast.normed_heads.default, (packed.requires_grad_(), EPS))
    utils = ("test_schema", "test_faketensor")
    rest = (*above, packed.detach(), EPS)
    torch.library.opcheck(torch.ops.outlast.normed_heads_backward.default, rest, test_utils=utils)
    q, _, _ = torch.ops.outlast.normed_heads(packed, EPS)
    (first,) = torch.autograd.grad(q.sum(), packed, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        torch.autograd.grad(first.sum(), packed)


@pytest.mark.parametrize("axis", [0, 2])
def test_a_stack_is_each_of_it_alone(axis):
    packed = draw(3, 2, 5, 3, 2, 4).movedim(0, axis).requires_grad_()
    found = vmap(lambda own: torch.ops.outlast.normed_heads(own, EPS), in_dims=axis)(packed)
    wanted = plain(packed.movedim(axis, 0))
    same(found, wanted)
    above = [draw(*w.shape, seed=5) for w in wanted]
    found, wanted = (torch.autograd.grad(outs, packed, above) for outs in (found, wanted))
    same(found, wanted)


def compare(shape, device, dtype=torch.float32, tolerance=1e-5) -> None:
    pytest.importorskip("triton")
    from outlast.kernels.heads import triton as fused

    packed, above = inputs(*shape)
    packed, *above = (t.to(dtype).double() for t in (packed, *above))
    found = fused.forward(packed.to(device, dtype), EPS)
    wanted = reference.forward(packed, EPS)
    assert [f.stride() for f in found] == [w.stride() for w in wanted]
    assert all(f.dtype == dtype for f in found)
    same([f.cpu() for f in found], wanted, tolerance)
    near = [a.to(device, dtype) for a in above]
    near[1] = near[1].transpose(1, 2).contiguous().transpose(1, 2)
    found = fused.backward(*near, packed.to(device, dtype), EPS)
    assert found.dtype == dtype
    same([found.cpu()], [reference.backward(*above, packed, EPS)], tolerance)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the test on the GPU does this")
@shapes
def test_in_the_interpreter_it_is_the_reference(shape):
    compare(shape, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, (64, 512, 4, 64), (3, 77, 2, 128)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str
)
def test_on_a_gpu_it_is_the_reference(shape, dtype, tolerance):
    compare(shape, "cuda", dtype, tolerance)


@pytest.mark.gpu
def test_on_a_gpu_seeds_together_are_each_alone_and_nothing_is_copied_for_attention():
    from outlast.kernels.heads import triton as fused
    from outlast.kernels.tra.triton.launch import Call

    packed = draw(3, 5, 33, 3, 4, 64).to("cuda", torch.bfloat16).requires_grad_()
    assert back_end(packed) is fused
    found = vmap(normed_heads)(packed)
    assert all(Call.readable(f.flatten(0, 1)).data_ptr() == f.data_ptr() for f in found)
    above = [torch.randn_like(f) for f in found]
    (together,) = torch.autograd.grad(found, packed, above)
    for row in range(3):
        own = packed[row].detach().requires_grad_()
        one = normed_heads(own)
        assert all(torch.equal(a, b[row]) for a, b in zip(one, found, strict=True))
        (alone,) = torch.autograd.grad(one, own, [a[row] for a in above])
        assert torch.equal(alone, together[row])
