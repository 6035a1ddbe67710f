"""The sequences that the page steps through: drawn by the task, or typed by a person.

A sequence has a name, which stands in the page's address. ``draw-25-3`` is the fourth sequence of
length 25 among the 256 that analyses look at; ``draw-25-3-of-64`` is the fourth of 64.
``own-k3 5 k1 8 = k1`` has the tokens that were typed.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

import torch

from outlast.analysis.sequences import SEQUENCES
from outlast.errors import OutlastError, bad_value
from outlast.streams import stream
from outlast.tasks import Batch, Task
from outlast.tasks.base import IGNORE, PADDING

DRAWN = re.compile(r"draw-(\d{1,9})-(\d{1,9})(?:-of-(\d{1,6}))?")
OWN = "own-"
#: the most tokens that the page steps through
MOST_TOKENS = 20_000


@dataclass(frozen=True)
class Sequence:
    """Tokens, the answer due at each (None: none), and the part that an answer tests."""

    tokens: tuple[int, ...]
    expected: tuple[int | None, ...]
    parts: tuple[str | None, ...]

    def batch(self, parts: Collection[str] = ()) -> Batch:
        """The sequence as a batch of one. Answers that test none of these parts are of no part."""
        answers = [IGNORE if answer is None else answer for answer in self.expected]
        numbers = {part: number for number, part in enumerate(parts)}
        tested = [numbers.get(part or "", -1) for part in self.parts]
        return Batch(*(torch.tensor([each]) for each in (self.tokens, answers, tested)))


def drawn_name(length: int, index: int, among: int = SEQUENCES) -> str:
    """The name of a drawn sequence; `among` is how many are drawn."""
    return f"draw-{length}-{index}" + (f"-of-{among}" if among != SEQUENCES else "")


def make_sequence(task: Task, name: str) -> Sequence:
    """The sequence of a name."""
    if match := DRAWN.fullmatch(name):
        return _draw(task, int(match[1]), int(match[2]), int(match[3] or SEQUENCES))
    if name.startswith(OWN):
        return _typed(task, name.removeprefix(OWN))
    raise bad_value("sequence", name, "draw-LENGTH-NUMBER, or own- and the words of a sequence")


def _draw(task: Task, length: int, index: int, among: int) -> Sequence:
    if not 1 <= among <= SEQUENCES:
        raise bad_value("of", among, f"1 to {SEQUENCES} sequences that are drawn")
    if index >= among:
        raise bad_value("number", index, f"a number below {among}, the sequences that are drawn")
    check_tokens(task.tokens(length))
    cpu = torch.device("cpu")
    batch = task.test_batch(length, among, stream(cpu, "evaluate", length))
    tokens, answers, parts = (t[index].tolist() for t in (batch.inputs, batch.targets, batch.part))
    names = task.test_parts if task.measure == "bits" else task.parts
    end = max((i for i, t in enumerate(tokens, 1) if task.word(t) != PADDING), default=0)
    return Sequence(
        tuple(tokens[:end]),
        tuple(a if a >= 0 else None for a in answers[:end]),
        tuple(names[p] if p >= 0 else None for p in parts[:end]),
    )


def _typed(task: Task, text: str) -> Sequence:
    words = text.split()
    if not words:
        raise bad_value("sequence", "", f"words with a space between, such as {_examples(task)}")
    check_tokens(len(words))
    if task.measure == "bits":
        raise OutlastError("a sequence of text cannot be typed here: step through a drawn one")
    ids = {task.word(token): token for token in range(task.vocabulary)}
    for word in words:
        if word not in ids:
            raise bad_value("sequence", word, f"words of {task.name}, such as {_examples(task)}")
    tokens = tuple(ids[word] for word in words)
    expected = tuple(task.solve(tokens))
    _check_answers(task, words, expected)
    # which part an answer belongs to is known of drawn sequences alone
    return Sequence(tokens, expected, tuple(None if e is None else "" for e in expected))


def _check_answers(task: Task, words: list[str], expected: tuple[int | None, ...]) -> None:
    """Refuse words that ask for what is no answer: in ``w r`` of `flipflop` no bit is written."""
    # symbols, such as padding, are no answers, even where a test counts them among the classes
    most = min(task.classes, task.vocabulary - len(task.symbols)) - 1
    for place, (word, answer) in enumerate(zip(words, expected, strict=True), 1):
        if answer is not None and answer > most:
            why = f"no answer from {task.word(0)} to {task.word(most)} is right at token {place}"
            accepted = f"words such as {_examples(task)}: {why}, {word}"
            raise bad_value("sequence", " ".join(words), accepted)


def _examples(task: Task) -> str:
    """A short drawn sequence: the words that this task has, in a sensible order."""
    drawn = task.sample(task.lengths[0], 1, torch.Generator().manual_seed(0)).inputs[0].tolist()
    words = [task.word(token) for token in drawn if task.word(token) != PADDING]
    return " ".join(words[:12])


def check_tokens(tokens: int) -> None:
    """Refuse a sequence that is too long for the page."""
    if tokens > MOST_TOKENS:
        raise OutlastError(
            f"this sequence has {tokens:,} tokens: the page steps through {MOST_TOKENS:,} at most"
        )


def stops(task: Task, tested: list[int]) -> list[int]:
    """The lengths of the slider: every one that is trained on, then ever larger steps.

    It goes to the longest length that was tested, or ten times as far as training went.
    """
    least, most = task.shortest, max([*tested, 10 * task.lengths[1]])
    if task.ceiling is not None:
        most = min(most, task.ceiling)
    lengths, length = {*tested, most}, float(least)
    while length <= most:
        lengths.add(int(length))
        length = max(length + 1, length * 1.05 if length >= task.lengths[1] else length + 1)
    step = task.multiple
    rounded = {max(step, n // step * step) for n in lengths}
    return sorted(n for n in rounded if least <= n <= most and task.tokens(n) <= MOST_TOKENS)
