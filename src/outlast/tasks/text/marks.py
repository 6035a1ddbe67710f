"""Which tokens of a text test recall, and which test state.

All of this is our own re-design. Each token of the test text has one mark:

========== =====================================================================================
`recall`   a name or number that stood in the document before, within the training length
`far`      the same, but its last occurrence lies beyond the training length, within reach
`first`    a name or number at its first occurrence in the document
`state`    a closing bracket or quote with its partner before it, or the indentation of a line
`other`    everything else
========== =====================================================================================

A name is a word of at least three letters that begins with a capital, and that the training text
writes with a capital more often than without. A number has at least two digits. Letters are those
of ASCII. `far` cannot be recalled at the training length, only with a longer context; the marks are
the same at every length. Names that recur are more frequent names than those at their first
occurrence, so `recall` and `first` are not of the same words. Compare one of them between models,
or between lengths.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from outlast.tasks.text.corpus import Corpus, Packed

MARKS = ("other", "recall", "far", "first", "state")
OTHER, RECALL, FAR, FIRST, STATE = range(len(MARKS))
NAMED = re.compile(rb"(?<![A-Za-z])[A-Z][A-Za-z]{2,}(?![A-Za-z])|(?<!\d)\d[\d.,]*\d(?!\d)")
SIGNS = re.compile(rb"[()\[\]{}\"]|\xe2\x80[\x9c\x9d]|\n[ \t]+|\n\s*\n")
PAIRS = {b")": b"(", b"]": b"[", b"}": b"{", b"\xe2\x80\x9d": b"\xe2\x80\x9c"}


def mark_tokens(corpus: Corpus, near: int, far: int, reach: int) -> NDArray[np.int8]:
    """The mark of each token of the test text.

    An earlier occurrence at most `near` tokens back is `recall`. One that is more than `far` and at
    most `reach` tokens back is `far`.
    """
    packed = corpus.test
    marks = np.full(len(packed), OTHER, np.int8)
    for document, start, stop in zip(
        packed.documents, packed.starts[:-1], packed.starts[1:], strict=True
    ):
        place = _token_of_byte(packed, int(start) + 1, int(stop))
        for begin, end in closings(document):
            _mark(marks, place, begin, end, STATE)
        last: dict[bytes, int] = {}
        for begin, end in names(document, corpus):
            if begin >= len(place):
                continue
            word, token = document[begin:end], int(place[begin])
            if word not in last:
                _mark(marks, place, begin, end, FIRST)
            elif token - last[word] <= near:
                _mark(marks, place, begin, end, RECALL)
            elif far < token - last[word] <= reach:
                _mark(marks, place, begin, end, FAR)
            last[word] = token
    return marks


def _token_of_byte(packed: Packed, start: int, stop: int) -> NDArray[np.int64]:
    """For each byte of a document, the place of its token in the whole row."""
    return np.repeat(np.arange(start, stop), packed.sizes[start:stop])


def _mark(
    marks: NDArray[np.int8], place: NDArray[np.int64], begin: int, end: int, mark: int
) -> None:
    marks[place[begin:end]] = mark


def names(document: bytes, corpus: Corpus) -> Iterator[tuple[int, int]]:
    """Where names and numbers begin and end."""
    small, capital = corpus.writing
    for match in NAMED.finditer(document):
        word = match[0].lower()
        if word[:1].isdigit() or capital[word] >= small[word]:
            yield match.span()


def closings(document: bytes) -> Iterator[tuple[int, int]]:
    """Closing brackets and quotes whose partner stands before, and indentations.

    A straight quote closes if one is open in its paragraph.
    """
    opened: list[bytes] = []
    quoting = False
    for match in SIGNS.finditer(document):
        sign, (begin, end) = match[0], match.span()
        if sign[:1] == b"\n":
            if b"\n" in sign[1:]:
                quoting = False
            else:
                yield begin + 1, end
        elif sign == b'"':
            if quoting:
                yield begin, end
            quoting = not quoting
        elif sign not in PAIRS:
            opened.append(sign)
        elif opened and opened[-1] == PAIRS[sign]:
            opened.pop()
            yield begin, end
