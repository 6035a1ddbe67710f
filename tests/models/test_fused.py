"""A whole stack of models through the fused kernels is the same through torch's operations.

Without a GPU the kernels run in Triton's interpreter (see tests/conftest.py), with one on it.
"""

import pytest
import torch

import outlast.kernels.heads.op as heads_op
import outlast.kernels.norm.op as norm_op
import outlast.kernels.pointwise.op as pointwise_op
import outlast.models.residual as residual
from outlast.methods.base import PATHWAYS, SUBLAYER_CONTROLS
from outlast.registry import tasks
from outlast.train.seeds import StackedModel

pytest.importorskip("triton")
# the interpreter's own
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

TASK = tasks.build("modsum(modulus=5)")
LINES = [
    "gru | attention(heads=2) > mlp > mlp @ 12",
    "(mlp > mlp) | attention(heads=2) | mlp > attention(rope, heads=2) @ 12",
    "gru | attention(heads=2) > mlp > mlp @ 12, norm=rms",
    "2 x (attention(heads=2) > glu(expand=2)) @ 12, norm=rms, residual=normalised",
    "attention(heads=2) > mlp @ 12, residual=normalised",
    "tra_transformer(heads=2) @ 16",
]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def trial(line: str, fuse: bool, monkeypatch, gates) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and gradient of two seeds; `gates` are those of each pathway."""
    for module in (heads_op, norm_op, pointwise_op, residual):
        monkeypatch.setattr(module, "can_fuse", lambda *_: fuse)
    stack = StackedModel(line, TASK, (0, 1), DEVICE)
    # norms and biases that are not as fresh as they were made
    noise = torch.randn(stack.table.shape, generator=torch.Generator().manual_seed(3)) / 10
    with torch.no_grad():
        stack.table += noise.to(DEVICE)
    stack.set_modes(gates)
    tokens = torch.randint(TASK.vocabulary, (2, 3, 5), generator=torch.Generator().manual_seed(1))
    logits = stack.run(tokens.to(DEVICE))
    return logits.detach(), stack.gradient(logits.pow(2).sum())


def controls(**attention: float) -> dict[str, torch.Tensor]:
    """Gates and upstream gradients of two seeds, all 1 but attention's."""
    tables = {name: torch.ones(2, len(PATHWAYS)) for name in SUBLAYER_CONTROLS}
    for name, value in attention.items():
        tables[name][:, PATHWAYS.index("attention")] = value
    return tables


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("shut", [{}, {"gate": 0}, {"upstream_grad": 0}], ids=str)
def test_fused_kernels_equal_plain_operations(line, shut, monkeypatch):
    plain = trial(line, False, monkeypatch, controls(**shut))
    fused = trial(line, True, monkeypatch, controls(**shut))
    for got, want in zip(fused, plain, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5 * want.abs().max().item())
        if DEVICE.type == "cpu":
            assert not torch.equal(got, want), "the kernels were not used"


# a threshold jumps, so one that rounds to the other side of it is not near
@pytest.mark.parametrize("line", [line for line in LINES if "tra" not in line])
def test_fused_kernels_in_bfloat16_are_near_float32(line, monkeypatch):
    plain = trial(line, False, monkeypatch, controls())
    with torch.autocast(DEVICE.type, torch.bfloat16):
        fused = trial(line, True, monkeypatch, controls())
    for got, want in zip(fused, plain, strict=True):
        assert (got - want).norm() < 3e-2 * want.norm()
