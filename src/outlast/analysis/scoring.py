"""What analyses accept; accuracy of an altered model, and what the whole model says too."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outlast.analysis.sequences import Row, nothing_to_see
from outlast.arguments import as_whole, shown
from outlast.errors import bad_value
from outlast.evaluation.accuracy import correct_by_part
from outlast.evaluation.ladder import as_ladder
from outlast.tasks import Batch, Task

#: the most sequences of a length; far more than memory holds
MOST_SEQUENCES = 2**31 - 1


def as_task(task: object) -> Task:
    """A task; the line of one is refused."""
    if not isinstance(task, Task):
        raise bad_value("task", shown(task), "a task, such as outlast.task('parity')")
    return task


def check_lengths(field: str, ladder: object) -> None:
    """Refuse multiples that stand for no lengths, and one that comes twice."""
    multiples = as_ladder(field, ladder)
    if len(set(multiples)) < len(multiples):
        raise bad_value(field, " ".join(f"{m:g}" for m in multiples), "each multiple once")


def check_answers(task: object, ladder: object, sequences: object) -> None:
    """Refuse a task without answers that are right or wrong, and bad lengths or numbers."""
    built = as_task(task)
    if built.measure != "exact":
        accepted = "a task whose answers are right or wrong; this one measures bits of text"
        raise nothing_to_see("task", built.name, accepted)
    check_lengths("ladder", ladder)
    as_whole("sequences", sequences, 1, MOST_SEQUENCES)


class Tally:
    """What is right, added up over the blocks of a batch. Its rows are those of `evaluate`, flat.

    Args:
        task: The task that the batch is of.
        parts: Those of its parts that are counted; None counts all.
    """

    def __init__(self, task: Task, parts: Sequence[str] | None = None) -> None:
        self.task, self.parts = task, tuple(task.parts if parts is None else parts)
        self.sequences = 0
        self.exact: dict[str, int | Tensor] = dict.fromkeys(("joint", *self.parts), 0)
        self.right: dict[str, int | Tensor] = dict.fromkeys(self.parts, 0)
        self.same: dict[str, int | Tensor] = dict.fromkeys(self.parts, 0)
        self.asked: dict[str, int | Tensor] = dict.fromkeys(self.parts, 0)

    def add(self, logits: Tensor, block: Batch, whole: Tensor | None = None) -> Tensor:
        """Count a block, and return the answers (batch, tokens) at all tokens.

        `whole` has the answers of the whole model, to see which are the same. None: these are they.
        """
        correct = correct_by_part(logits, block, self.task)
        answers = logits[..., : self.task.classes].argmax(-1)
        same = torch.ones_like(answers, dtype=torch.bool) if whole is None else answers == whole
        self.sequences += len(block.inputs)
        for name in self.exact:
            self.exact[name] += correct.exact[name].sum()
        for part in self.parts:
            here = block.part == self.task.parts.index(part)
            self.right[part] += correct.answers[part]
            self.same[part] += (same & here).sum()
            self.asked[part] += here.sum()
        return answers

    def rows(self, **columns: str | float | None) -> list[Row]:
        """A row for each part and for `joint`, which begins with these columns.

        `exact` is the share of sequences with every answer of the part right. `answers` is the
        share of answers that are right. `unchanged` is the share that the whole model gives too.
        """
        rows: list[Row] = []
        for name, exact in self.exact.items():
            row: Row = {**columns, "part": name, "exact": int(exact) / max(1, self.sequences)}
            asked = int(self.asked.get(name, 0))
            for column, counts in (("answers", self.right), ("unchanged", self.same)):
                row[column] = int(counts[name]) / max(1, asked) if name in counts else None
            rows.append(row)
        return rows
