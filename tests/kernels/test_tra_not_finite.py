"""TRA with numbers that are not finite: they reach only the queries and keys that they concern."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import outlast
from outlast.kernels.tra import cpu, reference
from outlast.kernels.tra.checks import check
from tra_cases import CASES, Case

tra = outlast.threshold_relative_attention
Q, K, V, GATE = range(4)
values = pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
backends = pytest.mark.parametrize("backend", ["cpu", "reference", "autograd"])
#: the first key that is broken, by case
PLACES = {"plain": 20, "grouped heads": 9, "after a cache": 36, "a place of its own": 17}


def results(
    case: Case, inputs: list[Tensor], backend: str, weighing: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """Output, log-sum-exp and kept keys, then the gradients of all four inputs."""
    leaves = [t.detach().requires_grad_() for t in inputs]
    if backend == "autograd":
        how = check(*leaves, 0.0, None, case.told.get("offset"), False, None)
        out, lse, kept = reference.attend(*leaves, None, None, how)
    else:
        out, lse, kept = tra(*leaves, **case.told, backend=backend, return_parts=True)
    gradients = torch.autograd.grad([out, lse], leaves, [weighing(out), weighing(lse)])
    return [out, lse, kept, *gradients]


def ramp(t: Tensor) -> Tensor:
    return torch.arange(t.numel()).sin().view(t.shape).to(t.dtype)


def put(tensor: Tensor, value: float, places: slice | int | Tensor) -> Tensor:
    """The tensor (b, h, n, ...) with a value in one entry of every one of some rows."""
    other = tensor.clone()
    (other if tensor.dim() == 3 else other[..., 1])[:, :, places] = value
    return other


@pytest.fixture(params=["one block", "many blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "many blocks":
        monkeypatch.setattr(cpu, "AT_ONCE", 64)


@values
@backends
@pytest.mark.parametrize("broken", [(K,), (V,), (K, V)], ids=["key", "value", "both"])
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.usefixtures("blocks")
def test_nothing_ahead_of_a_query_reaches_it(
    name: str, broken: tuple[int, ...], backend: str, value: float
) -> None:
    case, first = CASES[name], PLACES[name]
    sound = case.inputs(torch.float32)
    spoiled = [put(t, value, slice(first, None)) if i in broken else t for i, t in enumerate(sound)]
    before = slice(0, first - case.told.get("offset", case.keys - case.queries))
    assert 0 < before.stop < case.queries
    wanted, found = (results(case, inputs, backend, ramp) for inputs in (sound, spoiled))
    for index in (0, 1, 2, 3 + Q, 3 + GATE):
        assert torch.equal(found[index][:, :, before], wanted[index][:, :, before])


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", ["padding after", "padding before"])
@pytest.mark.usefixtures("blocks")
def test_padding_may_hold_anything(name: str, backend: str, value: float) -> None:
    """Also in queries, gates and the gradients that come from above."""
    case = replace(CASES[name], heads=2)
    sound = case.inputs(torch.float32)
    place, lengths = torch.arange(case.keys), case.told["lengths"][:, None]
    after = name == "padding after"
    padding = place >= lengths if after else place < case.keys - lengths

    def spoil(t: Tensor) -> Tensor:
        there = padding[:, None].expand(t.shape[:3])
        return t.masked_fill(there if t.dim() == 3 else there[..., None], value)

    def from_above(t: Tensor) -> Tensor:
        return spoil(ramp(t)) if after else ramp(t)

    spoiled = [t if i in (Q, GATE) and not after else spoil(t) for i, t in enumerate(sound)]
    wanted = results(case, sound, backend, ramp)
    found = results(case, spoiled, backend, from_above)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


@values
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("broken", [(K,), (V,), (K, V)], ids=["key", "value", "both"])
@pytest.mark.usefixtures("blocks")
def test_real_keys_do_not_reach_a_query_that_is_padding(
    broken: tuple[int, ...], backend: str, value: float
) -> None:
    case = Case(batch=2, heads=2, told={"lengths": torch.tensor([20, 7])})
    inputs = case.inputs(torch.float32)
    spoiled = [put(t, value, slice(3, None)) if i in broken else t for i, t in enumerate(inputs)]
    out, lse, kept, dq, *_, d_gate = results(case, spoiled, backend, ramp)
    for row, length in enumerate((20, 7)):
        for tensor in (out, kept, dq, d_gate):
            assert (tensor[row, :, length:] == 0).all()
        assert (lse[row, :, length:] == -math.inf).all()
        assert torch.equal(out[row, :, :3], tra(*inputs, **case.told, backend=backend)[row, :, :3])


@pytest.mark.parametrize("value", [math.nan, -math.inf])
@pytest.mark.parametrize("broken", [Q, GATE, None], ids=["query", "gate", "gradient"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.usefixtures("blocks")
def test_broken_query_reaches_no_gradient_of_a_later_key(
    backend: str, broken: int | None, value: float
) -> None:
    case, at = CASES["plain"], 20
    sound = case.inputs(torch.float32)
    spoiled = [put(t, value, at) if i == broken else t for i, t in enumerate(sound)]

    def from_above(t: Tensor) -> Tensor:
        return put(ramp(t), value, at) if broken is None else ramp(t)

    wanted = results(case, sound, backend, ramp)
    found = results(case, spoiled, backend, from_above)
    for index in (0, 1, 2, 3 + Q, 3 + GATE):
        for part in (slice(0, at), slice(at + 1, None)):
            assert torch.equal(found[index][:, :, part], wanted[index][:, :, part])
    for index in (3 + K, 3 + V):
        later = slice(at + 1, None)
        assert torch.equal(found[index][:, :, later], wanted[index][:, :, later])


@pytest.mark.parametrize("broken", [Q, K, V], ids=["query", "key", "value"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_nan_that_a_query_sees_is_not_hidden(backend: str, broken: int) -> None:
    case = Case(told={"threshold": -math.inf})  # every value has a weight
    inputs = case.inputs(torch.float32)
    inputs[broken] = put(inputs[broken], math.nan, 20)
    out = tra(*inputs, **case.told, backend=backend)
    seen = out[:, :, 20:21] if broken == Q else out[:, :, 20:]
    assert (seen[..., 1] if broken == V else seen).isnan().all()
