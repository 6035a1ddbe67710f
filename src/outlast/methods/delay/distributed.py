"""Delayed attention on several ranks.

Ranks must switch at the same step, so triggers watch the mean loss over ranks. In phase 1 some
parameters get no gradient, and plain `DistributedDataParallel` waits for one from each parameter.
`keep_in_graph` lets the backward pass visit these parameters without a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from outlast.errors import SpecError


def mean_over_ranks(loss: float) -> float:
    """The mean of the finite losses of all ranks; NaN if there is none.

    Without a process group it is the loss itself. All ranks must call it.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return loss
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    pair = [loss, 1.0] if math.isfinite(loss) else [0.0, 0.0]
    total = torch.tensor(pair, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    losses, ranks = total.tolist()
    return losses / ranks if ranks else math.nan


def waits_for_all() -> bool | None:
    """Whether the DistributedDataParallel that runs waits for a gradient from each parameter.

    None if no DistributedDataParallel runs its forward.
    """
    ddp = DistributedDataParallel._get_active_ddp_module()
    if ddp is None:
        return None
    if ddp.static_graph and torch.is_grad_enabled():
        raise SpecError(
            "static_graph=True: delayed attention changes the graph at its switch, and ranks would "
            "drift apart; wrap the model with DistributedDataParallel(model) without static_graph"
        )
    return not ddp.find_unused_parameters


def keep_in_graph(out: Tensor, unused: Sequence[Tensor]) -> Tensor:
    """`out`, whose backward pass also visits `unused` and sends them no gradient."""
    return _KeepInGraph.apply(out, *unused)  # type: ignore[no-untyped-call, no-any-return]


class _KeepInGraph(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, *unused: Tensor) -> Tensor:  # type: ignore[override]
        ctx.unused = len(unused)
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return grad, *[None] * ctx.unused
