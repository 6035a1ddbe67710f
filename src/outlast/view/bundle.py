"""The page as files to share. What needs a model is computed beforehand, for some sequences."""

from __future__ import annotations

import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from outlast.analysis.scoring import check_lengths
from outlast.errors import OutlastError, RunFolderError, bad_value, require
from outlast.runs.folder import TEMPORARY, require_new_name, why, write_bytes
from outlast.view import router, shipped
from outlast.view.catalogue import Entry, is_bundle
from outlast.view.library import Library
from outlast.view.router import Router
from outlast.view.sequences import drawn_name

#: what a bundle consists of
DATA, ASSETS = "data", "assets"
#: the most tokens of a sequence in a bundle: its attention alone takes megabytes
MOST_TOKENS = 2000
#: of one run, about the most that the sequences of its failure anatomy take
MOST_BYTES = 32 * 2**20

Say = Callable[[str], object]


def write_bundle(
    library: Library, folder: Path, lengths: Sequence[float], sequences: int, say: Say
) -> list[str]:
    """Write the page and its data into a folder that is new, empty or holds a bundle.

    All is written beside it first, and takes the place of the old bundle at the end. Other files in
    the folder stay.

    Args:
        library: The runs.
        folder: Where to write.
        lengths: Multiples of the training length of the sequences to compute.
        sequences: How many of each length, and of each cause and length of the failure anatomy;
            the first seed of each run reads them.
        say: Is told what is written.

    Returns:
        What was left out, and why.
    """
    require_new_name(folder)
    require(sequences >= 0, "sequences", sequences, "a whole number >= 0")
    check_lengths("lengths", lengths)
    if folder.exists() and not folder.is_dir():
        raise bad_value("bundle", folder, "a folder")
    if folder.is_dir() and any(folder.iterdir()) and not is_bundle(folder):
        raise RunFolderError(f"{folder} is not empty and holds no bundle: choose another folder")
    place = folder.resolve()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{place.name}.", suffix=TEMPORARY, dir=place.parent
        ) as temporary:
            new = Path(temporary, "new")
            left_out = _write_all(library, new, lengths, sequences, say)
            _swap(new, place, Path(temporary))
    except OSError as error:
        raise RunFolderError(f"cannot write {folder}: {why(error)}") from None
    return left_out


def _swap(new: Path, place: Path, old: Path) -> None:
    """Move the parts of a new bundle to their place, and those that are there out of the way."""
    place.mkdir(exist_ok=True)
    for name in (ASSETS, DATA, shipped.INDEX):
        if (place / name).exists():
            (place / name).rename(old / name)
        (new / name).rename(place / name)


def _write_all(
    library: Library, folder: Path, lengths: Sequence[float], sequences: int, say: Say
) -> list[str]:
    """Write the files of a bundle; what was left out, and why."""
    for name in sorted(shipped.names() - {shipped.INDEX}):
        write_bytes(folder / ASSETS / name, shipped.read(name)[0])
    write_bytes(folder / shipped.INDEX, shipped.read(shipped.INDEX)[0])
    writer = _Writer(library, folder)
    entries = [entry for entry in library.entries.values() if entry.record is not None]
    for entry in entries:
        say(f"writing {entry.label}")
        writer.write_run(entry)
        if sequences and entry.describe()["trained"]:
            writer.write_sequences(entry, lengths, sequences)
            writer.write_examples(entry, sequences)
    about = library.runs() | writer.about()
    about |= {"live": False, "runs": [entry.describe() for entry in entries]}
    write_bytes(folder / router.RUNS, json.dumps(about, allow_nan=False).encode())
    return writer.left_out


