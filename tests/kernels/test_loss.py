"""Losses by part: the reference against torch's own, the op's rules, the fused kernel."""

import pytest
import torch
import torch.nn.functional as F
from kernel_cases import draw, same
from torch import Tensor
from torch.func import vmap

import outlast.kernels.loss.op as loss_op
from outlast.kernels.loss import part_losses, reference
from outlast.kernels.loss.op import back_end
from outlast.kernels.row_alignment import padded_table

# the interpreter's own
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

IGNORE, PARTS = -100, 3
# seeds, batch, tokens, classes: tokens that fill no tile, several spans, one class, many
SHAPES = [(2, 3, 7, 11), (1, 1, 1, 1), (2, 5, 130, 4), (2, 2, 9, 700)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=["x".join(map(str, s)) for s in SHAPES])


def inputs(*shape: int) -> list[Tensor]:
    """Half the tokens ask nothing, some that ask belong to no part, the last part has none."""
    *lead, classes = shape
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(classes, lead, generator=generator)
    targets[torch.rand(lead, generator=generator) < 0.5] = IGNORE
    part = torch.randint(-1, PARTS - 1, lead, generator=generator)
    return [3 * draw(*shape, seed=2), targets, part]


@shapes
def test_the_reference_is_the_plain_one_gradients_included(shape):
    logits, targets, part = inputs(*shape)
    logits.requires_grad_()
    losses, accuracies, counts = reference.forward(logits, targets, part, PARTS, IGNORE)
    wanted = reference.plain(logits, targets, part, PARTS, IGNORE)
    same([losses, accuracies], [w.double() for w in wanted], 1e-5)
    above = draw(*losses.shape, seed=3)
    found = reference.backward(above, counts, logits, targets, part, IGNORE)
    same([found], torch.autograd.grad(losses, logits, above))


def test_by_hand():
    logits, targets, part = inputs(1, 2, 5, 4)
    losses, accuracies = part_losses(logits, targets, part, PARTS, IGNORE)
    for index in range(PARTS):
        mine = part == index
        count = max(1, int(mine.sum()))
        total = F.cross_entropy(logits[mine], targets[mine], ignore_index=IGNORE, reduction="sum")
        assert losses[0, index].item() == pytest.approx(total.item() / count, rel=1e-5)
        right = (logits[mine].argmax(-1) == targets[mine]).sum().item() / count
        assert accuracies[0, index].item() == pytest.approx(right)


