"""Drawn inputs of Threshold Relative Attention, on the reference and the CPU path.

Sound inputs give what explicit scores in float64 give, gradients included. What a query may not see
does not reach it, whatever it holds. Wrong inputs end in an error that names the argument.

The seed is fixed, and the calls are few. `FUZZ_SEED` sets another seed; `FUZZ_SECONDS` goes on for
that long.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from api_limits import LIMIT, SECONDS, SEED, TooSlow, time_limit
from torch import Tensor
from tra_inputs import TENSORS, WRONG, drawn_call, places

import outlast
from outlast.errors import OutlastError
from outlast.kernels.tra import Parts

pytestmark = pytest.mark.filterwarnings("ignore:.*prototype")
Check = Callable[[random.Random], str | None]
tra = outlast.threshold_relative_attention
#: relative to the size of the whole
TOLERANCES = {
    torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2,
}  # fmt: skip
POISONS = (math.nan, math.inf, -math.inf, 1e38)


def fuzz(name: str, count: int, check: Check) -> None:
    """Draw calls until there are enough, and collect what is wrong with them."""
    chance, end, problems, calls = random.Random(f"{SEED} {name}"), time.monotonic(), [], 0
    end += SECONDS / 4
    while calls < count or time.monotonic() < end:
        state, calls = chance.getstate(), calls + 1
        try:
            with time_limit():
                text = check(chance)
        except TooSlow:
            text = f"took more than {LIMIT} s"
        except OutlastError as error:
            text = f"refused: {error}"
        except Exception as error:  # any other type is what is looked for
            text = f"raw {type(error).__name__}: {error}"
        if text is not None:
            chance.setstate(state)
            problems.append(f"call {calls}: {text}")
            check_again = drawn_call(chance)
            problems[-1] += f" ({written(check_again)})"
    assert not problems, f"{len(problems)} of {calls} calls:\n" + "\n".join(problems[:10])


def written(call: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}={tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else
        f"{name}={value!r}"[:60] for name, value in call.items()
    )  # fmt: skip


def difference(one: Tensor, two: Tensor, least: float) -> float:
    """The size of the difference against that of the whole, or `least`; infinite for NaN."""
    one, two = one.detach().double(), two.detach().double()
    if not torch.equal(one == -math.inf, two == -math.inf) or one.isnan().any():
        return math.inf
    one, two = (t.masked_fill(t == -math.inf, 0.0) for t in (one, two))
    return ((one - two).norm() / max(two.norm().item(), least)).item()


def with_gradients(call: dict[str, Any]) -> tuple[Parts, tuple[Tensor, ...]]:
    leaves = {name: call[name].detach().requires_grad_() for name in TENSORS}
    parts = tra(**call | leaves, return_parts=True)
    ramp = torch.arange(parts.out.numel()).mul(0.7).sin().view(parts.out.shape)
    loss = (parts.out * ramp.bfloat16().to(parts.out)).sum()
    return parts, torch.autograd.grad(loss, [*leaves.values()])


def as_float64(call: dict[str, Any]) -> dict[str, Any]:
    wide = {name: call[name].double() for name in TENSORS}
    return call | wide | {"backend": "reference"}


def equals_explicit_scores(chance: random.Random) -> str | None:
    call = drawn_call(chance)
    truth, true_gradients = with_gradients(as_float64(call))
    names = ("out", "lse", *(f"the gradient of {name}" for name in TENSORS))
    # the same numbers in float32 too: they show what 16 bits would hide
    dtypes = {call["q"].dtype, torch.promote_types(call["q"].dtype, torch.float32)}
    for dtype in sorted(dtypes, key=str):
        typed = call | {name: call[name].to(dtype) for name in ("q", "k", "v")}
        parts, gradients = with_gradients(typed)
        if not torch.equal(parts.kept, truth.kept):
            return f"other keys are kept in {dtype}"
        # a gradient is a difference of terms of size 1, which 16 bits round first
        least = 1.0 if dtype.itemsize == 2 else 0.05
        ours, theirs = (parts.out, parts.lse, *gradients), (truth.out, truth.lse, *true_gradients)
        for name, one, two in zip(names, ours, theirs, strict=True):
            rounding = max(TOLERANCES[dtype], TOLERANCES[one.dtype])  # the gate is of float32
            if one.shape != two.shape or difference(one, two, least) > rounding:
                return f"{name} differs by {difference(one, two, least):.1e} in {dtype}"
        if not torch.equal(tra(**typed), parts.out):
            return "without parts the output is another one"
    return None


def keeps_out_what_is_not_seen(chance: random.Random) -> str | None:
    call = drawn_call(chance)
    sees, padding = places(call)
    keys = call["k"].shape[2]
    first = chance.randrange(keys)
    spoiled = (torch.arange(keys) >= first).expand_as(padding)
    if padding.any() and chance.random() < 0.5:
        spoiled = padding
    value = chance.choice(POISONS)
    if call["k"].dtype == torch.float16 and value == 1e38:
        value = 6e4
    changed = dict(call)
    for name in chance.choice((["k"], ["v"], ["k", "v"])):
        changed[name] = call[name].masked_fill(spoiled[:, None, :, None], value)
    untouched = ~(sees & spoiled[:, None]).any(-1)  # (b, tq)
    before, after = (tra(**arguments, return_parts=True) for arguments in (call, changed))
    for name, one, two in zip(Parts._fields, before, after, strict=True):
        rows = untouched[:, None].expand(one.shape[:3])
        # up to rounding: other strides may mean another order of sums
        if not torch.allclose(one[rows], two[rows], rtol=1e-5, atol=1e-6):
            return f"{value} in keys from {first} reaches {name} of queries that do not see them"
    return None


def refuses_what_is_wrong(chance: random.Random) -> str | None:
    call = drawn_call(chance)
    name = chance.choice([*WRONG])
    call[name] = chance.choice(WRONG[name])(call)
    try:
        tra(**call)
    except OutlastError as error:
        others = TENSORS if name in TENSORS else (name,)  # the first that does not fit is named
        named = any(re.match(rf"{other}=", str(error)) for other in others)
        return None if named and len(str(error)) < 400 else f"{name}: the error says {error}"
    return f"accepted: {written({name: call[name]})}"


def works_on_the_device_meta(chance: random.Random) -> str | None:
    call = drawn_call(chance)
    meta = {n: v.to("meta") if isinstance(v, Tensor) else v for n, v in call.items()}
    if meta.get("lengths") is None:
        meta.pop("lengths", None)
    out = tra(**meta)
    return None if out.is_meta and out.shape == call["q"].shape else "another shape"


@pytest.mark.parametrize(
    ("check", "count"),
    [
        (equals_explicit_scores, 150),
        (keeps_out_what_is_not_seen, 250),
        (refuses_what_is_wrong, 400),
        (works_on_the_device_meta, 60),
    ],
    ids=["truth", "unseen", "wrong", "meta"],
)
def test_drawn_inputs_of_threshold_relative_attention(check: Check, count: int) -> None:
    fuzz(check.__name__, count, check)
