"""A long sequence in chunks: the model goes on from its state, so memory is linear in length.

Nothing of the logits outlives a chunk but what is read from them. A model can be read in chunks if
it has ``in_chunks(tokens, size)``, which gives the logits of some tokens after the other. If it has
a number ``chunks_to`` too, a sequence of more tokens must be given at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outlast.errors import OutlastError, bad_value
from outlast.evaluation.outputs import read_logits
from outlast.tasks import Batch

log = logging.getLogger(__name__)

#: sequences of more tokens than this are read in chunks, if nobody says otherwise
LONG = 4096
#: tokens of a chunk, those of all seeds and sequences together, to begin with
AT_ONCE = {"cpu": 2**14, "cuda": 2**17}
#: the fewest tokens of a chunk that nobody has asked for
FEWEST = 256
#: the largest chunk, far more than memory holds
MOST = 2**31 - 1

Stack = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Portion:
    """How much of a test is read at once: so many sequences, and so many tokens of each."""

    sequences: int
    #: None: whole sequences
    chunk: int | None = None
    #: whether the chunk may become smaller
    flexible: bool = True

    def smaller(self) -> Portion | None:
        """The next smaller portion, if there is one."""
        if self.sequences > 1:
            return Portion(self.sequences // 2, self.chunk, self.flexible)
        if self.chunk is None or not self.flexible or self.chunk <= FEWEST:
            return None
        return Portion(1, max(FEWEST, self.chunk // 2))


def choose_chunk(
    model: object, tokens: int, rows: int, device: torch.device, asked: int | None
) -> int | None:
    """How many tokens are read at once, of so many sequences over all seeds; None: all of them.

    `asked` is what the user wants, if anything. If the model cannot do it, that is logged.
    """
    longest = LONG if asked is None else asked
    if tokens <= longest:
        return None
    reason = cannot_chunk(model, tokens)
    if reason is not None:
        level = logging.INFO if asked is None else logging.WARNING
        log.log(level, "sequences of %d tokens are read whole: %s", tokens, reason)
        return None
    if asked is not None:
        return asked
    return max(FEWEST, AT_ONCE.get(device.type, AT_ONCE["cpu"]) // rows)


def cannot_chunk(model: object, tokens: int) -> str | None:
    """Why a model cannot read a sequence in chunks, if so."""
    if not callable(getattr(model, "in_chunks", None)):
        return "the model has no in_chunks(tokens, size), so it cannot go on from a state"
    limit = getattr(model, "chunks_to", None)
    if isinstance(limit, int) and tokens > limit:
        return f"the model takes at most {limit} tokens in chunks"
    return None


def read(model: Stack, batch: Batch, chunk: int | None) -> Iterator[tuple[Batch, Tensor]]:
    """A batch part by part along its tokens, each with its logits (S, batch, tokens, classes)."""
    if chunk is None:
        yield batch, model(batch.inputs)
        return
    start = 0
    for logits in model.in_chunks(batch.inputs, chunk):  # type: ignore[attr-defined]
        stop = start + logits.shape[2]
        yield batch.map(lambda table, a=start, b=stop: table[:, a:b]), logits  # type: ignore[misc]
        start = stop


class Alone:
    """Any model as a stack of one: tokens (b, t) to logits (1, b, t, c).

    `sources` says what was taken as its logits in whole passes; chunks are logits by themselves.
    """

    def __init__(self, model: Callable[[Tensor], Any]) -> None:
        self.model = model
        self.sources: list[str] = []
        self.chunks_to = getattr(model, "chunks_to", None)
        #: of a model of transformers; a larger token is no clear error on a GPU
        self.vocabulary = getattr(getattr(model, "config", None), "vocab_size", None)
        if callable(getattr(model, "in_chunks", None)):
            self.in_chunks = self._in_chunks

    def __call__(self, tokens: Tensor) -> Tensor:
        if isinstance(self.vocabulary, int) and (largest := int(tokens.max())) >= self.vocabulary:
            accepted = f"more than {largest}, which is a token of the task"
            raise bad_value("vocab_size of the model", self.vocabulary, accepted)
        try:
            output = self.model(tokens)
        except IndexError as error:  # a table of embeddings is too small
            raise OutlastError(
                f"the model failed on sequences of {tokens.shape[1]:,} tokens, 0 to "
                f"{int(tokens.max())}: {error}. Is its table of tokens, or of positions, too "
                "small? ceiling= is the most tokens that a model can take; longer lengths are left "
                "out"
            ) from error
        logits, source = read_logits(output, self.model)
        if source not in self.sources:
            log.info("taken as the model's logits: %s, %s", source, tuple(logits.shape))
            self.sources.append(source)
        return logits.to(tokens.device)[None]

    def _in_chunks(self, tokens: Tensor, size: int) -> Iterator[Tensor]:
        for output in self.model.in_chunks(tokens, size):  # type: ignore[attr-defined]
            yield read_logits(output, self.model)[0].to(tokens.device)[None]
