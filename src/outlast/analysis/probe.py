"""Linear probes: what can be read from the inside of a model, token by token.

::

    probes = fit_probes(model, task, state_places(model), states)
    probes[Place("1.lstm", "hidden")].predict(seen.outputs["1.lstm"])     # (batch, tokens)

A probe is linear (`ridge.py`). What it cannot read may still be there in a form that is not linear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from outlast.analysis.interventions import closed
from outlast.analysis.ridge import Moments, Probe, read_labels
from outlast.analysis.scoring import MOST_SEQUENCES, check_answers
from outlast.analysis.sequences import (
    LADDER,
    SEQUENCES,
    NothingToSeeError,
    Row,
    Rung,
    blocks,
    check_finite,
    draw_rungs,
    nothing_to_see,
)
from outlast.analysis.watching import HEAD, Watched, layers, watch
from outlast.arguments import as_whole, shown
from outlast.errors import bad_value
from outlast.mixers.attention.attention import Attention
from outlast.models.model import Model, Sublayer
from outlast.streams import stream
from outlast.tasks import Batch, Task
from outlast.tasks.base import IGNORE
from outlast.tasks.truth import ABSENT

#: sequences of training lengths that probes are fitted on, if nobody says
FIT_SEQUENCES = 2048
#: parts that the tokens of a sequence are divided into
BINS = 4
#: the most parts
MOST_BINS = 10_000
#: controls of a probe: each is fitted on the labels in another random order
SHUFFLES = 4

#: the label of each token of a batch (batch, tokens); -1 where there is none
Labels = Callable[[Task, Batch], Tensor]


class Place(NamedTuple):
    """Where a probe reads: the `stream` that enters a layer, or the `hidden` state it puts out."""

    layer: str
    kind: str

    def read(self, seen: Watched) -> Tensor:
        """The features of a pass, (batch, tokens, width)."""
        return (seen.streams if self.kind == "stream" else seen.outputs)[self.layer]


class Subject(NamedTuple):
    """A model that is probed.

    Args:
        model: The model.
        places: Where it is read.
        look: A pass over tokens (batch, tokens) that shows these places.
    """

    model: nn.Module
    places: Sequence[Place]
    look: Callable[[Tensor], Watched]


def state_places(model: Model) -> list[Place]:
    """The stream into every layer, the hidden state of every recurrence, and the head's input."""
    places = []
    for name, sublayer in layers(model):
        places.append(Place(name, "stream"))
        if sublayer.mixer.holds_state and sublayer.gate_mode != "off":
            places.append(Place(name, "hidden"))
    return [*places, Place(HEAD, "stream")]


def key_places(model: Model) -> list[Place]:
    """The stream that enters each attention, also one whose gate is 0."""
    attention = [name for name, sub in layers(model) if isinstance(sub.mixer, Attention)]
    if not attention:
        raise nothing_to_see("model", model.layout, "a model with attention")
    return [Place(name, "stream") for name in attention]


def states(task: Task, batch: Batch) -> Tensor:
    """The running state after each token."""
    return task.truths(batch.inputs).state


def due_states(task: Task, batch: Batch) -> Tensor:
    """The running state after each value, and where an answer is due that is not recalled.

    Values are tokens below `task.classes`. At other tokens, such as keys, a model carries the state
    on. It has no reason to show it there.
    """
    truth = task.truths(batch.inputs)
    due = (batch.inputs < task.classes) | ((batch.targets != IGNORE) & (truth.source < 0))
    return truth.state.where(due, ABSENT)


def stored_keys(task: Task, batch: Batch) -> Tensor:
    """The key of each stored value, at the value. Values are tokens below `task.classes`."""
    key = task.truths(batch.inputs).key
    return torch.where(batch.inputs < task.classes, key, ABSENT)


NO_STATE = "has no running state: a probe of it needs a task such as parity or composite"
NO_KEY = "stores nothing under a key: a probe of keys needs a task such as recall or composite"
NO_LABEL = "has none of these labels: expected labels of 0 or more at some tokens"
#: what a task is told that has none of these labels
NO_LABELS: dict[Labels, str] = {states: NO_STATE, due_states: NO_STATE, stored_keys: NO_KEY}


