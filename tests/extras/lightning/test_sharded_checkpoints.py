"""Placeholders for the optimiser states of parameters that never had a gradient."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("lightning.pytorch")

from torch import nn
from torch.optim import SGD, Adafactor, AdamW, Optimizer

from outlast.lightning.sharded_checkpoints import _placeholders, empty

OPTIMISERS: dict[str, Callable[[Any], Optimizer]] = {
    "adamw": lambda weights: AdamW(weights, amsgrad=True, weight_decay=0.5),
    "sgd": lambda weights: SGD(weights, lr=0.1, momentum=0.9, weight_decay=0.5),
    "plain sgd": lambda weights: SGD(weights, lr=0.1),
    "adafactor": Adafactor,
}


def build(name: str) -> tuple[nn.Sequential, Optimizer]:
    """Two layers. Only the second has a gradient, and one optimiser step is done."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimiser = OPTIMISERS[name](model.parameters())
    model[1](torch.ones(3)).sum().backward()
    optimiser.step()
    return model, optimiser


def form(state: dict[str, Any]) -> dict[str, Any]:
    return {key: getattr(value, "shape", None) for key, value in state.items()}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_placeholders_have_the_form_of_states_and_leave_nothing_behind(name):
    model, optimiser = build(name)
    before = {parameter: weight.clone() for parameter, weight in model.named_parameters()}
    with _placeholders([optimiser]):
        for held, trained in zip(model[0].parameters(), model[1].parameters(), strict=True):
            assert form(optimiser.state.get(held, {})) == form(optimiser.state.get(trained, {}))
    assert not any(optimiser.state.get(parameter) for parameter in model[0].parameters())
    assert all(torch.equal(weight, before[n]) for n, weight in model.named_parameters())
    assert all(parameter.grad is None for parameter in model[0].parameters())


def test_placeholders_are_taken_out_of_a_model_that_is_compiled_now():
    model, optimiser = build("adamw")
    first = model[0].weight
    optimiser.state[first] = {"step": torch.ones(())}
    model[0] = torch.compile(model[0], backend="eager")
    empty([optimiser], model, ["0.weight"])
    assert first not in optimiser.state
    assert model[1].weight in optimiser.state
