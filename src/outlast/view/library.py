"""What the page can ask for, of runs that are read when they are first wanted."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

from outlast.errors import bad_value
from outlast.runs.analyses import ANATOMY
from outlast.runs.folder import CHECKPOINT, METRICS, RESULTS, RUN
from outlast.runs.records import RunRecord
from outlast.version import __version__
from outlast.view.anatomy import read_anatomy
from outlast.view.catalogue import Entry
from outlast.view.curves import read_curves
from outlast.view.live import LiveModel

T = TypeVar("T")
#: how many models are kept in memory
MODELS = 4


class Library:
    """The runs of a page. Threads may share it: one at a time uses a model."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = {entry.id: entry for entry in entries}
        self._curves: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {}
        self._models: dict[tuple[str, int], LiveModel] = {}
        self._lock = RLock()

    def runs(self) -> dict[str, Any]:
        """Every run, as the list on the page shows it, and the command for its failure anatomy."""
        runs = [
            entry.describe()
            | {"analyse": f"outlast analyse {shlex.quote(str(entry.folder))} --only {ANATOMY}"}
            for entry in self.entries.values()
        ]
        return {"outlast": __version__, "live": True, "runs": runs}

    def curves(self, run: str) -> dict[str, Any]:
        """The curves of a run, read anew if its files have changed."""
        folder = self._entry(run).folder
        ages = tuple(_age(folder / name) for name in (RUN, METRICS, RESULTS))
        kept = self._curves.get(run)
        if kept is None or kept[0] != ages:
            kept = self._curves[run] = ages, read_curves(folder)
        return kept[1]

    def anatomy(self, run: str) -> dict[str, Any]:
        """The failure anatomy of a run."""
        return read_anatomy(self._entry(run).folder)

    def lengths(self, run: str) -> dict[str, Any]:
        """The lengths that the sequences of a run may have, without its model."""
        return self._load_model(run, self._record(run).seeds[0]).lengths()

    def sequence(self, run: str, seed: int, name: str) -> dict[str, Any]:
        """What a model makes of a sequence, all but the attention."""
        return self._with_model(run, seed, lambda model: model.trace(name))

    def attention(self, run: str, seed: int, name: str, number: int) -> dict[str, Any]:
        """The attention of some queries of a sequence: the chunk of a number.

        It is of the model that made the last trace, even if the run was trained further since.
        """
        return self._with_model(
            run, seed, lambda model: model.attention(name, number), newest=False
        )

    def attention_map(
        self, run: str, seed: int, name: str, layer: int, head: int
    ) -> dict[str, Any]:
        """The whole attention of a head over a sequence, as a picture. The model is as above."""
        return self._with_model(
            run, seed, lambda model: model.attention_map(name, layer, head), newest=False
        )

    def examples(self, run: str, seed: int, length: int) -> dict[str, Any]:
        """Sequences of a length in which an answer failed for each cause."""
        return self._with_model(run, seed, lambda model: model.examples(length))

    def tokens(self, run: str, seed: int, length: int) -> int:
        """How many tokens a sequence of a length has."""
        return self._with_model(run, seed, lambda model: model.task.tokens(length))

    def _with_model(
        self, run: str, seed: int, work: Callable[[LiveModel], T], newest: bool = True
    ) -> T:
        record = self._record(run)
        if seed not in record.seeds:
            accepted = f"one of {', '.join(map(str, record.seeds))}"
            raise bad_value("seed", seed, accepted)
        with self._lock:
            return work(self._model(run, seed, newest))

    def _model(self, run: str, seed: int, newest: bool) -> LiveModel:
        """A seed's model that is in memory, or that of the last checkpoint if it is newer."""
        model = self._models.pop((run, seed), None)
        if model is None or (newest and model.checkpoint != self._checkpoint(run)):
            model = self._load_model(run, seed)
        self._models[run, seed] = model  # the last one used comes last
        while len(self._models) > MODELS:
            del self._models[next(iter(self._models))]
        return model

    def _load_model(self, run: str, seed: int) -> LiveModel:
        tested = {int(row["length"]) for row in self.curves(run)["rows"]}
        folder, checkpoint = self.entries[run].folder, self._checkpoint(run)
        return LiveModel(folder, seed, sorted(tested), checkpoint)

    def _checkpoint(self, run: str) -> str:
        """What tells a checkpoint of a run from others: when it was written."""
        return str(_age(self._entry(run).folder / CHECKPOINT))

    def _record(self, run: str) -> RunRecord:
        entry = self._entry(run)
        if entry.record is None:
            raise bad_value("run", run, f"a run that can be read: {entry.problem}")
        return entry.record

    def _entry(self, run: str) -> Entry:
        if run not in self.entries:
            raise bad_value("run", run, f"a run of this page: {', '.join(list(self.entries)[:5])}")
        return self.entries[run]


def _age(path: Path) -> int:
    """When a file was last written; 0 if it is not there."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
