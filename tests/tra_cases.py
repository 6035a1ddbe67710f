"""Inputs for Threshold Relative Attention whose scores are exact in every precision.

A key whose score lies at the threshold's edge may fall on either side by rounding, and then every
count to its left differs. So q and k are drawn from a coarse grid: their products and sums need
few bits, and every back end and type gets the same scores, to the last one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from outlast import threshold_relative_attention
from outlast.kernels.tra import reference
from outlast.kernels.tra.checks import check, real_keys


@dataclass(frozen=True)
class Case:
    """Shapes, and what the op is told; `gate` None draws one for every query."""

    queries: int = 33
    keys: int = 33
    width: int = 16
    batch: int = 1
    heads: int = 1
    key_heads: int = 1
    gate: float | None = None
    signs: bool = False  # entries of +-1: a root mean square of 1
    one: bool = False  # every query keeps exactly one key, some other each
    told: dict[str, Any] = field(default_factory=dict)

    def inputs(self, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> list[Tensor]:
        """q, k, v and gate."""
        chance = torch.Generator().manual_seed(seed)

        def grid(*shape: int) -> Tensor:
            steps = torch.randint(0, 2 if self.signs else 9, shape, generator=chance)
            return 2.0 * steps - 1 if self.signs else steps / 4 - 1

        q = grid(self.batch, self.heads, self.queries, self.width)
        k = grid(self.batch, self.key_heads, self.keys, self.width)
        if (
            self.one
        ):  # a query has one entry, for a key that it sees and that alone is above 0 there
            places = torch.arange(self.queries) * 5 % torch.arange(1, self.queries + 1)
            q = torch.eye(self.width)[places % self.width].expand_as(q)
            k = 2 * torch.eye(self.keys, self.width).expand_as(k) - 1
        v = torch.randn(k.shape, generator=chance)
        gate = torch.nn.functional.logsigmoid(torch.randn(q.shape[:3], generator=chance) * 2 + 1)
        if self.gate is not None:
            gate = torch.full_like(gate, self.gate)
        return [*(t.to(device, dtype) for t in (q, k, v)), gate.to(device)]

    def run(self, inputs: list[Tensor], backend: str | None, **more: Any) -> list[Tensor]:
        """Output, log-sum-exp and kept keys, then the gradients of all four inputs."""
        leaves = [t.detach().requires_grad_() for t in inputs]
        told = {
            k: v.to(leaves[0].device) if isinstance(v, Tensor) else v for k, v in self.told.items()
        }
        parts = threshold_relative_attention(
            *leaves, **told | more, backend=backend, return_parts=True
        )
        return [*parts, *_gradients(parts.out, parts.lse, leaves)]

    def truth(self, inputs: list[Tensor]) -> list[Tensor]:
        """The same from explicit scores in float64, with torch's own gradients."""
        leaves = [t.detach().cpu().double().requires_grad_() for t in inputs]
        told = dict(self.told)
        start, stop = real_keys(told.get("lengths"), told.get("padding", "right"), leaves[1])
        how = check(
            *leaves, told.get("threshold", 0.0), told.get("scale"), told.get("offset"), False, None
        )
        out, lse, kept = reference.attend(*leaves, start, stop, how)
        return [out, lse, kept, *_gradients(out, lse, leaves)]


def _gradients(out: Tensor, lse: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    """Of a fixed weighing of every entry of the output and of the finite log-sum-exps."""
    ramp = torch.arange(out.numel(), dtype=torch.float64).mul(0.7).sin().view(out.shape)
    ramp = ramp.to(torch.bfloat16).to(out)
    finite = lse.masked_fill(lse == -math.inf, 0.0)
    return torch.autograd.grad((out * ramp).sum() + 0.5 * finite.sum(), leaves)


NAMES = ("out", "lse", "kept", "dq", "dk", "dv", "d_gate")


def agree(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    """Counts exactly; the rest by the size of the difference against the size of the whole."""
    for name, one, two in zip(NAMES, found, wanted, strict=True):
        one = one.detach().cpu()
        assert not one.isnan().any(), f"{name} has NaN"
        if name == "kept":
            assert torch.equal(one, two), f"{(one != two).sum()} counts differ"
            continue
        assert torch.equal(one == -math.inf, two == -math.inf), f"{name} is infinite elsewhere"
        one, two = (t.detach().double().nan_to_num(neginf=0.0) for t in (one, two))
        error, size = (one - two).norm().item(), max(two.norm().item(), 1e-3)
        assert error <= tolerance * size, f"{name} is off by {error / size:.1e}"
    empty = wanted[2] == 0
    assert (found[0].detach().cpu()[empty] == 0).all(), "a row without a kept key is not 0"


PLAIN = Case()
CASES = {
    "plain": PLAIN,
    "length 1": Case(1, 1),
    "length 2": Case(2, 2),
    "tile - 1": Case(31, 31),
    "tile": Case(32, 32),
    "tile + 1": Case(65, 65),
    "no key kept": Case(told={"threshold": 1e6}),
    "one kept": Case(one=True),
    "few kept": Case(40, 40, told={"threshold": 2.6}),
    "few kept, looked for": Case(70, 70, told={"threshold": 2.6, "sparse": True}),
    "all kept": Case(told={"threshold": -math.inf}),
    "a threshold below 0": Case(told={"threshold": -0.3}),
    "constant gate": Case(gate=-0.25),
    "gate of minus infinity": Case(gate=-math.inf),
    "enormous gate": Case(gate=-1e20),
    "gate 0": Case(gate=0.0),
    "normalised": Case(signs=True, told={"normalised": True}),
    "normalised, gate of minus infinity": Case(
        signs=True, gate=-math.inf, told={"normalised": True}
    ),
    "normalised, all kept": Case(signs=True, told={"normalised": True, "threshold": -math.inf}),
    "padding after": Case(batch=2, told={"lengths": torch.tensor([20, 0])}),
    "padding before": Case(
        40, 40, batch=2, told={"lengths": torch.tensor([20, 37]), "padding": "left"}
    ),
    "grouped heads": Case(heads=4, key_heads=2),
    "after a cache": Case(7, 40),
    "a place of its own": Case(20, 40, told={"offset": 11}),
    "beyond the keys": Case(40, 20, told={"offset": 9}),
    "before the keys": Case(40, 20, told={"offset": -30}),
    "another scale": Case(told={"scale": 0.7}),
    "width no power of two": Case(width=24),
}


def with_tiles(case: Case, width: int) -> Case:
    """The same at another head width."""
    return replace(case, width=width)
