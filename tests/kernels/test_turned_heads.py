"""Rotation out of a packed projection: the reference, the op's rules, the fused kernel."""

import pytest
import torch
from kernel_cases import draw, same
from torch import Tensor
from torch.func import vmap

from outlast.kernels.heads import reference, turned_heads
from outlast.kernels.heads.op import back_end

# the interpreter's own
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

# batch, tokens, heads, width: tiles not filled, over tokens and rows, no power of two, one pair
SHAPES = [(2, 5, 2, 8), (1, 1, 1, 2), (4, 47, 3, 16), (2, 3, 5, 600), (6, 1, 7, 12)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=["x".join(map(str, s)) for s in SHAPES])
groups = pytest.mark.parametrize("shared", [True, False], ids=["one table", "two rows a table"])


def inputs(b: int, t: int, h: int, d: int, shared: bool = True) -> tuple[Tensor, ...]:
    """A projection, cosines and sines, and the gradients of q, k and v."""
    angles = 3 * draw(1 if shared or b % 2 else b // 2, t, d // 2, seed=5)
    above = [draw(b, h, t, d, seed=s) for s in (2, 3, 4)]
    return draw(b, t, 3, h, d, seed=1), angles.cos(), angles.sin(), *above


def plain(packed: Tensor, cos: Tensor, sin: Tensor) -> list[Tensor]:
    """By complex numbers."""
    q, k, v = (t.transpose(1, 2) for t in packed.unbind(2))
    turns = torch.complex(cos, sin).repeat_interleave(len(packed) // len(cos), 0)[:, None]
    found = []
    for x in (q, k):
        pairs = torch.complex(*x.chunk(2, -1)) * turns
        found.append(torch.cat([pairs.real, pairs.imag], -1))
    return [*found, v]


@shapes
@groups
def test_the_reference_is_the_formula(shape, shared):
    packed, cos, sin, *above = inputs(*shape, shared)
    wanted = plain(packed.requires_grad_(), cos, sin)
    for forward in (reference.turned_forward, reference.plain_turned):
        same(forward(packed, cos, sin), wanted)
    found = reference.turned_backward(*above, cos, sin)
    same([found], torch.autograd.grad(wanted, packed, above))


def test_the_op_keeps_torchs_rules():
    packed, cos, sin, *above = inputs(4, 5, 3, 4, False)
    op = torch.ops.outlast.turned_heads
    torch.library.opcheck(op.default, (packed.requires_grad_(), cos, sin))
    rest, utils = (*above, cos, sin), ("test_schema", "test_faketensor")
    backward = torch.ops.outlast.turned_heads_backward.default
    torch.library.opcheck(backward, rest, test_utils=utils)
    q, _, _ = op(packed, cos, sin)
    above = torch.ones_like(q).requires_grad_()
    (first,) = torch.autograd.grad(q, packed, above, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        torch.autograd.grad(first.sum(), above)


@pytest.mark.parametrize("own", [True, False], ids=["its own angles", "shared angles"])
@pytest.mark.parametrize("axis", [0, 2])
def test_a_stack_is_each_of_it_alone(axis, own):
    packed = draw(3, 2, 5, 3, 2, 4).movedim(0, axis).requires_grad_()
    angles = draw(*((3,) if own else ()), 1, 5, 2, seed=7)
    turn = vmap(torch.ops.outlast.turned_heads, in_dims=(axis, *[0 if own else None] * 2))
    found = turn(packed, angles.cos(), angles.sin())
    each = angles if own else angles.expand(3, 1, 5, 2)
    rows = zip(packed.movedim(axis, 0), each, strict=True)
    alone = [plain(row, a.cos(), a.sin()) for row, a in rows]
    wanted = [torch.stack(parts) for parts in zip(*alone, strict=True)]
    same(found, wanted)
    above = [draw(*w.shape, seed=5) for w in wanted]
    found, wanted = (torch.autograd.grad(outs, packed, above) for outs in (found, wanted))
    same(found, wanted)


def compare(shape, device, dtype=torch.float32, tolerance=1e-5, shared=True) -> None:
    pytest.importorskip("triton")
    from outlast.kernels.heads import triton as fused

    given = [t.to(dtype).double() for t in inputs(*shape, shared)]
    packed, cos, sin, *above = given
    near, c, s, *dys = (t.to(device, dtype) for t in given)
    found = fused.turned_forward(near, c, s)
    wanted = reference.turned_forward(packed, cos, sin)
    assert [f.stride() for f in found] == [w.stride() for w in wanted]
    assert all(f.dtype == dtype for f in found)
    same([f.cpu() for f in found], wanted, tolerance)
    dys[1] = dys[1].transpose(1, 2).contiguous().transpose(1, 2)
    back = fused.turned_backward(*dys, c, s)
    assert back.dtype == dtype
    same([back.cpu()], [reference.turned_backward(*above, cos, sin)], tolerance)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the test on the GPU does this")
@shapes
@groups
def test_in_the_interpreter_it_is_the_reference(shape, shared):
    compare(shape, "cpu", shared=shared)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, (64, 512, 4, 64), (4, 77, 2, 128)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str
)
@groups
def test_on_a_gpu_it_is_the_reference(shape, dtype, tolerance, shared):
    compare(shape, "cuda", dtype, tolerance, shared)


@pytest.mark.gpu
def test_on_a_gpu_seeds_together_are_each_alone():
    from outlast.kernels.heads import triton as fused

    packed = draw(3, 5, 33, 3, 4, 64).to("cuda", torch.bfloat16).requires_grad_()
    angles = draw(33, 32, seed=5).to("cuda", torch.float32)
    cos, sin = angles.cos(), angles.sin()
    assert back_end(packed) is fused
    found = vmap(lambda own: turned_heads(own, cos, sin))(packed)
    above = [torch.randn_like(f) for f in found]
    (together,) = torch.autograd.grad(found, packed, above)
    for row in range(3):
        own = packed[row].detach().requires_grad_()
        one = turned_heads(own, cos, sin)
        assert all(torch.equal(a, b[row]) for a, b in zip(one, found, strict=True))
        (alone,) = torch.autograd.grad(one, own, [a[row] for a in above])
        assert torch.equal(alone, together[row])
