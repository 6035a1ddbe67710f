"""A sequence drawn as two rows, tokens over answers::

    tokens  3 1 4 =
    labels  3 4 8 8

A dot in the second row means that no answer is expected at that token.
"""

from __future__ import annotations

from outlast.arguments import as_whole, shown
from outlast.errors import bad_value
from outlast.tasks.base import IGNORE, PADDING, Batch, Task

#: how a position without an answer is shown
NOTHING = "."


def draw(task: Task, batch: Batch, row: int = 0) -> str:
    """One row of a batch as a token row over a label row, padding left out."""
    if not isinstance(task, Task):
        raise bad_value("task", shown(task), "a task, such as outlast.task('parity')")
    if not isinstance(batch, Batch):
        raise bad_value("batch", shown(batch), "a Batch, such as next(task.stream(batch=8))")
    row = as_whole("row", row, 0, len(batch.inputs) - 1)
    tokens = [task.word(token) for token in batch.inputs[row].tolist()]
    while tokens and tokens[-1] == PADDING:
        tokens.pop()
    answers = batch.targets[row].tolist()[: len(tokens)]
    labels = [NOTHING if answer == IGNORE else task.word(answer) for answer in answers]
    widths = [max(len(token), len(label)) for token, label in zip(tokens, labels, strict=True)]
    return "\n".join(
        _line(name, words, widths) for name, words in (("tokens", tokens), ("labels", labels))
    )


def _line(name: str, words: list[str], widths: list[int]) -> str:
    padded = (word.ljust(width) for word, width in zip(words, widths, strict=True))
    return f"{name}  {' '.join(padded)}".rstrip()
