"""A trained model at work on one sequence: its answers, the state it holds, where it looks."""

from __future__ import annotations

import base64
import math
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from outlast.analysis.anatomy import CAUSES, EXAMPLES, Cause, dissect, judge
from outlast.analysis.instruments import Instruments, prepare
from outlast.analysis.probe import due_states
from outlast.analysis.sequences import NothingToSeeError
from outlast.analysis.sharpness import recalled
from outlast.analysis.watching import attention_layers, hooked, watch
from outlast.errors import OutlastError, bad_value
from outlast.models import Model
from outlast.registry import tasks
from outlast.reporting.causes import cause_sentence
from outlast.runs.analyses import RetrievingHeads
from outlast.runs.records import read_run
from outlast.runs.status import own_state
from outlast.tasks import Task
from outlast.tasks.truth import ABSENT
from outlast.view.pictures import MapKeeper, png
from outlast.view.reading import FITTED, Reader, fit_readers
from outlast.view.sequences import Sequence, check_tokens, make_sequence, stops
from outlast.workflow.load import check_corpus, load

#: the most weights in one answer, and the most queries
WEIGHTS, QUERIES = 2**20, 128
#: an answer of attention holds integers up to this
LARGEST = 2**15 - 1
#: sequences whose answers are kept
KEPT = 16
#: sequences among which examples of a cause are looked for
EXAMPLE_SEQUENCES = 64


