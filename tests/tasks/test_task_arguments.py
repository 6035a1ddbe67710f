"""What tasks, batches and draws refuse: each error names the argument, the value, what is right."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import outlast
from outlast.errors import OutlastError
from outlast.tasks import draw, sampling

TASK = outlast.task("parity(length=4)")


def chance() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def stream(**changed: Any) -> Any:
    return TASK.stream(**{"batch": 2, **changed})  # the error comes at the call


def sample(**changed: Any) -> Any:
    return TASK.sample(**{"length": 4, "batch": 2, "generator": chance(), **changed})


def each(**changed: Any) -> Any:
    return TASK.sample_each(**{"length": 4, "batch": 2, "generators": [chance()], **changed})


def randint(**changed: Any) -> Any:
    arguments = {"low": 0, "high": 3, "shape": (2,), "generator": chance(), **changed}
    return sampling.randint(**arguments)


def distinct(**changed: Any) -> Any:
    arguments = {"batch": 2, "choices": 5, "count": 2, "generator": chance(), **changed}
    return sampling.distinct(**arguments)


BATCH = sample()
NOT_WHOLE = (None, True, "2", 2.5, math.nan, -1, [2], 10**400, np.zeros(2), torch.tensor(True))
NOT_LENGTHS = (True, "4", 2.0, math.nan, (4,), (1, 2, 3), (None, 2), {}, 10**400, torch.zeros(2))
NOT_GENERATORS = (None, 0, torch.Generator, "cpu")
#: a function, an argument of it, and values that it refuses
MISUSES: list[tuple[Callable[..., Any], str, tuple[Any, ...]]] = [
    (stream, "batch", (0, *NOT_WHOLE)),
    (stream, "length", NOT_LENGTHS),
    (stream, "seed", (2**64, *NOT_WHOLE)),
    (stream, "device", (None, "gpu", "meta", 1.5, [])),
    (sample, "batch", (0, *NOT_WHOLE)),
    (sample, "length", (None, 0, -1, (4, 1), (0, 2), *NOT_LENGTHS)),
    (sample, "generator", NOT_GENERATORS),
    (each, "batch", (0, *NOT_WHOLE)),
    (each, "length", (None, 0, *NOT_LENGTHS)),
    (each, "generators", (None, [], 3, [None], [chance(), 3], chance())),
    (TASK.word, "token", (99, *NOT_WHOLE)),
    (
        TASK.solve,
        "inputs",
        ("abc", b"01", None, 1, [77], [-1], [True], ["1"], [1.0], [[1]], {1: 1}),
    ),
    (TASK.solve, "inputs", (BATCH.inputs, BATCH.inputs[0].float(), torch.tensor(1), np.zeros(2))),
    (TASK.solve, "inputs", (torch.zeros(2, dtype=torch.int64, device="meta"),)),
    (TASK.chance_level, "part", (None, "stat", 0, ["state"], np.zeros(2))),
    (TASK.chance_levels, "sequences", (0, *NOT_WHOLE)),
    (BATCH.to, "device", (None, "gpu", 1.5, torch.float32, torch.zeros(2), int)),
    (BATCH.rows, "index", (None, 0, [0], True, ..., torch.tensor([2]), torch.tensor(0))),
    (BATCH.rows, "index", (torch.zeros(2), torch.ones(3) > 0, torch.tensor([0], device="meta"))),
    (BATCH.map, "change", (None, 3, "clone")),
    (lambda task: draw(task, BATCH), "task", (None, "parity", type(TASK))),
    (lambda batch: draw(TASK, batch), "batch", (None, BATCH.inputs, 3)),
    (lambda row: draw(TASK, BATCH, row), "row", (2, *NOT_WHOLE)),
    (randint, "low", (None, True, 0.5, "0", math.nan, 10**400)),
    (randint, "high", (0, -3, None, True, 2.5, "3", 10**400)),
    (randint, "shape", (None, 3, "23", (-1,), (1.5,), (True,))),
    (randint, "generator", NOT_GENERATORS),
    (lambda **shape: sampling.rand(**shape, generator=chance()), "shape", (None, 3, (-1,))),
    (lambda generator: sampling.rand((2,), generator), "generator", NOT_GENERATORS),
    (
        lambda limits: sampling.randint_below(limits, chance()),
        "limits",
        (None, 3, torch.zeros(2), torch.tensor([3], device="meta"), torch.tensor([0])),
    ),
    (
        lambda probability: sampling.bernoulli(probability, (2,), chance()),
        "probability",
        (None, True, -0.5, 1.5, math.nan, "0.5", torch.tensor(0.5)),
    ),
    (distinct, "batch", NOT_WHOLE),
    (distinct, "choices", NOT_WHOLE),
    (distinct, "count", (6, *NOT_WHOLE)),
    (distinct, "generator", NOT_GENERATORS),
]
CASES = [(call, name, value) for call, name, values in MISUSES for value in values]


@pytest.mark.parametrize(
    ("call", "name", "value"),
    CASES,
    ids=[f"{i}: {name}={value!r}"[:40] for i, (_, name, value) in enumerate(CASES)],
)
def test_misuse_is_an_error_that_names_the_argument(
    call: Callable[..., Any], name: str, value: Any
) -> None:
    with pytest.raises(OutlastError, match=f"^{name}=.*: expected") as error:
        call(**{name: value})
    assert len(str(error.value)) < 300


def test_solve_takes_a_row_of_any_kind() -> None:
    row = BATCH.inputs[0]
    for inputs in (tuple(row.tolist()), row, row.numpy(), list(row)):
        assert TASK.solve(inputs) == TASK.solve(row.tolist())


def test_numbers_of_numpy_and_torch_are_taken() -> None:
    plain = next(TASK.stream(batch=3, length=(2, 4), seed=5))
    pair = [np.int8(2), torch.tensor(4)]
    other = next(TASK.stream(batch=np.int64(3), length=pair, seed=np.uint8(5)))  # type: ignore[arg-type]
    assert torch.equal(plain.inputs, other.inputs)
    assert torch.equal(plain.rows(torch.tensor([0, 2])).inputs, plain.inputs[[0, 2]])
    mask = torch.tensor([True, False, True])
    assert torch.equal(plain.rows(mask).targets, plain.targets[mask])
