"""Testing a run folder: every seed at every length, into `results.json`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from outlast.errors import bad_value
from outlast.evaluation.ladder import default_sequences, evaluate_stack
from outlast.evaluation.remarks import nan_remarks
from outlast.machine import least_level, precision
from outlast.runs.checkpoint import TrainingState
from outlast.runs.folder import PREVIOUS_RESULTS, RESULTS, write_bytes
from outlast.runs.records import ResultRow, Results, is_tested, write_results
from outlast.runs.spec import LADDER
from outlast.runs.status import Coverage
from outlast.workflow.load import open_run

log = logging.getLogger(__name__)

PRECISIONS = ("fp32", "tf32", "bf16")


@dataclass(frozen=True)
class Evaluation:
    """How a run is tested: multiples of the training length, sequences each, matmul precision.

    Without a number of sequences it is that of the task (`default_sequences`). `chunk` is the most
    tokens of a sequence that are read at a time; without it that depends on length and memory.
    """

    ladder: Sequence[float] = LADDER
    sequences: int | None = None
    precision: str = "fp32"
    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise bad_value("precision", self.precision, " | ".join(PRECISIONS))


def evaluate_run(
    folder: Path,
    evaluation: Evaluation = Evaluation(),
    device: torch.device | str = "cpu",
    out: Path | None = None,
    say: Callable[[str], None] = log.info,
    on_length: Callable[[str], None] | None = None,
) -> list[ResultRow]:
    """Test a run and write `results.json`, or another file; returns its rows.

    A seed that was parked or has succeeded before the end is tested as it was left; its rows say
    at which step that was. The run's own results are not replaced where no length can be tested at
    all: that is an error. Results of the same step that cover more are kept as
    `results-before.json`, and `say` is told. Warnings are logged for lengths with NaN logits.
    `on_length` is told, in words, which length comes next.
    """
    device = torch.device(device)
    bf16 = torch.autocast(device.type, torch.bfloat16, enabled=evaluation.precision == "bf16")
    # a remark that a kernel is slow is of use in training; in a test nobody can act on it
    quiet = least_level("outlast.kernels", logging.WARNING)
    with precision(evaluation.precision, device), bf16, quiet:
        trained = open_run(folder, device)
        if trained.unfinished:
            say(f"{folder} is unfinished: this is a test of {trained.unfinished}")
        sequences = evaluation.sequences
        if sequences is None:
            sequences = default_sequences(trained.model.task)
        tables = evaluate_stack(
            trained.predictor(),
            len(trained.run.seeds),
            trained.model.task,
            evaluation.ladder,
            sequences,
            device,
            trained.model.model.ceiling,
            skip_too_large=True,
            on_length=on_length,
            chunk=evaluation.chunk,
        )
    rows = _with_seeds(tables, trained.run.seeds, trained.state)
    results = Results(
        step=trained.state.step,
        sequences=sequences,
        precision=evaluation.precision,
        rows=tuple(rows),
    )
    if out is None or out.resolve() == (folder / RESULTS).resolve():
        _check_tested(rows)
        _keep_larger(folder, Coverage.of(results), say)
    write_results(out or folder / RESULTS, results)
    for remark in nan_remarks(rows):
        log.warning("%s: %s", folder.name, remark)
    return rows


def _with_seeds(
    tables: Sequence[Sequence[ResultRow]], seeds: Sequence[int], state: TrainingState
) -> list[ResultRow]:
    """All rows in one list, each with its seed and with the step the seed was left at, if any."""
    rows: list[ResultRow] = []
    for index, (seed, table) in enumerate(zip(seeds, tables, strict=True)):
        about: dict[str, int] = {"seed": seed}
        if (step := state.parked[index]) is not None:
            about["parked"] = step
        if (step := state.succeeded[index]) is not None:
            about["succeeded"] = step
        rows += [{**about, **row} for row in table]  # type: ignore[typeddict-item]
    return rows


def _keep_larger(folder: Path, new: Coverage, say: Callable[[str], None]) -> None:
    """Keep results that are replaced by fewer, unless larger ones are kept already."""
    old = Coverage.read(folder / RESULTS)
    kept = Coverage.read(folder / PREVIOUS_RESULTS)
    if old is None or old.step != new.step:
        return
    if old.tested <= new.tested and old.sequences <= new.sequences:
        return
    path = folder / PREVIOUS_RESULTS
    if kept is None or kept.step != new.step or old.size >= kept.size:
        write_bytes(path, (folder / RESULTS).read_bytes())
        say(f"{RESULTS} is replaced; the one before ({old}) is kept as {path}")
    else:
        say(f"{RESULTS} ({old}) is replaced; {path} has a larger test ({kept})")


def _check_tested(rows: Sequence[ResultRow]) -> None:
    """Rows that are all without a number are none to keep."""
    if not any(map(is_tested, rows)):
        multiples = dict.fromkeys(f"{row['multiple']:g}" for row in rows)
        reasons = dict.fromkeys(f"length {row['length']}: {row.get('reason')}" for row in rows)
        accepted = f"at least one that can be tested ({'; '.join(reasons)})"
        raise bad_value("lengths", " ".join(multiples), accepted)
