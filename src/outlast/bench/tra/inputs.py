"""What `outlast bench tra` compares: inputs, kinds of attention, and the definition of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.bench.timing import FAILURES, Bench, Side
from outlast.kernels.entmax import entmax15
from outlast.kernels.tra import reference, threshold_relative_attention
from outlast.kernels.tra.setting import Setting

BATCH, HEADS = 2, 16
#: queries whose result is compared with the truth
CHECKED = 128
EARLY = 2.0**-24
#: heads whose kept keys are counted
COUNTED = 4
#: what is timed, by its name in a row, and whether gradients are a part of it
PASSES = (("forward", False), ("fwd+bwd", True))

Attend = Callable[..., Tensor]


#: the op as it is meant to be used, with a QK-norm
fused: Attend = partial(threshold_relative_attention, normalised=True)
#: the op that does not know of the QK-norm: a running maximum
fused_online: Attend = threshold_relative_attention
#: the op that may leave out what cannot matter
fused_early: Attend = partial(threshold_relative_attention, normalised=True, tolerance=EARLY)


def eager(q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> Tensor:
    """Explicit scores."""
    how = Setting(0.0, q.shape[-1] ** -0.5, k.shape[2] - q.shape[2])
    return reference.attend(q, k, v, gate, None, None, how)[0]


def sdpa(kernel: str) -> Attend:
    """Plain causal attention by one of torch's own kernels."""
    which = getattr(torch.nn.attention.SDPBackend, kernel)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.nn.attention.sdpa_kernel(which):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return attend


class Truth(NamedTuple):
    """A definition that results are compared with, for some last queries.

    `of_queries` says for each input whether it belongs to a query; the others belong to a key, and
    all keys are given.
    """

    attend: Attend
    of_queries: tuple[bool, ...]


def _scores(q: Tensor, k: Tensor) -> Tensor:
    """Scores of the last queries, minus infinity for later keys."""
    queries, keys = q.shape[2], k.shape[2]
    later = torch.ones(queries, keys, device=q.device).triu(keys - queries + 1).bool()
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf)


def _plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _scores(q, k).softmax(-1) @ v


