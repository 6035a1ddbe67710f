"""Gradients of a whole step, with everything fused that can be, against float32 on the CPU."""

import pytest
import torch

from outlast.kernels.loss import part_losses
from outlast.machine import precision
from outlast.registry import tasks
from outlast.tasks import IGNORE
from outlast.train.seeds import StackedModel

LINES = [
    "2 x (lstm | attention > mlp) @ 32",
    "2 x (lstm > attention(rope) > mlp) @ 32",
    "lstm | attention | gru > glu @ 32",
]
# precision of matmuls; how far a gradient may be off, as a share of its norm
KINDS = {"fp32": 1e-4, "tf32": 2e-2, "bf16": 6e-2}
SEEDS = (0, 1, 2)


def gradient(line: str, kind: str, device: str, rows: int = 64) -> dict[str, torch.Tensor]:
    """Of each parameter, for all seeds, after one batch that is the same on every device."""
    task = tasks.build("composite(keys=32, length=12)")
    batch = task.sample(12, rows, torch.Generator().manual_seed(0)).to(device)
    with precision(kind, torch.device(device)):
        stack = StackedModel(line, task, SEEDS, torch.device(device))
        with torch.autocast(device, torch.bfloat16, enabled=kind == "bf16"):
            logits = stack.run(batch.inputs[None])
        wanted = (t.expand(len(SEEDS), *t.shape) for t in (batch.targets, batch.part))
        losses, _ = part_losses(logits, *wanted, len(task.parts), IGNORE)
        return {n: g.cpu() for n, g in stack.named(stack.gradient(losses.sum())).items()}


def compare(line: str, kind: str, device: str) -> None:
    wanted = gradient(line, "fp32", "cpu")
    gradients = gradient(line, kind, device)
    largest = max(g.norm() for g in wanted.values())
    for name, one in gradients.items():
        error = (one - wanted[name]).norm() / wanted[name].norm().clamp_min(1e-2 * largest)
        assert error <= KINDS[kind], f"{name}: off by {error:.1e}"


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("line", LINES)
def test_gradients_on_a_gpu_are_those_of_the_cpu(line, kind):
    compare(line, kind, "cuda")


@pytest.mark.parametrize("line", LINES)
def test_gradients_in_bfloat16_are_near(line):
    compare(line, "bf16", "cpu")


@pytest.mark.gpu
def test_gradients_of_stacked_seeds_on_a_gpu_are_those_of_each_alone():
    together = gradient(LINES[0], "tf32", "cuda")
    task = tasks.build("composite(keys=32, length=12)")
    batch = task.sample(12, 64, torch.Generator().manual_seed(0)).to("cuda")
    with precision("tf32", torch.device("cuda")):
        for row, seed in enumerate(SEEDS):
            stack = StackedModel(LINES[0], task, (seed,), torch.device("cuda"))
            logits = stack.run(batch.inputs[None])
            losses, _ = part_losses(
                logits, batch.targets[None], batch.part[None], len(task.parts), IGNORE
            )
            for name, one in stack.named(stack.gradient(losses.sum())).items():
                wanted = together[name][row]
                assert (one[0].cpu() - wanted).norm() <= 1e-2 * wanted.norm() + 1e-6, name