class _Writer:
    """Writes the data of runs; `left_out` says what is not there, and why."""

    def __init__(self, library: Library, folder: Path) -> None:
        self.library, self.folder, self.answer = library, folder, Router(library)
        self.left_out: list[str] = []
        self.sequences: dict[str, list[str]] = {}
        self.examples: dict[str, dict[str, list[Any]]] = {}

    def about(self) -> dict[str, Any]:
        """What the page must know: the seeds, the sequences and the examples of each run."""
        seeds = {
            run: [_first_seed(self.library.entries[run])]
            for run, names in self.sequences.items()
            if names or run in self.examples
        }
        return {"seeds": seeds, "sequences": self.sequences, "examples": self.examples}

    def write_run(self, entry: Entry) -> None:
        """The curves and the failure anatomy."""
        self.sequences[entry.id] = []
        for path in (router.RUN, router.ANATOMY):
            with self._noting(entry.label):
                self._copy(path.format(run=entry.id))

    def write_sequences(self, entry: Entry, lengths: Sequence[float], count: int) -> None:
        """Some sequences of each length."""
        assert entry.record is not None  # for the type checker: the caller has checked it
        for multiple in lengths:
            length = max(1, round(entry.record.length * multiple))
            for name in (drawn_name(length, index) for index in range(count)):
                with self._noting(f"{entry.label}, sequences of length {length}"):
                    self._write_sequence(entry, name)
                    self.sequences[entry.id].append(name)

    def write_examples(self, entry: Entry, count: int) -> None:
        """Examples of each length of the failure anatomy; of each cause, some sequences."""
        seed, found = _first_seed(entry), []
        for length in self._anatomy_lengths(entry):
            with self._noting(f"{entry.label}, examples of length {length}"):
                _check_tokens(self.library.tokens(entry.id, seed, length))
                self._copy(router.EXAMPLES.format(run=entry.id, seed=seed, number=length))
                found.append((length, self.library.examples(entry.id, seed, length)))
        if not found:
            return
        written: list[str] = []
        size, names = 0, _example_names([examples for _, examples in found], count)
        for number, name in enumerate(names):
            if size > MOST_BYTES:
                words = f"{len(names) - number} sequences of the failure anatomy"
                limit = f"a bundle takes about {MOST_BYTES // 2**20} MiB of them for each run"
                self.left_out.append(f"{entry.label}, {words}: {limit}")
                break
            with self._noting(f"{entry.label}, {name}"):
                size += self._write_sequence(entry, name)
                written.append(name)
        self.examples[entry.id] = {"lengths": [length for length, _ in found], "sequences": written}

    def _anatomy_lengths(self, entry: Entry) -> list[int]:
        """The lengths of a failure anatomy. One that cannot be read is already noted."""
        try:
            return sorted({row["length"] for row in self.library.anatomy(entry.id)["rows"]})
        except OutlastError:
            return []

    def _write_sequence(self, entry: Entry, name: str) -> int:
        """All that the page asks about a sequence; how many bytes it took."""
        place = {"run": entry.id, "seed": _first_seed(entry), "name": name}
        trace = self.library.sequence(entry.id, _first_seed(entry), name)
        tokens = len(trace["words"])
        _check_tokens(tokens)
        chunks = math.ceil(tokens / trace["queries"]) if trace["layers"] else 0
        paths = [router.SEQUENCE.format(**place)]
        paths += [router.ATTENTION.format(**place, number=number) for number in range(chunks)]
        paths += [
            router.MAP.format(**place, number=number, head=head)
            for number, layer in enumerate(trace["layers"])
            for head in range(layer["heads"])
        ]
        return sum(self._copy(path) for path in paths)

    def _copy(self, path: str) -> int:
        """Write the answer to a path as a file; how many bytes. An answer that is none raises."""
        reply = self.answer(path)
        if reply.status >= 400:
            raise OutlastError(str(json.loads(reply.body)["error"]))
        write_bytes(self.folder / path, reply.body)
        return len(reply.body)

    @contextmanager
    def _noting(self, what: str) -> Iterator[None]:
        """What goes wrong inside is left out, not an error; the same words are said once."""
        try:
            yield
        except OutlastError as error:
            words = f"{what}: {error}"
            if words not in self.left_out:
                self.left_out.append(words)


def _first_seed(entry: Entry) -> int:
    """The seed whose sequences are computed."""
    return entry.record.seeds[0] if entry.record is not None else 0


def _check_tokens(tokens: int) -> None:
    if tokens > MOST_TOKENS:
        raise OutlastError(f"it has {tokens:,} tokens, and a bundle takes {MOST_TOKENS:,} at most")


def _example_names(found: list[dict[str, Any]], count: int) -> list[str]:
    """Up to `count` sequences of each length, part and cause: the first of all, then the second."""
    cells: dict[tuple[int, str, str], dict[str, None]] = defaultdict(dict)
    for examples in found:
        for row in examples["examples"]:
            name = drawn_name(row["length"], row["row"], examples["sequences"])
            cells[row["length"], row["part"], row["cause"]][name] = None
    columns = zip_longest(*(list(names)[:count] for names in cells.values()))
    return list(dict.fromkeys(name for column in columns for name in column if name is not None))