def test_the_op_keeps_torchs_rules_and_stacks():
    logits, targets, part = inputs(2, 3, 4, 5)
    rest = (targets, part, PARTS, IGNORE)
    op, back = torch.ops.outlast.part_losses.default, torch.ops.outlast.part_losses_backward.default
    utils = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(op, (logits.clone().requires_grad_(), *rest), test_utils=utils)
    losses, _, counts = op(logits, *rest)
    args = (draw(*losses.shape), counts, logits, targets, part, IGNORE)
    torch.library.opcheck(back, args, test_utils=("test_schema", "test_faketensor"))
    stacked = vmap(lambda *a: op(*(t[None] for t in a), PARTS, IGNORE)[0][0])(logits, targets, part)
    same([stacked], [losses])
    alone = logits.clone().requires_grad_()
    (first,) = torch.autograd.grad(op(alone, *rest)[0].sum(), alone, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        torch.autograd.grad(first.sum(), alone)


def as_they_are(logits: Tensor) -> Tensor:
    return logits


def cut(logits: Tensor) -> Tensor:
    """The same numbers as the first columns of a wider table, whose other ones are never read."""
    table = logits.new_full((*logits.shape[:-1], logits.shape[-1] + 5), torch.nan)
    return table[..., : logits.shape[-1]].copy_(logits)


def turned(logits: Tensor) -> Tensor:
    """The same numbers with tokens before batch: not rows at one distance."""
    return logits.transpose(1, 2).contiguous().transpose(1, 2)


def compare(shape, device, dtype=torch.float32, tolerance=1e-5, lie=as_they_are) -> None:
    pytest.importorskip("triton")
    from outlast.kernels.loss import triton as fused

    logits, targets, part = (a.to(device) for a in inputs(*shape))
    logits = lie(logits.to(dtype))
    found = fused.forward(logits, targets, part, PARTS, IGNORE)
    wanted = reference.forward(logits.double(), targets, part, PARTS, IGNORE)
    same(found, wanted, 1e-5)
    above = draw(*wanted[0].shape, seed=3).to(device)
    found = fused.backward(above.float(), found[2], logits, targets, part, IGNORE)
    assert found.dtype == dtype
    if dtype.itemsize == 2:
        assert found.stride(2) == -(-shape[-1] // 8) * 8
        assert padded_table(found)[..., shape[-1] :].eq(0).all()
    else:
        assert found.is_contiguous()
    wanted = reference.backward(above, wanted[2], logits.double(), targets, part, IGNORE)
    same([found], [wanted], tolerance)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the test on the GPU does this")
@shapes
def test_in_the_interpreter_it_is_the_reference(shape):
    compare(shape, "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="for the interpreter")
@pytest.mark.parametrize("classes", [5, 1036])
def test_in_the_interpreter_a_tie_is_the_firsts_and_what_is_not_asked_is_nothing(classes):
    pytest.importorskip("triton")
    from outlast.kernels.loss import triton as fused

    logits, part = torch.zeros(2, 1, 4, classes), torch.zeros(2, 1, 4, dtype=torch.long)
    logits[..., [1, 3]] = 2.0  # two that are the most
    logits[1] = torch.nan  # the second seed asks nothing, and nothing of it is read
    targets = torch.tensor([[[1, 3, 1, IGNORE]], [[IGNORE] * 4]])
    losses, accuracies, counts = fused.forward(logits, targets, part, 1, IGNORE)
    assert accuracies.tolist() == [[0.5], [0.0]]  # two right of four
    assert losses[1].item() == 0
    found = fused.backward(torch.ones(2, 1), counts, logits, targets, part, IGNORE)
    wanted = reference.backward(torch.ones(2, 1), counts, logits, targets, part, IGNORE)
    same([found[0]], [wanted[0].double()], 1e-6)
    assert found[1].eq(0).all()


ODD = [(2, 2, 5, classes) for classes in (1, 7, 8, 12, 1036)]
odd = pytest.mark.parametrize("shape", ODD, ids=["x".join(map(str, s)) for s in ODD])
lying = pytest.mark.parametrize("lie", [cut, turned, as_they_are])
types = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=str
)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the test on the GPU does this")
@odd
@lying
@types
def test_in_the_interpreter_rows_may_lie_apart(shape, lie, dtype, tolerance):
    compare(shape, "cpu", dtype, tolerance, lie)


@pytest.mark.gpu
@odd
@lying
@types
def test_on_a_gpu_rows_may_lie_apart(shape, lie, dtype, tolerance):
    compare(shape, "cuda", dtype, tolerance, lie)


def test_rows_that_lie_apart_are_read_where_they_are():
    pytest.importorskip("triton")
    from outlast.kernels.loss.triton import _side_by_side

    logits = cut(inputs(2, 3, 4, 5)[0])
    assert _side_by_side(logits).data_ptr() == logits.data_ptr()
    assert _side_by_side(logits).stride() == (10, 1)
    assert torch.equal(_side_by_side(turned(logits)), logits.flatten(0, 2))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's")
def test_the_gradients_rows_lie_as_the_op_says(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(loss_op, "can_fuse", lambda *_: True)
    logits, targets, part = inputs(2, 3, 4, 5)
    logits = cut(logits.bfloat16())
    op, back = torch.ops.outlast.part_losses.default, torch.ops.outlast.part_losses_backward.default
    losses, _, counts = op(logits, targets, part, PARTS, IGNORE)
    args = (draw(*losses.shape).float(), counts, logits, targets, part, IGNORE)
    torch.library.opcheck(back, args, test_utils=("test_schema", "test_faketensor"))
    assert back(*args).stride() == (96, 32, 8, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, (4, 128, 59, 12), (2, 2, 9, 4096)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=str
)
def test_on_a_gpu_it_is_the_reference(shape, dtype, tolerance):
    compare(shape, "cuda", dtype, tolerance)


@pytest.mark.gpu
def test_on_a_gpu_it_is_taken_and_a_seed_alone_is_the_same():
    logits, targets, part = (a.cuda() for a in inputs(3, 16, 33, 12))
    logits = logits.float().requires_grad_()
    found = part_losses(logits, targets, part, PARTS, IGNORE)
    same(found, reference.plain(logits, targets, part, PARTS, IGNORE), 1e-5)
    (together,) = torch.autograd.grad(found[0].sum(), logits)
    own = logits[1:2].detach().requires_grad_()
    alone = part_losses(own, targets[1:2], part[1:2], PARTS, IGNORE)
    assert back_end(logits) is not reference
    same([a[0] for a in alone], [f[1] for f in found], 1e-6)
    same([torch.autograd.grad(alone[0].sum(), own)[0][0]], [together[1]], 1e-6)
