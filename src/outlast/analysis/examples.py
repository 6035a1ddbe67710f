"""One wrong answer of each cause, for the report: the tokens, the state, the attention.

The table of `anatomy` in a run folder has a column more than the function returns, `example`. It
has an `outlast.runs.analyses.Example` as JSON, at the first row in which its cause occurs, and None
elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import torch

from outlast.analysis.anatomy import CAUSES, Cause, dissect
from outlast.analysis.probe import Place, due_states, fit_probes
from outlast.analysis.retrieval import Retriever
from outlast.analysis.ridge import Probe
from outlast.analysis.sequences import LADDER, SEQUENCES, NothingToSeeError, Row, draw_rungs
from outlast.analysis.sharpness import recalled
from outlast.analysis.watching import watch
from outlast.models.model import Model
from outlast.runs.analyses import Example, head_name
from outlast.tasks import Batch, Task

#: the most tokens of an example
MOST_TOKENS = 2000
#: a weight of attention that is not 0 is not written as less than this
LEAST = 0.001


def anatomy_with_examples(
    model: Model,
    task: Task,
    ladder: Sequence[float] = LADDER,
    sequences: int = SEQUENCES,
) -> list[Row]:
    """The rows of `anatomy`, with the column `example`."""
    anatomy = dissect(model, task, ladder, sequences)
    rows: list[Row] = [{**row, "example": None} for row in anatomy.rows]
    chosen: dict[str, Row] = {}
    for example in anatomy.examples:  # the shortest length comes first
        if example["cause"] != CAUSES[Cause.RIGHT] and int(example["token"] or 0) < MOST_TOKENS:
            chosen.setdefault(str(example["cause"]), example)
    if not chosen:
        return rows
    reader = _reader(model, task, anatomy.probe)
    multiples = tuple(dict.fromkeys(float(example["multiple"] or 0) for example in chosen.values()))
    for rung in draw_rungs(model, task, multiples, sequences):
        for cause, example in chosen.items():
            if example["multiple"] == rung.multiple:
                batch = rung.batch.rows(torch.tensor([example["row"]], device=_device(model)))
                token = int(example["token"] or 0)
                text = _example(model, task, batch, token, reader, anatomy.retriever)
                place = {name: example[name] for name in ("multiple", "part")} | {"cause": cause}
                (row,) = [row for row in rows if place.items() <= row.items()]
                row["example"] = msgspec.json.encode(text).decode()
    return rows


def _device(model: Model) -> torch.device:
    return model.embedding.weight.device


def _reader(model: Model, task: Task, place: Place | None) -> tuple[Place, Probe] | None:
    """The probe that reads the running state along a sequence, where `anatomy` reads its states."""
    if place is None:
        return None
    try:
        return place, fit_probes(model, task, [place], due_states)[place]
    except NothingToSeeError:
        return None


def _example(
    model: Model,
    task: Task,
    batch: Batch,
    token: int,
    reader: tuple[Place, Probe] | None,
    retriever: Retriever | None,
) -> Example:
    """What the model does with one sequence up to the answer that is due at a token."""
    end = token + 1
    seen = watch(model, batch.inputs, torch.tensor([[token]], device=batch.inputs.device))
    logits, source = seen.logits[0, token, : task.classes], int(recalled(task, batch)[0, token])
    states = due_states(task, batch)[0, :end].tolist()
    read: list[int | None] = []
    if reader is not None:
        place, probe = reader
        predicted = probe.predict(place.read(seen))[0, :end].tolist()
        read = [p if s >= 0 else None for p, s in zip(predicted, states, strict=True)]
    attended = None
    if retriever is not None and source >= 0:
        weights = seen.weights[retriever.layer][0, list(retriever.heads), 0]
        attended = int(weights.sum(0).argmax())
    is_finite = bool(logits.isfinite().all())
    return Example(
        words=[task.word(word) for word in batch.inputs[0, :end].tolist()],
        source=source if source >= 0 else None,
        expected=task.word(int(batch.targets[0, token])),
        given=task.word(int(logits.argmax())) if is_finite else "not a number",
        read_from="" if reader is None else f"{reader[0].layer} {reader[0].kind}",
        state=[state if state >= 0 else None for state in states] if read else [],
        read=read,
        heads={
            head_name(layer, head): [_rounded(weight) for weight in row[:end].tolist()]
            for layer, table in seen.weights.items()
            for head, row in enumerate(table[0, :, 0])
        },
        retrieving=None if retriever is None else retriever.record,
        attended=attended,
    )


def _rounded(weight: float) -> float:
    """Three digits; only 0 becomes 0."""
    if weight == 0 or not math.isfinite(weight):
        return 0.0
    return math.copysign(max(LEAST, round(abs(weight), 3)), weight)
