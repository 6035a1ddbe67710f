"""The arguments of `delay` and of its handle: what is refused, and what counts as a number."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from delayed_models import model
from torch import nn

import outlast
from outlast.errors import SpecError

pytestmark = pytest.mark.filterwarnings("error")

#: each is no number, or has none
LOSSES = [
    *("low", "0", b"0", None, True, [1.0], {}, 1j, 10**400, object()),
    *(np.bool_(True), np.zeros(2), np.array("x")),
    *(torch.ones(2), torch.ones(0), torch.tensor(True), torch.ones((), device="meta")),
    torch.ones((), dtype=torch.complex64),
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: repr(loss)[:20])
def test_loss_that_is_no_number_is_refused(loss):
    delayed = outlast.delay(model(), "*.attn", switch=1)
    words = "^loss=.*: expected a number or a tensor with one element"
    with pytest.raises(SpecError, match=words):
        delayed.step(loss)
    assert delayed.state_dict()["steps"] == 0


def test_losses_of_numpy_and_torch_are_numbers():
    for loss in (1, np.float32(0.5), np.int64(2), np.array(0.5), torch.ones(1), Fraction(1, 2)):
        assert outlast.delay(model(), "*.attn", switch=1).step(loss)


SAVED = [None, {}, [], "state", 3, {"steps": 3}, {"steps": 3, "state": {}}, {"state": None}]


@pytest.mark.parametrize("saved", SAVED, ids=str)
def test_foreign_state_is_refused(saved):
    delayed = outlast.delay(model(), "*.attn")
    with pytest.raises(
        SpecError, match=r"^saved=.*: expected what state_dict\(\) of a delay returned"
    ):
        delayed.load_state_dict(saved)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("steps", value) for value in (None, True, -1, 2.0, "3", math.nan, 10**400, [3])],
        *[("switched", value) for value in (True, "3", [], math.nan, 0.5, -1, 4, 10**400)],
        *[("since", value) for value in (None, False, -1, 0.5, "0")],
        *[("attempt", value) for value in (None, True, "x", 10**400)],
        *[("loss", value) for value in (True, "0.5", math.nan, math.inf, [0.5], torch.ones(()))],
        *[("trigger", value) for value in (None, 3, [], {"best": "x"}, {"best": math.nan}, {3: 3})],
    ],
    ids=lambda value: str(value)[:20],
)
def test_state_with_a_wrong_value_is_refused_and_nothing_is_loaded(name, value):
    delayed = outlast.delay(model(), "*.attn")
    delayed.step(1.0)
    before = delayed.state_dict()
    state = before["state"]
    saved = {"steps": value, "state": state} if name == "steps" else None
    saved = saved or {"steps": 3, "state": state | {name: value}}
    with pytest.raises(SpecError, match=f"^saved: {name}=.*: expected"):
        delayed.load_state_dict(saved)
    assert delayed.state_dict() == before


MISUSES = [
    *[
        ("model", value)
        for value in (None, "model", 3, [nn.Linear(2, 2)], nn.Linear, torch.ones(2))
    ],
    *[("where", value) for value in (None, 3, b"*.attn", [3], ["*.attn", None], torch.ones(2))],
    *[("where", value) for value in (nn.Linear(2, 2), np.array(["*.attn"]), {3: 3}, math.nan)],
    *[("mode", value) for value in (None, "", "Skip", 3, ["skip"], torch.ones(2), np.zeros(2))],
    *[("switch", value) for value in (None, True, -1, 1.5, math.nan, math.inf, [3], b"3", {})],
    *[("switch", value) for value in ("true", "none", "[1, 2]", "-3", "blow(0.01)", 10**400)],
    *[("switch", value) for value in (torch.tensor(True), torch.ones(2), object())],
    *[("steps", value) for value in (True, 0, -1, 2.5, "10", math.nan, 10**400, [10], np.zeros(2))],
    *[("latest", value) for value in (True, -1, 1.5, math.nan, "10", [10], 10**400, object())],
    *[("ramp", value) for value in (None, True, -1, 2.5, "10", math.nan, 10**400, [10])],
]


@pytest.mark.parametrize(
    "switch", ["belw(0.1)", "platau", "below(-1)", "below(leve=1)", "converged"]
)
def test_bad_trigger_is_refused_without_a_method_that_nobody_named(switch):
    with pytest.raises(SpecError, match=r"^switch") as refused:
        outlast.delay(model(), "*.attn", switch=switch)
    assert "dat" not in str(refused.value)


@pytest.mark.parametrize(("name", "value"), MISUSES, ids=lambda value: str(value)[:20])
def test_misuse_names_the_argument_and_leaves_the_model_alone(name, value):
    net = model()
    arguments = {"model": net, "where": "*.attn", "switch": 4, "steps": 10, name: value}
    with pytest.raises(SpecError, match=f"{name}[=:]") as refused:
        outlast.delay(**arguments)
    assert len(str(refused.value)) < 400
    assert not any("forward" in vars(module) for module in net.modules())


def test_numbers_of_numpy_and_torch_and_iterators_are_taken():
    arguments = {"switch": np.float32(0.5), "steps": np.int64(8), "latest": torch.tensor(6)}
    delayed = outlast.delay(model(), iter(["0.attn", "1.attn"]), ramp=np.int8(3), **arguments)
    assert delayed.modules == ["0.attn", "1.attn"]
    assert "switch=4" in repr(delayed)