def state_probe(
    model: Model,
    task: Task,
    ladder: Sequence[float] = LADDER,
    sequences: int = SEQUENCES,
    bins: int = BINS,
    fit_sequences: int = FIT_SEQUENCES,
    labels: Labels = due_states,
) -> list[Row]:
    """How often the running state can be read, by place and length.

    Probes are fitted at training lengths, on sequences of their own. Each row holds the `multiple`
    and the `length`, the `layer` and the `place` (`stream`: what enters the layer; `hidden`: the
    hidden state of a recurrence), and a range of tokens, from `first` up to and without `end`.
    `bin` is the number of the range from 0. It is None for the row of all tokens. `accuracy` is the
    share of the `count` tokens at which the state is read right. `control` is the same for probes
    that were fitted on shuffled labels, on average over a few of them.

    Args:
        model: A model of ours.
        task: A task whose `truth` has a state.
        ladder: Multiples of the training length.
        sequences: Sequences tested at each length.
        bins: The tokens of a sequence are divided into so many ranges.
        fit_sequences: Sequences that probes are fitted on.
        labels: The state at the tokens that count: `due_states`, or `states` for every token.
    """
    subject = _subject(model, state_places(model))
    return probe_places(subject, task, labels, ladder, sequences, bins, fit_sequences)


def key_probe(
    model: Model,
    task: Task,
    ladder: Sequence[float] = LADDER,
    sequences: int = SEQUENCES,
    bins: int = BINS,
    fit_sequences: int = FIT_SEQUENCES,
) -> list[Row]:
    """How often the key of a stored value can be read at the value, where attention begins.

    Attention finds a value by its key. So what is before attention must hold the key when the value
    comes. Rows are those of `state_probe`, for the stream that enters each attention.

    Args:
        model: A model of ours, with attention.
        task: A task whose `truth` has keys.
        ladder: Multiples of the training length.
        sequences: Sequences tested at each length.
        bins: The tokens of a sequence are divided into so many ranges.
        fit_sequences: Sequences that probes are fitted on. Each key should come several times.
    """
    subject = _subject(model, key_places(model))
    return probe_places(subject, task, stored_keys, ladder, sequences, bins, fit_sequences)


def probe_places(
    subject: Subject,
    task: Task,
    labels: Labels,
    ladder: Sequence[float],
    sequences: int,
    bins: int,
    fit_sequences: int,
) -> list[Row]:
    """The rows of `state_probe`, for any labels and any places."""
    check_answers(task, ladder, sequences)
    as_whole("bins", bins, 1, MOST_BINS)
    if not callable(labels):
        accepted = "a function of the task and a batch, such as due_states or stored_keys"
        raise bad_value("labels", shown(labels), accepted)
    check_finite(subject.model)
    probes = _fit(subject, task, labels, fit_sequences, SHUFFLES)
    rows = []
    for rung in draw_rungs(subject.model, task, ladder, sequences):
        rows += _rows(subject, rung, labels(task, rung.batch), probes, bins)
    return rows


def fit_probes(
    model: Model,
    task: Task,
    places: Sequence[Place],
    labels: Labels,
    fit_sequences: int = FIT_SEQUENCES,
) -> dict[Place, Probe]:
    """A probe for each place, fitted at training lengths on sequences that no test has."""
    fitted = _fit(_subject(model, places), task, labels, fit_sequences)
    return {place: probes[0] for place, probes in fitted.items()}


def probe_accuracy(
    model: Model, batch: Batch, labels: Tensor, probes: Mapping[Place, Probe]
) -> dict[Place, float]:
    """The share of labels (batch, tokens) that each probe reads right; -1 is no label."""
    hits = dict.fromkeys(probes, 0)
    for seen, asked, wanted in _passes(_subject(model, list(probes)), batch, labels):
        for place, probe in probes.items():
            hits[place] += int((probe.predict(place.read(seen)[asked]) == wanted).sum())
    total = max(1, int((labels >= 0).sum()))
    return {place: right / total for place, right in hits.items()}


