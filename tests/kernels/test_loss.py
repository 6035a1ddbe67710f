"""What is particular to losses by part: by hand, ties, and how rows lie in memory."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import outlast.kernels.loss.op as loss_op
from kernel_cases import cut, draw, same, turned
from outlast.kernels.loss import part_losses, reference
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
def test_without_gpu_the_function_matches_its_op(shape):
    logits, targets, part = inputs(*shape)
    losses, accuracies, _ = torch.ops.outlast.part_losses(logits, targets, part, PARTS, IGNORE)
    wanted = part_losses(logits, targets, part, PARTS, IGNORE)
    same([losses, accuracies], [w.double() for w in wanted], 1e-5)


def test_losses_and_accuracies_match_a_count_by_hand():
    logits, targets, part = inputs(1, 2, 5, 4)
    losses, accuracies = part_losses(logits, targets, part, PARTS, IGNORE)
    for index in range(PARTS):
        mine = part == index
        count = max(1, int(mine.sum()))
        total = F.cross_entropy(logits[mine], targets[mine], ignore_index=IGNORE, reduction="sum")
        assert losses[0, index].item() == pytest.approx(total.item() / count, rel=1e-5)
        right = (logits[mine].argmax(-1) == targets[mine]).sum().item() / count
        assert accuracies[0, index].item() == pytest.approx(right)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for the interpreter")
@pytest.mark.parametrize("classes", [5, 1036])
def test_tie_goes_to_the_first_and_tokens_that_ask_nothing_are_not_read(classes):
    pytest.importorskip("triton")
    from outlast.kernels.loss import triton as fused

    logits, part = torch.zeros(2, 1, 4, classes), torch.zeros(2, 1, 4, dtype=torch.long)
    logits[..., [1, 3]] = 2.0  # two that are the most
    logits[1] = torch.nan  # the second seed asks nothing, and nothing of it is read
    targets = torch.tensor([[[1, 3, 1, IGNORE]], [[IGNORE] * 4]])
    losses, accuracies, counts = fused.forward(logits, targets, part, 1, IGNORE)
    assert accuracies.tolist() == [[0.5], [0.0]]  # two right of four
    assert losses[1].item() == 0
    actual = fused.backward(torch.ones(2, 1), counts, logits, targets, part, IGNORE)
    wanted = reference.backward(torch.ones(2, 1), counts, logits, targets, part, IGNORE)
    same([actual[0]], [wanted[0].double()], 1e-6)
    assert actual[1].eq(0).all()


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("classes", [1, 7, 8, 12, 1036])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradient_of_half_precision_logits_has_zeros_in_its_padding(classes, dtype, device):
    if torch.cuda.is_available() and device == "cpu":
        pytest.skip("the kernel is compiled")
    fused = pytest.importorskip("outlast.kernels.loss.triton")
    logits, targets, part = (a.to(device) for a in inputs(2, 2, 5, classes))
    logits = logits.to(dtype)
    _, _, counts = fused.forward(logits, targets, part, PARTS, IGNORE)
    d_losses = torch.ones(2, PARTS, device=device)
    gradient = fused.backward(d_losses, counts, logits, targets, part, IGNORE)
    if dtype == torch.bfloat16:
        assert gradient.stride(2) == -(-classes // 8) * 8
        assert padded_table(gradient)[..., classes:].eq(0).all()
    else:
        assert gradient.is_contiguous()


def test_rows_that_lie_apart_are_read_without_a_copy():
    pytest.importorskip("triton")
    from outlast.kernels.loss.triton import _side_by_side

    logits = cut(inputs(2, 3, 4, 5)[0])
    assert _side_by_side(logits).data_ptr() == logits.data_ptr()
    assert _side_by_side(logits).stride() == (10, 1)
    assert torch.equal(_side_by_side(turned(logits)), logits.flatten(0, 2))


@pytest.mark.skipif(torch.cuda.is_available(), reason="for the interpreter")
def test_padded_gradient_lies_as_the_op_says(monkeypatch):
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
def test_on_a_gpu_the_kernel_is_taken_and_a_seed_alone_is_the_same():
    logits, targets, part = (a.cuda() for a in inputs(3, 16, 33, 12))
    logits = logits.float().requires_grad_()
    actual = part_losses(logits, targets, part, PARTS, IGNORE)
    same(actual, reference.plain(logits, targets, part, PARTS, IGNORE), 1e-5)
    (together,) = torch.autograd.grad(actual[0].sum(), logits)
    piece = logits[1:2].detach().requires_grad_()
    alone = part_losses(piece, targets[1:2], part[1:2], PARTS, IGNORE)
    assert loss_op.back_end(logits) is not reference
    same([a[0] for a in alone], [f[1] for f in actual], 1e-6)
    same([torch.autograd.grad(alone[0].sum(), piece)[0][0]], [together[1]], 1e-6)
