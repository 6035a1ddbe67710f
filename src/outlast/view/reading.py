"""The state that a linear probe reads from a model, layer by layer, against the true one.

A ridge probe is fitted in closed form on sequences within the training length, and then reads any
other sequence. What it reads is what a linear map can find there, not what the model uses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outlast.analysis.watching import HEAD, Watched, layers, watch
from outlast.models import Model
from outlast.streams import stream
from outlast.tasks import Task
from outlast.tasks.truth import ABSENT

#: sequences to fit on and to check with, and the strength of the ridge, a share of the variance
FITTED, CHECKED, RIDGE = 192, 64, 1e-3


@dataclass(frozen=True)
class Probe:
    """A linear map (width + 1, states) for one place of a model."""

    place: str
    weights: Tensor
    #: the share of states that it reads rightly in other sequences within the training length
    accuracy: float

    def read(self, features: Tensor) -> Tensor:
        """The states that features (..., width) stand for."""
        return (_with_one(features) @ self.weights).argmax(-1)


def features(model: Model, seen: Watched) -> dict[str, Tensor]:
    """Where a state is looked for: the output of each recurrence, and the stream at some places."""
    found: dict[str, Tensor] = {}
    for name, sublayer in layers(model):
        if name in seen.outputs and sublayer.pathway == "recurrent":
            found[f"output of {name}"] = seen.outputs[name]
        if name in seen.outputs and sublayer.pathway == "attention":
            found[f"stream before {name}"] = seen.streams[name]
    return found | {"stream before the output layer": seen.streams[HEAD]}


def fit_probes(model: Model, task: Task) -> list[Probe]:
    """A probe for each place; none if the task has no state."""
    generator = stream(torch.device("cpu"), "view probe")
    tokens = task.sample(task.lengths, FITTED + CHECKED, generator).inputs
    states = task.truths(tokens).state
    if not (states != ABSENT).any():
        return []
    count, found = int(states.max()) + 1, features(model, watch(model, tokens))
    return [_fit(place, values, states, count) for place, values in found.items()]


def read_state(model: Model, probes: list[Probe], seen: Watched) -> dict[str, Tensor]:
    """What each probe reads at each token, (batch, tokens), by its place."""
    found = features(model, seen)
    return {probe.place: probe.read(found[probe.place]) for probe in probes}


def _fit(place: str, values: Tensor, states: Tensor, count: int) -> Probe:
    known = states != ABSENT
    train, check = known.clone(), known.clone()
    train[FITTED:], check[:FITTED] = False, False
    inputs = _with_one(values[train]).double()
    targets = torch.nn.functional.one_hot(states[train], count).double()
    gram = inputs.T @ inputs
    ridge = RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    weights = torch.linalg.solve(gram + ridge, inputs.T @ targets).float()
    read = (_with_one(values[check]) @ weights).argmax(-1)
    return Probe(place, weights, (read == states[check]).float().mean().item())


def _with_one(features: Tensor) -> Tensor:
    return torch.cat([features, torch.ones_like(features[..., :1])], -1)
