"""From the last product to the loss and back: the logits of all seeds are written and read once.

Without a GPU the loss's kernel runs in Triton's interpreter (see tests/conftest.py).
"""

import math

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import outlast.kernels.linear.op as linear_op
import outlast.kernels.loss.op as loss_op
import outlast.kernels.row_alignment as row_alignment
from outlast.kernels.loss import part_losses
from outlast.registry import tasks
from outlast.tasks import IGNORE
from outlast.train.seeds import StackedModel

pytest.importorskip("triton")
# the interpreter's own
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

SEEDS, BATCH, TOKENS = 2, 6, 10
HAS_GPU = torch.cuda.is_available()
#: what reads or writes every number it is given
PASSES = {"add", "add_", "cat", "clone", "copy_", "fill_", "sum", "zero_"}


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """All that a GPU in half precision would do, but for the kernels elsewhere in the model."""
    monkeypatch.setattr(linear_op, "_on_gpu", lambda x: True)
    monkeypatch.setattr(linear_op, "_half", lambda x: x.dtype.itemsize == 2)
    monkeypatch.setattr(loss_op, "can_fuse", lambda *_: True)


def step(outputs: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, losses and gradient of one step, as training makes it."""
    task = tasks.build(f"modsum(modulus={outputs - 2})")  # two more tokens than digits
    stack = StackedModel("mlp @ 8", task, range(SEEDS), torch.device(device))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        stack.table += torch.randn(stack.table.shape, generator=generator).to(device) / 10
    lead = (SEEDS, BATCH, TOKENS)
    tokens, targets = (torch.randint(outputs, lead, generator=generator) for _ in range(2))
    part = torch.randint(-1, 2, lead, generator=generator)
    with torch.autocast(device, torch.bfloat16):
        logits = stack.run(tokens.to(device))
    assert logits.dtype == torch.bfloat16
    losses, _ = part_losses(logits, targets.to(device), part.to(device), 2, IGNORE)
    return logits.detach(), losses.detach(), stack.gradient(losses.sum())


def compare(outputs: int, device: str, monkeypatch) -> None:
    with monkeypatch.context() as off:
        off.setattr(linear_op, "_half", lambda x: False)
        off.setattr(row_alignment, "padding", lambda *_: 0)
        *wanted, slope = step(outputs, device)
    *padded, padded_slope = step(outputs, device)
    assert wanted[0].is_contiguous()
    assert padded[0].stride(2) == -(-outputs // 8) * 8
    for one, two in zip((*padded, padded_slope), (*wanted, slope), strict=True):
        assert (one - two).float().norm() < 1e-2 * two.float().norm()


@pytest.mark.skipif(HAS_GPU, reason="the test on the GPU does this")
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("outputs", [12, 39])
def test_padded_head_gives_the_same_losses_and_gradients(outputs, monkeypatch):
    monkeypatch.setattr(linear_op, "WIDE", 0)
    compare(outputs, "cpu", monkeypatch)


@pytest.mark.gpu
@pytest.mark.parametrize("outputs", [12, 39])
def test_padded_head_on_a_gpu_gives_the_same_losses_and_gradients(outputs, monkeypatch):
    monkeypatch.setattr(linear_op, "WIDE", 0)
    compare(outputs, "cuda", monkeypatch)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("outputs", [39, 40])
@pytest.mark.usefixtures("as_on_a_gpu")
def test_only_matmuls_and_the_loss_read_or_write_the_logits(outputs, device):
    if HAS_GPU and device == "cpu":
        pytest.skip("the kernels are compiled")
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        logits, _, _ = step(outputs, device)
    events = [(e.name.removeprefix("aten::"), e.input_shapes) for e in seen.events()]
    passes = [
        (name, shapes)
        for name, shapes in events
        # the interpreter copies what it is given, as one row of bytes
        if name in PASSES and any(len(s) > 1 and math.prod(s) >= logits.numel() for s in shapes)
    ]
    assert not passes
    shapes = [s for name, s in events if name == "bmm" and 40 in [*s[0][1:], *s[1][1:]]]
    lines, k = BATCH * TOKENS, 16
    assert shapes == [
        [[SEEDS, lines, k], [SEEDS, k, 40]],
        [[SEEDS, lines, 40], [SEEDS, 40, k]],
        [[SEEDS, 40, lines], [SEEDS, lines, k]],
    ]
