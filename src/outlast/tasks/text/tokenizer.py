"""From the bytes of a document to tokens, and how many bytes each token stands for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.errors import MissingExtraError, OutlastError, bad_value
from outlast.tasks.text.documents import as_place

BYTES = "bytes"
Numbers = NDArray[np.int32]
#: signs for bytes that cannot be seen
SIGNS = {ord(" "): "␣", ord("\n"): "␤", ord("\t"): "␉"}


class Tokenizer(ABC):
    """Bytes to token ids below `size`."""

    size: int
    #: what decides the tokens
    checksum: str

    @abstractmethod
    def encode(self, document: bytes) -> tuple[Numbers, Numbers]:
        """Token ids, and for each the bytes of the document that it stands for: they add up."""

    @abstractmethod
    def word(self, token: int) -> str:
        """How a token is shown, without spaces."""


class Bytes(Tokenizer):
    """Each byte is a token."""

    size = 256
    checksum = BYTES

    def encode(self, document: bytes) -> tuple[Numbers, Numbers]:
        ids = np.frombuffer(document, np.uint8).astype(np.int32)
        return ids, np.ones_like(ids)

    def word(self, token: int) -> str:
        return SIGNS.get(token) or (chr(token) if 33 <= token < 127 else f"x{token:02x}")


class Fast(Tokenizer):
    """A tokenizer of Hugging Face's `tokenizers`. It must say where in the text a token stands."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.size = max(inner.get_vocab(with_added_tokens=True).values()) + 1
        self.checksum = blake2b(inner.to_str().encode(), digest_size=16).hexdigest()

    def encode(self, document: bytes) -> tuple[Numbers, Numbers]:
        try:
            text = document.decode()
        except UnicodeDecodeError as error:
            place = f"byte {error.start} of a document of {len(document):,} bytes is not"
            raise OutlastError(
                f"tokenizer: expected text in UTF-8, but {place}; tokenizer=bytes takes any text"
            ) from None
        coded = self.inner.encode(text, add_special_tokens=False)
        if not coded.ids:
            return np.zeros(0, np.int32), np.zeros(0, np.int32)
        # the bytes before each character; a token reaches from where the last one ended, so that
        # what lies between two tokens is counted, and so are the bytes at the end
        before = np.cumsum([0, *(len(sign.encode()) for sign in text)])
        ends = np.maximum.accumulate(before[[end for _, end in coded.offsets]])
        ends[-1] = len(document)
        sizes = np.diff(ends, prepend=0)
        return np.asarray(coded.ids, np.int32), sizes.astype(np.int32)

    def word(self, token: int) -> str:
        piece = self.inner.id_to_token(token) or ""
        return f"{token}:{'_'.join(piece.split())}"


def read_tokenizer(name: str) -> Tokenizer:
    """`bytes`, a ``tokenizer.json`` or its folder, or a name that `transformers` knows."""
    if name == BYTES:
        return Bytes()
    place = as_place("tokenizer", name)
    file = place / "tokenizer.json" if place.is_dir() else place
    if file.is_file():
        return Fast(_from_file(name, file))
    if place.is_dir() or place.suffix == ".json":
        raise bad_value("tokenizer", name, f"{BYTES}, or a tokenizer.json: there is no {file}")
    return Fast(_from_name(name))


def _from_file(name: str, file: Path) -> Any:
    try:
        from tokenizers import Tokenizer as Loader
    except ImportError:
        raise MissingExtraError(f"tokenizer={name}", "tokenizers", "text") from None
    try:
        return Loader.from_file(str(file))
    except Exception as error:  # it raises nothing more special
        raise bad_value("tokenizer", name, f"a tokenizer.json of Hugging Face: {error}") from None


def _from_name(name: str) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        source = f"tokenizer={name}, which is not {BYTES} and no file tokenizer.json that is there,"
        raise MissingExtraError(source, "transformers", "text") from None
    try:
        loaded = AutoTokenizer.from_pretrained(name, use_fast=True)
    except Exception as error:  # of another package: no such name, no network
        words = " ".join(str(error).split())[:200]
        accepted = f"{BYTES}, a tokenizer.json, or a name that transformers can load: {words}"
        raise bad_value("tokenizer", name, accepted) from None
    inner = getattr(loaded, "backend_tokenizer", None)
    if inner is None:
        raise bad_value("tokenizer", name, "a fast tokenizer, which says where a token stands")
    return inner
