"""What a call of a model refuses: each error names the argument, the value and what is right."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import outlast
from outlast.errors import OutlastError

TASK = outlast.task("parity(length=4)")
MODEL = outlast.model("lstm > attention(heads=2) @ 4", TASK, seed=0)
TOKENS = torch.zeros(2, 3, dtype=torch.long)
STATE = MODEL(TOKENS)[1]
SMALLER = outlast.model("lstm @ 4", TASK, seed=0)(TOKENS)[1]
WRONG: dict[str, tuple[Any, ...]] = {
    "tokens": (
        *(None, 3, "01", [[0, 1]], TOKENS.numpy(), TOKENS[0], TOKENS[None], TOKENS[:0]),
        *(TOKENS[:, :0], TOKENS.float(), TOKENS.bool(), TOKENS.short(), TOKENS.byte()),
        *(TOKENS + 99, TOKENS - 1, TOKENS.to("meta"), TOKENS.to_sparse()),
    ),
    "state": (
        *(3, "state", [], (), STATE[:1], (*STATE, None), SMALLER, {}, TOKENS, (None, "3")),
        *(MODEL(TOKENS[:1])[1], ("a", "b"), [[1.0], None]),
    ),
    "positions": (
        *(3, [0, 1, 2], np.arange(3), torch.arange(2), torch.arange(3.0), torch.arange(3)[None]),
        *(torch.tensor([2, 1, 0]), torch.tensor([0, 0, 1]), torch.tensor([-1, 0, 1])),
        torch.arange(3, device="meta"),
    ),
    "key": (
        *(3, True, "key", torch.tensor(3.0), torch.tensor([3]), torch.tensor(3).int()),
        torch.tensor(3, device="meta"),
    ),
}
CASES = [(name, value) for name, values in WRONG.items() for value in values]


@pytest.mark.parametrize(("name", "value"), CASES, ids=lambda value: repr(value)[:30])
def test_misuse_of_a_call_names_the_argument(name: str, value: Any) -> None:
    arguments: dict[str, Any] = {"tokens": TOKENS, name: value}
    with pytest.raises(OutlastError, match=f"^{name}=.*: expected") as error:
        MODEL(**arguments)
    assert len(str(error.value)) < 300


def test_tokens_out_of_the_vocabulary_are_named() -> None:
    last = TASK.vocabulary - 1
    with pytest.raises(OutlastError, match=rf"^tokens=99: expected whole numbers from 0 to {last}"):
        MODEL(torch.tensor([[0, 99]]))
    with pytest.raises(OutlastError, match=r"^tokens=-1: expected"):
        MODEL(torch.tensor([[0, -1]]))


@pytest.mark.parametrize("tokens", [None, 0, -1, True, 2.5, "3", math.nan, 10**400, [3]], ids=str)
def test_positions_of_no_number_of_tokens_are_refused(tokens: Any) -> None:
    with pytest.raises(OutlastError, match=r"^tokens=.*: expected a whole number from 1"):
        MODEL.positions(tokens)


@pytest.mark.parametrize("setter", ["set_gate", "set_upstream_grad"])
@pytest.mark.parametrize(
    "value",
    [None, True, "1", -0.5, math.nan, math.inf, 10**400, 1e38, [1.0], torch.ones(()), 1j],
    ids=str,
)
def test_gate_that_is_no_number_is_refused_and_stays(setter: str, value: Any) -> None:
    sublayer = outlast.model("lstm @ 4", TASK).sublayers()[0]
    with pytest.raises(OutlastError, match=r"^value=.*: expected a number from 0"):
        getattr(sublayer, setter)(value)
    assert (sublayer.gate.item(), sublayer.upstream_grad.item()) == (1.0, 1.0)


def test_tokens_of_int32_and_a_list_of_states_are_taken() -> None:
    logits, _ = MODEL(TOKENS, STATE)
    assert torch.equal(MODEL(TOKENS.int(), list(STATE))[0], logits)
