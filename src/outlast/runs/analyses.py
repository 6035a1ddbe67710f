"""Tables of analyses in a run folder: ``analysis/NAME.json``, one for each analysis.

All rows of a table have the same settings. A further call adds its seeds and steps to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from outlast.errors import RunFolderError, bad_value
from outlast.runs.checkpoint import load_state
from outlast.runs.folder import ANALYSIS, CHECKPOINT, has_file, write_json
from outlast.runs.reading import FORMAT, checked, read_object
from outlast.runs.records import read_run
from outlast.version import __version__

#: a flat row of a table
Row = dict[str, str | int | float | None]
#: a seed and a step; None is the end of training
SeedStep = tuple[int, int | None]

ANATOMY = "anatomy"
#: how the command line calls a setting, where it has another name
FLAGS = {"ladder": "lengths"}


class AnalysisTable(Struct, frozen=True, kw_only=True):
    """What one file holds: rows by seed and step, and the settings of all of them."""

    format: int = FORMAT
    #: the version of outlast that wrote it
    outlast: str = __version__
    analysis: str
    settings: dict[str, Any] = {}
    #: the step of the last checkpoint when it was written, that of rows without a step
    trained: int | None = None
    rows: list[Row]


class TableRow(Struct, frozen=True, kw_only=True):
    """What every row of a table has."""

    seed: int
    step: int | None


class LengthRow(TableRow, frozen=True, kw_only=True):
    """What a row has of a table with lengths, which all have but that of `gradients`."""

    multiple: float


class AblationRow(LengthRow, frozen=True, kw_only=True):
    """What a row of `ablation` has besides."""

    ablation: str
    part: str


class AnatomyRow(Struct, frozen=True, kw_only=True):
    """A row of the failure anatomy."""

    seed: int
    step: int | None
    multiple: float
    length: int
    part: str
    cause: str
    share: float
    count: int | None = None
    #: an `Example` as JSON
    example: str | None = None


class RetrievingHeads(Struct, frozen=True, kw_only=True):
    """The heads that look answers up, as they do at the training length."""

    layer: str
    heads: list[int]
    #: they look at the token that holds the answer, or so many tokens after it
    offset: int
    #: the mean weight of the best of them there
    weight: float

    @property
    def names(self) -> list[str]:
        """Each head with its layer."""
        return [head_name(self.layer, head) for head in self.heads]


def head_name(layer: str, head: int) -> str:
    """A head with its layer, as examples name it."""
    return f"{layer}, head {head}"


class Example(Struct, frozen=True, kw_only=True):
    """A wrong answer: the sequence up to the token at which it is due, which is the last one."""

    words: list[str]
    #: the token that holds the answer, if one does
    source: int | None
    expected: str
    given: str
    #: where a probe reads the running state; "" if none does
    read_from: str
    #: the true state at the tokens that show one, and what the probe reads there
    state: list[int | None]
    read: list[int | None]
    #: the attention of the last token over all tokens, by layer and head
    heads: dict[str, list[float]]
    #: which of them retrieve; None if none does, and in tables of older versions
    retrieving: RetrievingHeads | None = None
    #: the token that these look at most, if one holds the answer
    attended: int | None = None


class _AnatomyRows(Struct, frozen=True):
    rows: list[AnatomyRow]


class _TableRows(Struct, frozen=True):
    rows: list[TableRow]


class _LengthRows(Struct, frozen=True):
    rows: list[LengthRow]


class _AblationRows(Struct, frozen=True):
    rows: list[AblationRow]


#: every analysis, and what is checked of the rows of its table when it is read
ROWS: dict[str, type[Struct]] = {
    ANATOMY: _AnatomyRows,
    "ablation": _AblationRows,
    "state-probe": _LengthRows,
    "key-probe": _LengthRows,
    "sharpness": _LengthRows,
    "covariance": _LengthRows,
    "token-filter": _LengthRows,
    "gradients": _TableRows,
}


def write_analysis(folder: Path, table: AnalysisTable) -> Path:
    """Write a table to the folder of a run; the tables of other analyses stay.

    Rows of other seeds and steps that the file has stay too, if they have the same settings.
    """
    path, new = _path(folder, table.analysis), _seed_steps(table.rows)
    old = table_to_extend(folder, table.analysis, table.settings, list(new))
    if old is not None:
        stay = [row for row in old.rows if _seed_step(row) not in new]
        table = msgspec.structs.replace(table, rows=[*stay, *table.rows])
    table = msgspec.structs.replace(table, trained=_last_step(folder))
    path.parent.mkdir(exist_ok=True)
    write_json(path, msgspec.to_builtins(table))
    return path


def delete_analysis(folder: Path, name: str) -> None:
    """Delete the table of an analysis, if there is one."""
    _path(folder, name).unlink(missing_ok=True)


def table_to_extend(
    folder: Path, name: str, settings: Mapping[str, Any], new: Collection[SeedStep]
) -> AnalysisTable | None:
    """The table that rows of these seeds and steps are added to; None if they replace it.

    They replace a table of other settings, of another version, or from before further training, if
    they are all that it has. Else they are refused: its other rows would be lost.
    """
    old = read_analysis(folder, name)
    if old is None:
        return None
    other = [field for field, value in settings.items() if old.settings.get(field) != value]
    is_old = _is_old(folder, old)
    if not other and not is_old and old.outlast == __version__:
        return old
    lost = [seed_step for seed_step in _seed_steps(old.rows) if seed_step not in new]
    if lost:
        seed, step = lost[0]
        at = "the end of training" if step is None else f"step {step}"
        made = [f"{FLAGS.get(field, field)} {_words(old.settings.get(field))}" for field in other]
        if is_old:
            made.append(f"rows of step {old.trained}, before further training")
        what = ", ".join(made) or f"rows of outlast {old.outlast}"
        raise RunFolderError(
            f"{_path(folder, name)} has {what}: this call would lose its rows of seed {seed} at "
            f"{at}. Give the same settings, or all the seeds and steps that it has; or delete it"
        )
    return None


def read_analysis(folder: Path, name: str) -> AnalysisTable | None:
    """The table of an analysis of a run, if there is one."""
    path = _path(folder, name)
    if not has_file(path.parent, path.name):
        return None
    try:
        table = checked(read_object(path, "analysed yet"), AnalysisTable, path)
        checked({"rows": table.rows}, ROWS[name], path)
    except RunFolderError as error:
        raise _with_advice(error, folder, name) from None
    return table


def anatomy_at_end(folder: Path, causes: Collection[str]) -> list[AnatomyRow]:
    """The rows of the failure anatomy of a run at the end of training; none without a table.

    Of each seed they are those without a step, else those of the last step. A row without what it
    must have, or with a cause that is none of `causes`, is an error.
    """
    table, path = read_analysis(folder, ANATOMY), _path(folder, ANATOMY)
    if table is None:
        return []
    rows = checked({"rows": table.rows}, _AnatomyRows, path).rows
    for number, row in enumerate(rows):
        if row.cause not in causes:
            problem = bad_value(f"rows[{number}].cause", row.cause, f"one of {', '.join(causes)}")
            raise _with_advice(RunFolderError(f"cannot read {path}: {problem}"), folder, ANATOMY)
    ended = {row.seed for row in rows if row.step is None}
    last = _last_step(folder) if any(row.seed not in ended for row in rows) else None
    return [row for row in rows if row.step == (None if row.seed in ended else last)]


def read_example(folder: Path, row: AnatomyRow) -> Example | None:
    """The example of a row of the failure anatomy, if it has one."""
    if row.example is None:
        return None
    try:
        return msgspec.json.decode(row.example, type=Example)
    except msgspec.MsgspecError as error:
        problem = f"cannot read {_path(folder, ANATOMY)}: example: {error}"
        raise _with_advice(RunFolderError(problem), folder, ANATOMY) from None


def age(folder: Path, name: str) -> str:
    """In words, that a table is of an earlier step than the run; empty if it is not."""
    table = read_analysis(folder, name)
    if table is None or not _is_old(folder, table):
        return ""
    return f"{name} is of step {table.trained:,}, the run is at step {_last_step(folder):,}"


def _is_old(folder: Path, table: AnalysisTable) -> bool:
    """Whether the run was trained further after its table of the end was written."""
    if table.trained is None or not has_file(folder, CHECKPOINT):
        return False
    of_the_end = any(row.get("step") is None for row in table.rows)
    return of_the_end and table.trained != _last_step(folder)


def _last_step(folder: Path) -> int:
    """The step of the last checkpoint; without one, the last that was to be trained."""
    if has_file(folder, CHECKPOINT):
        return load_state(folder).step
    return read_run(folder).settings.steps


def _with_advice(error: RunFolderError, folder: Path, name: str) -> RunFolderError:
    """An error about a table that says what helps, too."""
    again = f"'outlast analyse {folder} --only {name}' makes it again"
    return RunFolderError(f"{error}; if it is damaged, delete it: {again}")


def _path(folder: Path, name: str) -> Path:
    return folder / ANALYSIS / f"{name}.json"


def _seed_step(row: Row) -> tuple[Any, Any]:
    return row.get("seed"), row.get("step")


def _seed_steps(rows: Sequence[Row]) -> dict[SeedStep, None]:
    """The seeds and steps of rows, in their order."""
    return dict.fromkeys(map(_seed_step, rows))


def _words(value: object) -> str:
    return " ".join(f"{each:g}" for each in value) if isinstance(value, list) else str(value)
