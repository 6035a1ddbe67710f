"""The methods of tasks, batches, models and handles, and the draws for authors of tasks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from api_calls import DEVICE, HYBRID, MOST, WIDE, Call, is_text, model, net, task
from api_values import Accepts, as_int, either, instance, nothing, number, sound, whole
from torch import Tensor

import outlast
from outlast.kernels.tra import Parts, has_kernel, merge
from outlast.tasks import Batch, Task, draw, sampling


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def batch() -> Batch:
    return task().sample(4, 2, generator())


def is_length(value: Any) -> bool:
    pair = value if isinstance(value, tuple | list) else (value, value)
    numbers = [as_int(number) for number in pair]
    return len(numbers) == 2 and None not in numbers and 1 <= numbers[0] <= numbers[1] <= MOST


def is_shape(value: Any) -> bool:
    sizes = value if isinstance(value, tuple | list | range) else [None]
    return all(whole(0, WIDE)(size) for size in sizes)


def is_plain(value: Any) -> bool:
    is_dense = isinstance(value, Tensor) and not value.is_nested and value.layout == torch.strided
    return is_dense and not value.is_meta


def are_rows(value: Any) -> bool:
    if not is_plain(value) or value.dim() != 1:
        return False
    if value.dtype == torch.bool:
        return len(value) == 2
    is_whole = value.dtype in (torch.int64, torch.int32)
    return is_whole and bool(((value >= -2) & (value < 2)).all())


def are_limits(value: Any) -> bool:
    return is_plain(value) and value.dtype in (torch.int64, torch.int32)


def are_generators(value: Any) -> bool:
    listed = isinstance(value, list | tuple) and len(value) > 0
    return listed and all(isinstance(item, torch.Generator) for item in value)


LENGTH = sound(
    *(4, (1, 4), [2, 3], lambda: np.int8(2)), odd=((4, 1), (0, 3), 0, 2.0), accepts=is_length,
    large=False,
)  # fmt: skip
BATCH = sound(1, 3, lambda: np.int16(2), odd=(0, -2), accepts=whole(1, MOST), large=False)
SHAPE = sound((2, 3), [4], (), odd=((-1,), (1.5,), "23", 3), accepts=is_shape, large=False)
GENERATOR = sound(lambda: generator(), accepts=instance(torch.Generator))

TASKS: dict[str, Call] = {
    "Task.stream": Call(
        lambda **arguments: next(task().stream(**arguments)),
        {
            "batch": BATCH,
            "length": sound(None, *LENGTH.sound, accepts=either(nothing, is_length), large=False),
            "seed": sound(0, 2**63, accepts=whole(0, 2**64 - 1)),
            "device": DEVICE,
        },
        lambda drawn: bool((drawn.inputs < task().vocabulary).all()),
    ),
    "Task.sample": Call(
        lambda **arguments: task().sample(**arguments),
        {"length": LENGTH, "batch": BATCH, "generator": GENERATOR},
        lambda drawn: drawn.inputs.shape == drawn.targets.shape,
    ),
    "Task.sample_each": Call(
        lambda **arguments: task().sample_each(**arguments),
        {
            "length": LENGTH,
            "batch": BATCH,
            "generators": sound(
                lambda: [generator(), generator()], lambda: (generator(),),
                odd=(lambda: [generator(), 3],), accepts=are_generators,
            ),
        },
        lambda drawn: drawn.inputs.dim() == 3,
    ),
    "Task.word": Call(
        lambda token: task().word(token),
        {"token": sound(0, 1, 2, odd=(99,), accepts=lambda v: whole(0, task().vocabulary - 1)(v))},
        lambda word: isinstance(word, str),
    ),
    "Task.chance_level": Call(
        lambda part: task().chance_level(part),
        {"part": sound("state", "running", odd=("stat",), accepts=is_text("state", "running"))},
        lambda share: 0 < share < 1,
    ),
    "Task.chance_levels": Call(
        lambda sequences: task().chance_levels(sequences), {"sequences": BATCH},
        lambda levels: all(0 < share < 1 for share in levels.values()),
    ),
    "Batch.to": Call(lambda device: batch().to(device), {"device": DEVICE}),
    "Batch.rows": Call(
        lambda index: batch().rows(index),
        {
            "index": sound(
                lambda: torch.tensor([0, 1]), lambda: torch.tensor([True, False]),
                odd=(lambda: torch.tensor([9]), lambda: torch.tensor(1), lambda: torch.ones(3) > 0),
                accepts=are_rows,
            )
        },
    ),
    "Batch.map": Call(
        lambda change: batch().map(change),
        {"change": sound(torch.clone, accepts=callable, large=False)},
        costly=True,
    ),
    "draw": Call(
        draw,
        {
            "task": sound(lambda: task(), accepts=instance(Task), odd=("parity", Task)),
            "batch": sound(lambda: batch(), accepts=instance(Batch)),
            "row": sound(0, 1, odd=(2, -1), accepts=whole(0, 1)),
        },
        lambda text: text.startswith("tokens"),
    ),
}  # fmt: skip

DRAWS: dict[str, Call] = {
    "randint": Call(
        sampling.randint,
        {
            "low": sound(0, -3, odd=(9,), accepts=whole(-WIDE, WIDE)),
            "high": sound(3, odd=(0,), accepts=whole(-WIDE, WIDE)),
            "shape": SHAPE,
            "generator": GENERATOR,
        },
        clash=lambda arguments: as_int(arguments["low"]) >= as_int(arguments["high"]),
    ),
    "rand": Call(sampling.rand, {"shape": SHAPE, "generator": GENERATOR}),
    "randint_below": Call(
        sampling.randint_below,
        {
            "limits": sound(lambda: torch.tensor([2, 3]), accepts=are_limits, large=False),
            "generator": GENERATOR,
        },
        clash=lambda arguments: bool((arguments["limits"] < 1).any()),
    ),
    "bernoulli": Call(
        sampling.bernoulli,
        {
            "probability": sound(0.5, 0, 1, odd=(2,), accepts=number(0, 1)),
            "shape": SHAPE,
            "generator": GENERATOR,
        },
    ),
    "distinct": Call(
        sampling.distinct,
        {
            "batch": sound(2, 0, accepts=whole(0, WIDE), large=False),
            "choices": sound(5, accepts=whole(0, WIDE), large=False),
            "count": sound(2, 5, accepts=whole(0, WIDE), large=False),
            "generator": GENERATOR,
        },
        clash=lambda arguments: as_int(arguments["count"]) > as_int(arguments["choices"]),
    ),
}


# ---- models --------------------------------------------------------------------------------------


def tokens(*shape: int, low: int = 0, high: int = 3, dtype: Any = torch.int64) -> Callable[[], Any]:
    return lambda: torch.randint(low, high, shape, generator=generator()).to(dtype)


def are_tokens(value: Any) -> bool:
    is_table = is_plain(value) and value.dim() == 2 and 0 not in value.shape
    is_whole = is_table and value.dtype in (torch.int64, torch.int32)
    return is_whole and bool(((value >= 0) & (value < task().vocabulary)).all())


def are_positions(value: Any) -> bool:
    is_row = is_plain(value) and value.dim() == 1 and value.dtype in (torch.int64, torch.int32)
    return is_row and len(value) > 0 and bool(value[0] >= 0) and bool((value.diff() > 0).all())


def is_key(value: Any) -> bool:
    return is_plain(value) and value.dtype == torch.int64 and value.dim() == 0


def state(line: str = HYBRID, rows: int = 2) -> Callable[[], Any]:
    return lambda: outlast.model(line, task(), seed=0)(torch.zeros(rows, 2).long())[1]


def is_state(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], tuple)


def belongs_to_other_tokens(arguments: dict[str, Any]) -> bool:
    rows, columns = arguments["tokens"].shape
    positions, before = arguments["positions"], arguments["state"]
    other_rows = before is not None and before[0][0].shape[0] != rows
    return other_rows or (positions is not None and len(positions) != columns)


MODELS: dict[str, Call] = {
    "Model.forward": Call(
        lambda tokens, state, positions, key: model()(tokens, state, positions=positions, key=key),
        {
            "tokens": sound(
                tokens(2, 3), tokens(2, 1), tokens(2, 5, dtype=torch.int32), accepts=are_tokens,
                odd=(
                    *(tokens(2, 3, low=9, high=12), tokens(2, 3, low=-9, high=-3), tokens(3)),
                    *(tokens(2, 3, dtype=torch.float32), tokens(2, 3, dtype=torch.int16)),
                    *(tokens(0, 3), tokens(2, 0), tokens(1, 2, 3), tokens(2, 3, dtype=torch.bool)),
                    *(lambda: tokens(2, 3)().to("meta"), lambda: tokens(2, 3)().to_sparse()),
                    *(lambda: tokens(2, 3)().numpy(), lambda: tokens(2, 3)().tolist()),
                    lambda: tokens(5, 3)().T,
                ),
            ),
            "state": sound(
                None, state(), accepts=either(nothing, is_state),
                odd=(state("lstm @ 4"), lambda: state()()[:1], lambda: [None, 3], state(rows=5)),
            ),
            "positions": sound(
                None, lambda: torch.arange(3), lambda: torch.tensor([4, 7, 9]),
                accepts=either(nothing, are_positions),
                odd=(
                    lambda: torch.tensor([3, 2, 1]), lambda: torch.tensor([-1, 0, 1]),
                    lambda: torch.tensor([1, 1, 2]), lambda: torch.arange(3.0),
                ),
            ),
            "key": sound(None, lambda: torch.tensor(7), accepts=either(nothing, is_key)),
        },
        lambda result: bool(result[0].isfinite().all()),
        clash=belongs_to_other_tokens,
    ),
    "Model.positions": Call(
        lambda tokens: model().positions(tokens), {"tokens": sound(3, accepts=whole(1, MOST))}
    ),
    "Sublayer.set_gate": Call(
        lambda value: outlast.model(HYBRID, task(), seed=0).sublayers()[0].set_gate(value),
        {"value": sound(0, 1, 0.5, odd=(-1.0, 1e9), accepts=number(0, 1e4))},
    ),
    "Sublayer.set_upstream_grad": Call(
        lambda value: outlast.model(HYBRID, task(), seed=0).sublayers()[0].set_upstream_grad(value),
        {"value": sound(0, 1, 0.5, odd=(-1.0, 1e9), accepts=number(0, 1e4))},
    ),
}  # fmt: skip


# ---- handles and parts ---------------------------------------------------------------------------


def handle() -> Any:
    return outlast.delay(net(), "*.attn", switch="plateau")


def saved(steps: Any = 3, **changes: Any) -> Any:
    state = handle().state_dict()["state"]
    return {"steps": steps, "state": {**state, **changes}}


def is_loss(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "iuf"
    if isinstance(value, Tensor):
        is_number = is_plain(value) and value.numel() == 1 and not value.is_complex()
        return is_number and value.dtype != torch.bool
    is_nan = isinstance(value, float) and math.isnan(value)
    return is_nan or number(-math.inf, math.inf)(value)


def is_saved(value: Any) -> bool:
    return isinstance(value, dict) and value in (saved(), saved(switched=2), saved(loss=0.5))


def field(name: str, good: tuple[Any, ...], accepts: Accepts) -> Call:
    """`load_state_dict` with one field changed."""
    return Call(
        lambda **changes: handle().load_state_dict(saved(**changes)),
        {name: sound(*good, accepts=accepts)},
    )


def plain_whole(low: int, high: int) -> Accepts:
    return lambda value: type(value) is int and low <= value <= high


def parts(**changes: Any) -> Parts:
    kept = torch.ones(1, 1, 2, dtype=torch.int32)
    plain = Parts(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2), kept)
    return plain._replace(**changes)


def are_parts(value: Any) -> bool:
    return isinstance(value, Parts) and all(
        isinstance(tensor, Tensor) and tensor.dtype == plain.dtype
        and tensor.shape[:3] == plain.shape[:3] and tensor.dim() == plain.dim()
        for tensor, plain in zip(value, parts(), strict=True)
    )  # fmt: skip


PARTS = sound(
    lambda: parts(),
    accepts=are_parts,
    odd=(
        lambda: tuple(parts()), lambda: parts(out=None), lambda: parts(lse=torch.zeros(1, 1, 3)),
        lambda: parts(kept=torch.zeros(1, 1, 2)), lambda: parts(out=torch.zeros(1, 1, 2)),
        lambda: parts(out=torch.zeros(1, 1, 2, 3)), lambda: parts(lse=torch.zeros(2)),
    ),
)  # fmt: skip
OTHERS: dict[str, Call] = {
    "Delay.step": Call(
        lambda loss: handle().step(loss),
        {"loss": sound(1.0, 2, lambda: torch.tensor(0.5), accepts=is_loss, large=False)},
        lambda switched: switched is False,
    ),
    "Delay.load_state_dict": Call(
        lambda saved: handle().load_state_dict(saved),
        {
            "saved": sound(
                lambda: saved(), lambda: saved(switched=2), accepts=is_saved,
                odd=({}, {"steps": 3}, {"steps": 3, "state": {}}, {"steps": 3, "state": []}),
            )
        },
    ),
    "saved steps": field("steps", (3, 0), whole(0, 10**12)),
    "saved switched": field("switched", (None, 2), either(nothing, plain_whole(0, 3))),
    "saved since": field("since", (0, 2), plain_whole(0, 10**12)),
    "saved attempt": field("attempt", (0, 2), plain_whole(0, 10**12)),
    "saved trigger": field(
        "trigger", ({}, {"best": 0.5}),
        lambda v: isinstance(v, dict) and all(
            isinstance(k, str) and type(n) in (int, float) for k, n in v.items()
        ),
    ),
    "merge": Call(
        merge,
        {
            "left": PARTS,
            "right": PARTS,
            "gate": sound(
                lambda: -torch.ones(1, 1, 2), odd=(lambda: torch.ones(1, 2), lambda: None),
                accepts=lambda v: is_plain(v) and v.is_floating_point() and v.shape == (1, 1, 2),
            ),
        },
        lambda merged: bool(merged.out.isfinite().all()),
        clash=lambda arguments: arguments["left"].out.shape != arguments["right"].out.shape,
    ),
    "has_kernel": Call(
        has_kernel,
        {"q": sound(lambda: torch.zeros(1, 1, 2, 16), accepts=lambda v: isinstance(v, Tensor)
                    and not v.is_nested and v.layout == torch.strided)},
        lambda fused: fused is False,
    ),
}  # fmt: skip
METHOD_CALLS = TASKS | DRAWS | MODELS | OTHERS
