"""How sharp a head is: heads whose weights are known."""

import json
import math

import pytest
import torch
from hand_built import build, task_of, untouched

import outlast
from outlast.analysis import sharpness as sharp
from outlast.analysis.sequences import Row, blocks, draw_rungs
from outlast.analysis.sharpness import MEASURES, law, measure, sharpness
from outlast.errors import SpecError

LADDER = (1, 3)


def row_of(rows: list[Row], multiple: float, head: int) -> Row:
    (row,) = (row for row in rows if (row["multiple"], row["head"]) == (multiple, head))
    return row


def test_a_head_that_copies_is_sharp_and_one_that_averages_is_not() -> None:
    task = task_of()
    rows = sharpness(build(task), task, LADDER, 50)
    for multiple, keys in ((1, 12), (3, 32)):
        copying, averaging = (row_of(rows, multiple, head) for head in (0, 1))
        assert copying["count"] == averaging["count"] == 50
        assert copying["keys"] == keys
        assert copying["weight"] == pytest.approx(1, abs=1e-6) == copying["law"]
        assert copying["entropy"] == pytest.approx(0, abs=1e-6)
        assert copying["above"] == 1
        assert averaging["weight"] == pytest.approx(1 / keys) == averaging["law"]
        assert averaging["weight_pair"] == pytest.approx(2 / keys)
        assert averaging["weight_after"] == pytest.approx(1 / keys)
        assert averaging["entropy"] == pytest.approx(math.log(keys))
        assert averaging["margin"] == 0
        assert averaging["above"] == averaging["kept"] == keys
        assert averaging["needed"] == pytest.approx(math.log(keys - 1))


def test_weights_follow_the_law_where_all_other_scores_are_equal() -> None:
    task = task_of()
    model = build(task, sharpness=0.4)
    for rung in draw_rungs(model, task, LADDER, 50):
        numbers = dict(zip(MEASURES, measure(model, task, rung.batch)["2.attention"], strict=True))
        keys, margin, weight = (numbers[name][:, 0] for name in ("keys", "margin", "weight"))
        torch.testing.assert_close(weight, law(keys, margin), rtol=1e-4, atol=0)
        assert margin.min() > 1
    rows = sharpness(model, task, LADDER, 50)
    near, far = (row_of(rows, multiple, 0) for multiple in LADDER)
    assert near["margin"] == pytest.approx(far["margin"], rel=0.3)
    assert near["weight"] > 1.5 * far["weight"], "the margin did not grow, and the weight held"


@pytest.mark.parametrize("weights", ["softmax", "scalable", "temperature(length=4)"])
def test_a_softmax_is_at_or_above_the_law(weights: str) -> None:
    task = task_of("interleaved")
    torch.manual_seed(0)
    model = outlast.model(f"lstm > attention(alibi, heads=4, weights={weights}) @ 16", task)
    with torch.no_grad():  # scores that differ from answer to answer: medians and means do too
        model.sublayers()[1].mixer.qkv.weight.mul_(12)
    for rung in draw_rungs(model, task, LADDER, 50):
        numbers = dict(zip(MEASURES, measure(model, task, rung.batch)["2.attention"], strict=True))
        wanted = law(numbers["keys"], numbers["margin"])
        assert wanted.std(0).min() > 1e-3
        assert (numbers["weight"] >= wanted - 1e-6).all()
        for head, row in enumerate(sharpness(model, task, (rung.multiple,), 50)):
            assert row["law"] == pytest.approx(float(wanted[:, head].mean()), rel=1e-4)
            assert row["weight"] >= row["law"] - 1e-6


@pytest.mark.parametrize("scheme", ["tra", "stick_breaking", "nope, weights=entmax"])
def test_keys_that_are_dropped_are_not_counted_as_kept(scheme: str) -> None:
    task = task_of()
    torch.manual_seed(0)
    model = outlast.model(f"attention({scheme}, heads=2) @ 16, embedding=8", task)
    rows = sharpness(model, task, (3,), 20)
    assert len(rows) == 2
    for row in rows:
        assert 0 <= row["above"] <= row["kept"] <= row["keys"] == 32
        assert (row["margin"] is None) == ("weights" not in scheme)
        assert row["law"] is None, "it is no softmax"
    if scheme != "stick_breaking":
        assert min(row["kept"] for row in rows) < 32


def test_small_blocks_give_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    task = outlast.task("copy(signs=5, length=6)")  # many answers a sequence
    torch.manual_seed(0)
    model = outlast.model("attention(nope, heads=2) @ 16", task)
    whole = sharpness(model, task, LADDER, 8)
    monkeypatch.setattr("outlast.mixers.attention.blocks.BUDGET", 2 * 36 * 3 * 2)
    monkeypatch.setattr(sharp, "blocks", lambda batch: blocks(batch, 36 * 3))
    parts = sharpness(model, task, LADDER, 8)
    assert whole[0]["count"] == 8 * 6
    assert len(whole) == len(parts) == 4
    for one, other in zip(whole, parts, strict=True):
        assert one.pop("layer") == other.pop("layer")
        assert one == pytest.approx(other, rel=1e-5)


def test_scores_that_overflow_are_none_in_the_table() -> None:
    task, model = task_of(), build(task_of())
    with torch.no_grad():
        model.sublayers()[1].mixer.qkv.weight.mul_(1e30)
    rows = sharpness(model, task, (1,), 5)
    overflown, even = (row_of(rows, 1, head) for head in (0, 1))
    assert overflown["margin"] is overflown["weight"] is overflown["law"] is None
    assert even["margin"] == 0
    json.dumps(rows, allow_nan=False)


def test_measuring_leaves_the_model_untouched() -> None:
    task, model = task_of(), build(task_of())
    with untouched(model, task):
        sharpness(model, task, (1,), 5)


def test_what_has_no_sharpness_is_named() -> None:
    task = task_of()
    with pytest.raises(SpecError, match="model=lstm @ 8: expected a model with attention"):
        sharpness(outlast.model("lstm @ 8", task), task)
    parity = outlast.task("parity(length=5)")
    words = r"^parity.* asks for nothing that was stored: sharpness needs a task such as recall or"
    with pytest.raises(SpecError, match=words):
        sharpness(outlast.model("attention @ 8", parity), parity, (1,), 4)
