"""Instruments of the failure anatomy: two probes, the heads that retrieve, the states needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from outlast.analysis.probe import Labels, Place, fit_probes, probe_accuracy, state_places
from outlast.analysis.retrieval import Retriever, find_retriever
from outlast.analysis.ridge import Probe
from outlast.analysis.sequences import NothingToSeeError, Rung, draw_rungs, nothing_to_see
from outlast.analysis.sharpness import recalled
from outlast.analysis.watching import HEAD, attention_layers
from outlast.models.model import Model
from outlast.tasks import Batch, Task
from outlast.tasks.truth import ABSENT

#: the token whose state a recalled answer needs
Needed = Literal["none", "source", "answer"]


class CheckedProbe(NamedTuple):
    """A probe, and how well it reads at the training length.

    Args:
        place: Where it reads.
        probe: The probe.
        accuracy: The share of labels that it reads right.
        majority: The share of the most frequent label.
    """

    place: Place
    probe: Probe
    accuracy: float
    majority: float

    @property
    def is_trusted(self) -> bool:
        """Whether it reads at least halfway from the most frequent label to every label."""
        return self.accuracy >= (self.majority + 1) / 2


@dataclass(frozen=True)
class Instruments:
    """What the causes are found with.

    Args:
        needed: The token whose state a recalled answer needs.
        state_probe: It reads the state; None if no answer needs one.
        retriever: The retrieving heads; None if there is no attention or nothing to recall.
        fit_answer_probe: Makes `answer_probe`.
    """

    needed: Needed
    state_probe: CheckedProbe | None
    retriever: Retriever | None
    fit_answer_probe: Callable[[], CheckedProbe]

    @property
    def read_streams(self) -> bool:
        """Whether a probe may read the streams of a pass."""
        return self.state_probe is not None or self.retriever is not None

    @cached_property
    def answer_probe(self) -> CheckedProbe:
        """It reads a recalled answer from what enters the output layer.

        It is fitted when it is first asked for: few models need it.
        """
        return self.fit_answer_probe()


def prepare(model: Model, task: Task, sequences: int, fit_sequences: int) -> Instruments:
    """The instruments for a model, found at the training length."""
    trained = _trained(model, task, sequences)
    source, state = recalled(task, trained.batch), task.truths(trained.batch.inputs).state
    if (asked_tokens(task, trained.batch) & (source < 0) & (state < 0)).any():
        raise NothingToSeeError(
            f"{task.name} has answers that come from nothing stored and from no running state: "
            f"anatomy needs a task such as recall, parity or composite"
        )
    needed = needed_state(task, trained.batch, source)

    def judged_states(task: Task, batch: Batch) -> Tensor:
        return _at_their_tokens(task, batch, needed)

    def fit_answer_probe() -> CheckedProbe:
        again = _trained(model, task, sequences)
        places = [Place(HEAD, "stream")]
        return _best_probe(model, task, again, places, recalled_answers, fit_sequences)

    state_probe = None
    if (judged_states(task, trained.batch) >= 0).any():
        hidden = [place for place in state_places(model) if place.kind == "hidden"]
        places = hidden or [Place(HEAD, "stream")]
        state_probe = _best_probe(model, task, trained, places, judged_states, fit_sequences)
    retriever = None
    if (source >= 0).any() and attention_layers(model):
        retriever = find_retriever(model, task, trained.batch)
    return Instruments(needed, state_probe, retriever, fit_answer_probe)


def _trained(model: Model, task: Task, sequences: int) -> Rung:
    """The sequences of the training length."""
    trained = next(draw_rungs(model, task, (1.0,), sequences), None)
    if trained is None:
        raise nothing_to_see(
            "model", model.layout, "a model that takes sequences of training length"
        )
    return trained


def needed_state(task: Task, batch: Batch, source: Tensor) -> Needed:
    """Whether recalled answers need a state: found from the answers of a batch."""
    state, asked = task.truths(batch.inputs).state, source >= 0
    at, answers = source.clamp_min(0), batch.targets[asked]
    if (batch.inputs.gather(1, at)[asked] == answers).all() or not (state >= 0).any():
        return "none"
    return "source" if (state.gather(1, at)[asked] == answers).all() else "answer"


def asked_tokens(task: Task, batch: Batch) -> Tensor:
    """Where an answer is due that a test counts, (batch, tokens)."""
    numbers = [task.parts.index(part) for part in task.asked]
    return torch.stack([batch.part == number for number in numbers]).any(0)


def state_tokens(task: Task, batch: Batch, source: Tensor, needed: Needed) -> Tensor:
    """The token whose state an answer needs, (batch, tokens), at the answer; -1 elsewhere."""
    asked = asked_tokens(task, batch)
    itself = torch.arange(source.shape[1], device=source.device).expand_as(source)
    tokens = itself.where(asked & (source < 0), ABSENT)
    if needed == "none":
        return tokens
    return (source if needed == "source" else itself).where(asked & (source >= 0), tokens)


def _at_their_tokens(task: Task, batch: Batch, needed: Needed) -> Tensor:
    """The states that answers need, at the tokens where they are read; -1 elsewhere."""
    state = task.truths(batch.inputs).state
    tokens = state_tokens(task, batch, recalled(task, batch), needed)
    read = torch.zeros_like(state[:, :1], dtype=torch.bool).expand(-1, state.shape[1] + 1).clone()
    read.scatter_(1, tokens.where(tokens >= 0, state.shape[1]), True)
    return state.where(read[:, :-1], ABSENT)


def recalled_answers(task: Task, batch: Batch) -> Tensor:
    """Each answer that must be recalled, where it is due, (batch, tokens); -1 elsewhere."""
    return batch.targets.where(recalled(task, batch) >= 0, ABSENT)


def _best_probe(
    model: Model,
    task: Task,
    trained: Rung,
    places: Sequence[Place],
    labels: Labels,
    fit_sequences: int,
) -> CheckedProbe:
    """The probe of the place from which it reads best, the last one among equals."""
    probes = fit_probes(model, task, places, labels, fit_sequences)
    table = labels(task, trained.batch)
    accuracy = probe_accuracy(model, trained.batch, table, probes)
    best = max(reversed(probes), key=accuracy.__getitem__)
    counts = torch.bincount(table[table >= 0])
    majority = float(counts.max() / counts.sum())
    return CheckedProbe(best, probes[best], accuracy[best], majority)