def _fit(
    subject: Subject, task: Task, labels: Labels, fit_sequences: int, shuffles: int = 0
) -> dict[Place, list[Probe]]:
    """Probes by place: the true one, then those that are fitted on shuffled labels."""
    as_whole("fit_sequences", fit_sequences, 1, MOST_SEQUENCES)
    device = next(subject.model.parameters()).device
    batch = task.sample(task.lengths, fit_sequences, stream(device, "fit probes"))
    table = labels(task, batch)
    if not (table >= 0).any():
        raise NothingToSeeError(f"{task.name} {NO_LABELS.get(labels, NO_LABEL)}")
    moments: dict[Place, Moments] = {}
    shape = (int(table.max()) + 1, device, 1 + shuffles)
    generator = stream(device, "shuffle labels")
    for seen, asked, wanted in _passes(subject, batch, table):
        orders = [
            torch.randperm(len(wanted), generator=generator, device=device) for _ in range(shuffles)
        ]
        labellings = torch.stack([wanted, *(wanted[order] for order in orders)])
        for place in subject.places:
            features = place.read(seen)[asked]
            if place not in moments:
                moments[place] = Moments(features.shape[-1], *shape)
            moments[place].add(features, labellings)
    return {place: each.fit() for place, each in moments.items()}


def _passes(
    subject: Subject, batch: Batch, table: Tensor
) -> Iterator[tuple[Watched, Tensor, Tensor]]:
    """What a pass over each block showed, which of its tokens have labels, and these labels."""
    done = 0
    for block in blocks(batch):
        labels = table[done : done + len(block.inputs)]
        done += len(block.inputs)
        yield subject.look(block.inputs), labels >= 0, labels[labels >= 0]


def _subject(model: Model, places: Sequence[Place]) -> Subject:
    """A model of ours. What comes after the last of the places is not computed."""
    unread = _after(model, places)

    def look(tokens: Tensor) -> Watched:
        with closed(unread):
            return watch(model, tokens)

    return Subject(model, places, look)


def _after(model: Model, places: Iterable[Place]) -> list[Sublayer]:
    """The sublayers without which all of the places hold what they do."""
    needed, by_name = 0, dict(layers(model))
    for place in places:
        if place.layer == HEAD:
            return []
        # a sublayer that is closed does not normalise the stream that enters it
        is_open = place.kind == "hidden" or by_name[place.layer].normalised
        needed = max(needed, list(by_name).index(place.layer) + is_open)
    return list(by_name.values())[needed:]


def _rows(
    subject: Subject, rung: Rung, table: Tensor, probes: dict[Place, list[Probe]], bins: int
) -> list[Row]:
    """The rows of one length. `table` (batch, tokens) has the labels."""
    tokens = table.shape[1]
    bin_of = torch.arange(tokens, device=table.device) * bins // tokens

    def by_bin(chosen: Tensor) -> Tensor:
        return torch.bincount(bin_of.expand_as(chosen)[chosen], minlength=bins).double()

    count = by_bin(table >= 0)
    hits = {place: count.new_zeros(1 + SHUFFLES, bins) for place in probes}
    for seen, asked, wanted in _passes(subject, rung.batch, table):
        for place, each in probes.items():
            features, right = place.read(seen)[asked], torch.zeros_like(asked)
            for of_probe, labels in zip(hits[place], read_labels(each, features), strict=True):
                right[asked] = labels == wanted
                of_probe += by_bin(right)
    ends = [-(-number * tokens // bins) for number in range(1, bins + 1)]
    ranges = [(None, 0, tokens), *zip(range(bins), [0, *ends], ends, strict=False)]
    rows: list[Row] = []
    for place, of_probes in hits.items():
        by_range = torch.stack([of_probes[0], of_probes[1:].mean(0), count])
        by_range = torch.cat([by_range.sum(1, keepdim=True), by_range], 1)
        for (number, first, end), (hit, control, total) in zip(
            ranges, by_range.T.tolist(), strict=True
        ):
            row: Row = {"multiple": rung.multiple, "length": rung.length}
            row |= {"layer": place.layer, "place": place.kind}
            row |= {"bin": number, "first": first, "end": end}
            if total:
                row |= {"accuracy": hit / total, "control": control / total, "count": int(total)}
                rows.append(row)
    return rows