def _forgetting(q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> Tensor:
    sums = gate.cumsum(-1)
    decay = sums[..., -q.shape[2] :, None] - sums[..., None, :]
    return (_scores(q, k) + decay).softmax(-1) @ v


def _entmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return entmax15(_scores(q, k)) @ v


TRA = Truth(eager, (True, False, False, True))
PLAIN = Truth(_plain, (True, False, False))
FORGETTING = Truth(_forgetting, (True, False, False, False))
ENTMAX = Truth(_entmax, (True, False, False))


class Contender(NamedTuple):
    """Some attention, and the definition that its results are compared with."""

    attend: Attend
    truth: Truth = TRA


TRA_FUSED, TRA_EARLY = {"tra": Contender(fused)}, {"tra, early": Contender(fused_early)}
FLASH = {"sdpa flash": Contender(sdpa("FLASH_ATTENTION"), PLAIN)}
#: torch's own kernels; times are given against the first
TORCH = FLASH | {"sdpa cudnn": Contender(sdpa("CUDNN_ATTENTION"), PLAIN)}


@dataclass
class Inputs:
    """q, k, v, gate and the gradient of the output."""

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor
    above: Tensor

    @classmethod
    def draw(
        cls,
        bench: Bench,
        shape: tuple[int, int, int, int],
        gate: float | None = None,
        queries: int | None = None,
    ) -> Inputs:
        """Random ones; `gate` is the sigmoid of all gates, None for different ones."""
        batch, heads, length, width = shape
        generator = torch.Generator(bench.device).manual_seed(0)
        dtype = torch.bfloat16 if bench.device.type == "cuda" else torch.float32

        def normal(*size: int) -> Tensor:
            return torch.randn(size, device=bench.device, generator=generator)

        q, k, v = (normal(batch, heads, length, width) for _ in range(3))
        q, k = (F.normalize(t, dim=-1) * width**0.5 for t in (q, k))
        if queries is not None:
            q = q[:, :, -queries:]
        gates = F.logsigmoid(2 * normal(*q.shape[:3]) + 2)
        if gate is not None:
            gates = torch.full_like(gates, math.log(gate))
        q, k, v = (t.to(dtype).contiguous().requires_grad_() for t in (q, k, v))
        return cls(q, k, v, gates.requires_grad_(), normal(*q.shape).to(dtype))

    @property
    def leaves(self) -> list[Tensor]:
        """What has a gradient."""
        return [self.q, self.k, self.v, self.gate]

    @torch.no_grad()
    def density(self) -> float:
        """The share of the keys it sees that a query keeps, counted over a few heads."""
        q, k, v, gate = (t[:1, :COUNTED] for t in self.leaves)
        parts = threshold_relative_attention(q, k, v, gate, normalised=True, return_parts=True)
        queries, keys = q.shape[2], k.shape[2]
        seen = q.shape[1] * sum(range(keys - queries + 1, keys + 1))
        return parts.kept.sum().item() / seen

    def description(self) -> str:
        """The spread of the gates, and the share of keys that is kept."""
        gates = self.gate.detach().exp().flatten()[:: max(1, self.gate.numel() // 2**20)]
        shares = torch.tensor([0.05, 0.5, 0.95], device=gates.device)
        low, middle, high = gates.quantile(shares).tolist()
        spread = f"gates {low:.3g} {middle:.3g} {high:.3g} (5, 50, 95 %)"
        if low == high:
            spread = f"all gates {middle:.3g}"
        return f"{spread}, density {self.density():.2f}"

    def side(self, contender: Contender, backward: bool) -> Side:
        """A run of some attention, with its backward pass or without."""
        attend, leaves = contender.attend, self.leaves[: len(contender.truth.of_queries)]
        if not backward:
            detached = [t.detach() for t in leaves]
            return lambda: attend(*detached)
        return lambda: torch.autograd.grad(attend(*leaves), leaves, self.above)

    def error(self, contender: Contender, backward: bool) -> float:
        """How far the last queries of the first head are from the truth."""
        attend, truth = contender
        queries = min(CHECKED, self.q.shape[2])
        above = torch.zeros_like(self.above)
        above[:1, :1, -queries:] = self.above[:1, :1, -queries:]
        leaves = self.leaves[: len(truth.of_queries)]
        if not backward:
            leaves = [t.detach() for t in leaves]
        out = attend(*leaves)
        exact = [
            t[:1, :1, -queries if of_query else 0 :].detach().double().requires_grad_()
            for t, of_query in zip(leaves, truth.of_queries, strict=True)
        ]
        exact_out = truth.attend(*exact)
        pairs = [(out[:1, :1, -queries:], exact_out)]
        if backward:
            gradients = torch.autograd.grad(out, leaves, above)
            right = torch.autograd.grad(exact_out, exact, above[:1, :1, -queries:].double())
            pairs += [(a[:1, :1, -b.shape[2] :], b) for a, b in zip(gradients, right, strict=True)]
        return max(((a.double() - b).norm() / b.norm()).item() for a, b in pairs)

    def errors(self, contenders: Mapping[str, Contender], backward: bool) -> dict[str, float]:
        """The error of each that can run; why another cannot is said when it is timed."""
        errors = {}
        for name, contender in contenders.items():
            with suppress(*FAILURES):
                errors[name] = self.error(contender, backward)
        return errors

    def measured(
        self, contenders: Mapping[str, Contender], backward: bool
    ) -> tuple[dict[str, Side], dict[str, float]]:
        """The runs of contenders to be timed, and their errors."""
        sides = {name: self.side(contender, backward) for name, contender in contenders.items()}
        return sides, self.errors(contenders, backward)
