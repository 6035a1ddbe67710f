"""A model that looks at the cards it needs, and at nothing else, needs no other tokens."""

import copy
from typing import Any

import pytest
import torch

import outlast
from cards import QUERIES, Cards, solved_by_hand
from outlast.analysis.sequences import NothingToSeeError, Row
from outlast.analysis.token_filter import token_filter
from outlast.errors import SpecError

LINE = "lstm | (attention(nope, heads=2) > attention(nope, heads=2))"
#: of a row of eight cards, an = and two questions: all, the cards that are asked for, one card
SHARES = (1.0, QUERIES / 11, 1 / 11)


def recalled(rows: list[Row], **columns: object) -> list[float]:
    """The share of right answers by the share of tokens that is kept."""
    wanted = {"part": "recall", "length": 8, "ranking": "answers", **columns}
    found = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    assert [row["share"] for row in found] == list(SHARES)
    return [row["answers"] for row in found]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return token_filter(solved_by_hand(LINE), Cards(), (1, 2), 64, SHARES)


@pytest.mark.parametrize("masked", ["later", "all"])
def test_the_tokens_that_are_looked_at_suffice(rows: list[Row], masked: str) -> None:
    every, both, one = recalled(rows, masked=masked)
    assert every == both == 1
    assert 0.4 < one < 0.9  # the card of one of two questions, which may be the same


def test_the_recurrence_reads_every_token_still(rows: list[Row]) -> None:
    state = [row for row in rows if row["part"] == "state"]
    assert {row["answers"] for row in state} == {1}
    assert {row["unchanged"] for row in state} == {1}


def test_a_first_layer_that_looks_elsewhere_keeps_the_wrong_tokens() -> None:
    model = solved_by_hand(LINE)
    with torch.no_grad():
        first = model.sublayers()[1].mixer
        first.qkv.weight[: first.qkv.weight.shape[0] // 3].mul_(-1)
    rows = token_filter(model, Cards(), (2,), 64, SHARES)
    every, both, _ = recalled(rows, masked="later")
    assert every == 1
    assert both < 0.5


def test_a_model_with_one_attention_layer_has_no_later_ones() -> None:
    rows = token_filter(solved_by_hand(), Cards(), (2,), 16, SHARES)
    assert {row["masked"] for row in rows} == {"all"}
    assert recalled(rows)[:2] == [1, 1]


def test_all_tokens_of_rows_with_padding_are_all_that_is_needed() -> None:
    task = outlast.task("entangled_parity(keys=16, length=6)")
    model = outlast.model("2 x attention(alibi, heads=2) @ 8", task)
    rows = token_filter(model, task, (1,), 8, (1.0,))
    assert {row["unchanged"] for row in rows if row["part"] != "joint"} == {1}


def test_the_model_is_left_as_it_was() -> None:
    model = solved_by_hand(LINE).train()
    before = copy.deepcopy(model.state_dict())
    token_filter(model, Cards(), (1,), 4)
    assert model.training
    assert all(vars(m).get("hook") is None for m in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_bad_input_is_named() -> None:
    for shares in ((0,), (), "x", 0.5, ("x",)):
        accepted: Any = shares
        with pytest.raises(SpecError, match=r"shares=.*: expected a list of shares of the tokens"):
            token_filter(solved_by_hand(), Cards(), shares=accepted)
    task = outlast.task("parity")
    with pytest.raises(NothingToSeeError, match="expected a model with attention"):
        token_filter(outlast.model("lstm @ 8", task), task)
