"""Calls without gradients go past torch: the same results, and only where torch need not see them.

The fused kernel runs in Triton's interpreter where there is no GPU.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import outlast
from outlast.kernels.tra import op
from outlast.kernels.tra.checks import NEVER
from outlast.kernels.tra.op import one_query
from outlast.kernels.tra.reference import attend
from outlast.kernels.tra.setting import Setting
from tra_cases import Case

KEYS = 1100
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HOW = Setting(0.0, 0.25, 0, 4.0)
tra = outlast.threshold_relative_attention


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The fused kernel in the place of the blocks of torch."""
    pytest.importorskip("triton")
    from outlast.kernels.tra import triton

    monkeypatch.setattr(op, "back_end", lambda q, name="": triton)
    return triton


def inputs() -> list[Tensor]:
    """q, k, v and what the gates are the log σ of."""
    case = Case(1, KEYS, batch=2, heads=4, key_heads=1, signs=True)
    raw = torch.tensor([-math.inf, 0.5, 12.0, 40.0]).expand(2, 1, 4)
    return [*case.inputs(torch.float32, DEVICE)[:3], raw.to(DEVICE)]


class Seen(TorchDispatchMode):
    """The ops that torch sees."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("padded", [False, True])
def test_one_query_matches_the_reference_with_the_gates_log_sigmoid(
    kernel: Any, padded: bool
) -> None:
    q, k, v, raw = inputs()
    start = torch.tensor([0, 700], dtype=torch.int32, device=DEVICE) if padded else None
    stop = torch.full_like(start, NEVER) if start is not None else None
    found = one_query(q, k, v, raw, start, HOW)
    gate = F.logsigmoid(raw.double()).transpose(1, 2)
    how = HOW._replace(offset=KEYS - 1)
    wanted, _, kept = attend(*(t.double() for t in (q, k, v)), gate, start, stop, how)
    assert (kept > 100).all()
    assert found is not None
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)


def test_one_query_does_not_go_where_torch_must_see_it(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v, raw = inputs()
    monkeypatch.setattr(kernel, "one_query", lambda *_, **__: v)
    learnt = k.clone().requires_grad_()
    assert one_query(q, k, v, raw, None, HOW) is v
    assert one_query(q, learnt, v, raw, None, HOW) is None
    with torch.no_grad():
        assert one_query(q, learnt, v, raw, None, HOW) is v
    with torch.autocast(DEVICE, torch.bfloat16):
        assert one_query(q, k, v, raw, None, HOW) is None
    with Seen():
        assert one_query(q, k, v, raw, None, HOW) is None
    for other in ([q.double(), k, v, raw], [q, k[:, :, :9], v[:, :, :9], raw]):
        assert one_query(*other, None, HOW) is None


def test_torch_sees_the_op_only_where_it_has_to() -> None:
    plain = Case(5, 5).inputs(torch.float32)
    with Seen() as seen:
        by_op = tra(*plain)
    assert "outlast.tra.default" in seen.names
    assert torch.equal(by_op, tra(*plain))
    assert not op.watched(*plain)
    assert op.watched(*(t.to("meta") for t in plain))
    assert torch.func.vmap(lambda q: torch.tensor(op.watched(q)))(plain[0]).all()
    with torch.autocast("cpu", torch.bfloat16):
        assert op.watched(*plain)
