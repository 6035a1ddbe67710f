"""Tokens as a person reads them, and a sequence drawn as two rows, one over the other::

    tokens  3 1 4 =
    labels  3 4 8 8

A dot in the second row means that nothing is asked at that token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.tasks.base import IGNORE

if TYPE_CHECKING:
    from outlast.tasks.base import Batch, Task

#: how padding is shown
PADDING = "·"
NOTHING = "."


def spell(token: int, digits: int, keys: int, marks: str) -> str:
    """The word for a token where ids run digits first, then keys, then single-sign marks."""
    if token < digits:
        return str(token)
    if token < digits + keys:
        return f"k{token - digits}"
    return marks[token - digits - keys]


def draw(task: Task, batch: Batch, row: int = 0) -> str:
    """One row of a batch as a token row over a label row, padding left out."""
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