class LiveModel:
    """One seed of a run, loaded for the page.

    Args:
        folder: The run.
        seed: One of its seeds.
        tested: Lengths that stand on the slider.
        checkpoint: What tells its weights from those of other checkpoints. The page is told it with
            all that it shows side by side.
    """

    def __init__(self, folder: Path, seed: int, tested: list[int], checkpoint: str = "") -> None:
        self.folder, self.seed, self.tested = folder, seed, tested
        self.checkpoint = checkpoint
        self._sequences = lru_cache(KEPT)(self._make_sequence)
        self._traces = lru_cache(KEPT)(self._trace)
        self._examples = lru_cache(KEPT)(self._find_examples)

    @cached_property
    def task(self) -> Task:
        record = read_run(self.folder)
        task: Task = tasks.build(record.task)
        check_corpus(self.folder, record, task)
        return task

    @cached_property
    def model(self) -> Model:
        return load(self.folder, self.seed)

    @cached_property
    def readers(self) -> list[Reader]:
        return fit_readers(self.model, self.task)

    @cached_property
    def instruments(self) -> Instruments | None:
        """What causes are found with; None if the anatomy has no cause for answers of the task."""
        if self.task.measure != "exact":
            return None
        try:
            return prepare(self.model, self.task, EXAMPLE_SEQUENCES, FITTED)
        except NothingToSeeError:
            return None

    def lengths(self) -> dict[str, Any]:
        """The lengths of the slider; of a run whose model cannot be loaded, too."""
        return {"lengths": stops(self.task, self.tested), "trained": self.task.lengths[1]}

    def trace(self, name: str) -> dict[str, Any]:
        """What the model makes of the sequence of a name, but for the attention."""
        return self._traces(name)

    def _trace(self, name: str) -> dict[str, Any]:
        sequence, retrieving = self._sequence(name), self._retrieving()
        seen = watch(self.model, sequence.batch().inputs)
        truth = self.task.truth(sequence.tokens)
        states = due_states(self.task, sequence.batch())[0].tolist()
        heads = {name: layer.heads for name, layer in attention_layers(self.model).items()}
        chances = seen.logits[0, :, : self.task.classes].float().softmax(-1)
        return {
            "checkpoint": self.checkpoint,
            "name": name,
            "task": self.task.name,
            "words": [self.task.word(token) for token in sequence.tokens],
            **self.lengths(),
            "answers": self._answers(sequence, chances),
            "says": self._says(sequence, chances),
            "causes": self._causes(sequence),
            "source": truth.source,
            "state": [None if state == ABSENT else state for state in states],
            "read": [
                {"place": r.place, "accuracy": r.accuracy, "states": r.read(seen)[0].tolist()}
                for r in self.readers
            ],
            "layers": [{"name": name, "heads": count} for name, count in heads.items()],
            "retrieving": None if retrieving is None else msgspec.to_builtins(retrieving),
            "queries": self._queries(len(sequence.tokens)),
            "notes": self._notes(),
        }

    def attention(self, name: str, number: int) -> dict[str, Any]:
        """The weights of a chunk of queries over all keys up to the last of them, by layer."""
        sequence = self._sequence(name)
        tokens, size = len(sequence.tokens), self._queries(len(sequence.tokens))
        first, end = number * size, min((number + 1) * size, tokens)
        if first >= tokens:
            accepted = f"a number below {math.ceil(tokens / size)}: there are {tokens} tokens"
            raise bad_value("attention", number, accepted)
        queries = torch.arange(first, end)[None]
        seen = watch(self.model, sequence.batch().inputs, queries, streams=False)
        layers = [_packed(weights[0, :, :, :end]) for weights in seen.weights.values()]
        place = {"first": first, "queries": end - first, "keys": end}
        return {"checkpoint": self.checkpoint, **place, "layers": layers}

    def attention_map(self, name: str, number: int, head: int) -> dict[str, Any]:
        """The attention of one head of the layer of a number (from 0), as the address of a PNG."""
        sequence, layers = self._sequence(name), list(attention_layers(self.model).items())
        if number >= len(layers):
            raise bad_value("layer", number, f"a number below {len(layers)}")
        layer, attention = layers[number]
        if head >= attention.heads:
            raise bad_value("head", head, f"a number below {attention.heads}")
        keeper = MapKeeper(head, len(sequence.tokens))
        with hooked({layer: keeper}, self.model):
            watch(self.model, sequence.batch().inputs, streams=False)
        picture = base64.b64encode(png(keeper.levels)).decode()
        return {"checkpoint": self.checkpoint, "picture": f"data:image/png;base64,{picture}"}

    def examples(self, length: int) -> dict[str, Any]:
        """Answers of each cause among some sequences of a length: where to look."""
        return self._examples(length)

    def _find_examples(self, length: int) -> dict[str, Any]:
        check_tokens(self.task.tokens(length))
        ladder = [length / self.task.lengths[1]]
        anatomy = dissect(
            self.model, self.task, ladder, EXAMPLE_SEQUENCES, FITTED, self.instruments
        )
        return {"sequences": EXAMPLE_SEQUENCES, "most": EXAMPLES, "examples": anatomy.examples}

    def _sequence(self, name: str) -> Sequence:
        """The sequence of a name; it is drawn once, not again for each chunk of its attention."""
        return self._sequences(name)

    def _make_sequence(self, name: str) -> Sequence:
        sequence, ceiling = make_sequence(self.task, name), self.model.ceiling
        if ceiling is not None and len(sequence.tokens) > ceiling:
            raise OutlastError(
                f"this sequence has {len(sequence.tokens):,} tokens: the model of "
                f"{self.folder.name} takes {ceiling:,} at most"
            )
        return sequence

    def _queries(self, tokens: int) -> int:
        """How many queries' attention is sent at once."""
        heads = sum(layer.heads for layer in attention_layers(self.model).values())
        return max(1, min(QUERIES, WEIGHTS // max(1, heads * tokens)))

    def _says(self, sequence: Sequence, chances: Tensor) -> list[tuple[str, float] | None]:
        """At each token where no answer is due: what the model says all the same, if a number."""
        most, best = (values.tolist() for values in chances.max(-1))
        return [
            (self.task.word(word), round(chance, 4))
            if expected is None and math.isfinite(chance)
            else None
            for word, chance, expected in zip(best, most, sequence.expected, strict=True)
        ]

    def _answers(self, sequence: Sequence, chances: Tensor) -> list[dict[str, Any] | None]:
        """At each token where an answer is due: the answer, and what was expected."""
        best = chances.argmax(-1).tolist()
        tokens = torch.tensor([sequence.tokens])
        support = self.task.support(tokens, 0, len(sequence.tokens))
        rows: list[dict[str, Any] | None] = []
        for place, expected in enumerate(sequence.expected):
            if expected is None:
                rows.append(None)
                continue
            given, finite = best[place], bool(chances[place].isfinite().all())
            rows.append(
                {
                    "part": sequence.parts[place],
                    "given": self.task.word(given) if finite else "not a number",
                    "chance": round(chances[place, given].item(), 4) if finite else None,
                    "expected": self.task.word(expected),
                    "expected_chance": round(chances[place, expected].item(), 4)
                    if finite
                    else None,
                    "right": finite
                    and (given == expected if support is None else bool(support[0, place, given])),
                }
            )
        return rows

    def _causes(self, sequence: Sequence) -> list[str | None]:
        """At each wrong answer of a drawn sequence: its cause in words, as the anatomy has it."""
        tokens = len(sequence.tokens)
        if self.instruments is None or not any(sequence.parts):
            return [None] * tokens
        batch, heads = sequence.batch(self.task.parts), self._retrieving()
        causes, _, attended = judge(self.model, self.task, batch, self.instruments)
        sources = recalled(self.task, batch)
        return [
            cause_sentence(CAUSES[cause], heads, _known(look), _known(source))
            if cause > Cause.RIGHT
            else None
            for cause, look, source in zip(
                causes[0].tolist(), attended[0].tolist(), sources[0].tolist(), strict=True
            )
        ]

    def _retrieving(self) -> RetrievingHeads | None:
        """The heads that look answers up, if there are any to look up."""
        retriever = None if self.instruments is None else self.instruments.retriever
        return None if retriever is None else retriever.record

    def _notes(self) -> list[str]:
        """What a reader misses otherwise."""
        notes = self._training_notes()
        if not attention_layers(self.model):
            has = any(s.pathway == "attention" for s in self.model.sublayers())
            words = "The attention of this run is closed" if has else "This run has no attention"
            notes.append(f"{words}: there are no weights to show.")
        if not self.readers:
            notes.append("This task has no running state: there is none to read.")
        return notes

    def _training_notes(self) -> list[str]:
        """That the weights are not those of a training that went to its end."""
        record, state = read_run(self.folder), own_state(self.folder)
        row, steps = record.seeds.index(self.seed), record.settings.steps
        if (since := state.parked[row]) is not None:
            return [
                f"Seed {self.seed} diverged: these are its last good weights, of step {since:,}."
            ]
        if state.succeeded[row] is None and state.step < steps:
            return [f"This run is at step {state.step:,} of {steps:,}."]
        return []


def _known(token: int) -> int | None:
    return token if token >= 0 else None


def _packed(weights: Tensor) -> dict[str, Any]:
    """Weights (heads, queries, keys) as 16-bit integers times a scale. Only 0 becomes 0."""
    values = np.nan_to_num(weights.float().numpy())
    scale = float(np.abs(values).max()) / LARGEST or 1.0
    integers = np.rint(values / scale)
    integers[(integers == 0) & (values != 0)] = 1
    text = base64.b64encode(integers.astype("<i2").tobytes()).decode()
    return {"heads": len(values), "scale": scale, "weights": text}
