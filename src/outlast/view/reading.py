"""The state that linear probes read from a model, layer by layer, against the true one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from outlast.analysis.probe import (
    Place,
    due_states,
    fit_probes,
    probe_accuracy,
    state_places,
)
from outlast.analysis.ridge import Probe
from outlast.analysis.sequences import NothingToSeeError
from outlast.analysis.watching import HEAD, Watched, layers
from outlast.models import Model
from outlast.streams import stream
from outlast.tasks import Task

#: sequences to fit on, and others of the same lengths to check with
FITTED, CHECKED = 512, 128


@dataclass(frozen=True)
class Reader:
    """A probe at one place of a model, and how often it is right at training lengths."""

    place: str
    accuracy: float
    at: Place
    probe: Probe

    def read(self, seen: Watched) -> Tensor:
        """The state at each token of a pass, (batch, tokens)."""
        return self.probe.predict(self.at.read(seen))


def fit_readers(model: Model, task: Task) -> list[Reader]:
    """Probes for the output of each recurrence and the streams that attention and head read.

    There are none if the task has no running state.
    """
    attention = {name for name, layer in layers(model) if layer.pathway == "attention"}
    places = [
        place
        for place in state_places(model)
        if place.kind == "hidden" or place.layer in {*attention, HEAD}
    ]
    try:
        probes = fit_probes(model, task, places, due_states, FITTED)
    except NothingToSeeError:
        return []
    generator = stream(model.embedding.weight.device, "check probes")
    batch = task.sample(task.lengths, CHECKED, generator)
    right = probe_accuracy(model, batch, due_states(task, batch), probes)
    return [Reader(_words(place), right[place], place, probe) for place, probe in probes.items()]


def _words(place: Place) -> str:
    if place.kind == "hidden":
        return f"output of {place.layer}"
    return f"stream before {'the output layer' if place.layer == HEAD else place.layer}"
