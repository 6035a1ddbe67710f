"""A text as two long rows of tokens, one for training and one for the test.

Documents stand one after the other. A boundary token stands before each of them. Reading and
tokenising a text takes a moment, so the last few are kept for as long as their files do not change.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outlast.errors import OutlastError
from outlast.tasks.text.documents import HUB, find_files, read_documents
from outlast.tasks.text.tokenizer import Tokenizer, read_tokenizer

WORD = re.compile(rb"[A-Za-z]{3,}")


@dataclass(frozen=True)
class Packed:
    """Documents as one row of tokens; `starts` is (documents + 1,), the others (tokens,)."""

    documents: tuple[bytes, ...]
    ids: NDArray[np.int32]
    #: bytes that each token stands for; a boundary stands for none
    sizes: NDArray[np.int32]
    #: for each document the place of its boundary, and at the end the number of tokens
    starts: NDArray[np.int64]
    _on_device: dict[torch.device, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def tokens(self, device: torch.device) -> Tensor:
        """The token ids on a device, (tokens,), in as few bytes as they fit in."""
        if device not in self._on_device:
            small = np.int16 if self.ids.max() < 2**15 else np.int32
            self._on_device[device] = torch.from_numpy(self.ids.astype(small)).to(device)
        return self._on_device[device]


@dataclass(frozen=True)
class Corpus:
    """A text that was read, with its tokenizer."""

    tokenizer: Tokenizer
    train: Packed
    test: Packed
    checksum: str

    @cached_property
    def writing(self) -> tuple[Counter[bytes], Counter[bytes]]:
        """How often the training text has each word, in small letters and with a capital first."""
        small: Counter[bytes] = Counter()
        capital: Counter[bytes] = Counter()
        for document in self.train.documents:
            for word in WORD.findall(document):
                if word.islower():
                    small[word] += 1
                elif word[:1].isupper():
                    capital[word.lower()] += 1
        return small, capital

    @cached_property
    def baselines(self) -> dict[str, float]:
        """Bits per byte of the test text for zlib, and for the byte frequencies of training."""
        text = b"".join(self.test.documents)
        counts = np.ones(256)
        for document in self.train.documents:
            counts += np.bincount(np.frombuffer(document, np.uint8), minlength=256)
        bits = -np.log2(counts / counts.sum())
        frequencies = float(bits[np.frombuffer(text, np.uint8)].mean())
        return {"zlib": 8 * len(zlib.compress(text, 9)) / len(text), "frequencies": frequencies}

    @cached_property
    def commonest(self) -> float:
        """The share of the most frequent token of training."""
        return float(np.bincount(self.train.ids).max() / len(self.train))


def load_corpus(
    path: str, tokenizer: str, files: str, share: float, megabytes: int | None
) -> Corpus:
    """The text at a path. Files that have changed are read again."""
    stamp: tuple[tuple[str, int, int], ...] = ()
    if not path.startswith(HUB):
        try:
            stats = [(str(file), file.stat()) for file in find_files(path, files)]
        except OSError as error:  # a file went away, or may not be looked at
            raise OutlastError(f"cannot read {error.filename}: {error.strerror}") from None
        stamp = tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
    return _load(path, tokenizer, files, share, megabytes, stamp)


@lru_cache(maxsize=4)
def _load(
    path: str,
    tokenizer: str,
    files: str,
    share: float,
    megabytes: int | None,
    stamp: tuple[tuple[str, int, int], ...],
) -> Corpus:
    encoder = read_tokenizer(tokenizer)
    documents = read_documents(path, files, share, megabytes)
    pair = f"{documents.checksum} {encoder.checksum}".encode()
    checksum = blake2b(pair, digest_size=16).hexdigest()
    return Corpus(encoder, pack(documents.train, encoder), pack(documents.test, encoder), checksum)


def pack(documents: Sequence[bytes], encoder: Tokenizer) -> Packed:
    """Documents one after the other, with a boundary (the id after the last) before each."""
    ids: list[NDArray[np.int32]] = []
    sizes: list[NDArray[np.int32]] = []
    for document in documents:
        tokens, lengths = encoder.encode(document)
        ids.append(np.concatenate([np.asarray([encoder.size], np.int32), tokens]))
        sizes.append(np.concatenate([np.zeros(1, np.int32), lengths]))
    starts = np.cumsum([0, *(len(each) for each in ids)], dtype=np.int64)
    return Packed(tuple(documents), np.concatenate(ids), np.concatenate(sizes), starts)
