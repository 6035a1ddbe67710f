"""Evaluation of a run folder: every seed at every rung, into `results.json`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outlast.errors import RunFolderError, bad_value
from outlast.evaluation.ladder import LADDER, SEQUENCES, Row, evaluate_stack
from outlast.runs import BEFORE, FORMAT, RESULTS, read_json, write_bytes, write_json
from outlast.train.session import open_run, precision

log = logging.getLogger(__name__)

PRECISIONS = ("fp32", "tf32", "bf16")


@dataclass(frozen=True)
class Extent:
    """How much a file of results holds; `asked` are all its multiples, `tested` those it could."""

    step: int
    sequences: int
    asked: frozenset[float]
    tested: frozenset[float]

    @classmethod
    def of(cls, results: dict[str, Any]) -> Extent:
        rows = results["rows"]
        return cls(
            results["step"],
            results["sequences"],
            frozenset(row["multiple"] for row in rows),
            frozenset(row["multiple"] for row in rows if row["exact"] is not None),
        )

    @classmethod
    def read(cls, path: Path) -> Extent | None:
        """That of a file; one that is not there, or is no results, has none."""
        try:
            return cls.of(read_json(path, "results"))
        except (RunFolderError, KeyError, TypeError):
            return None

    @property
    def size(self) -> tuple[int, int]:
        return self.sequences, len(self.tested)

    def __str__(self) -> str:
        lengths = " ".join(f"{multiple:g}" for multiple in sorted(self.tested))
        return f"lengths {lengths}, {self.sequences:,} sequences each"


def holds_test(folder: Path, ladder: Sequence[float], sequences: int) -> bool:
    """Whether the results of a run have all these lengths, from as many sequences or more."""
    there = Extent.read(folder / RESULTS)
    asked = {float(multiple) for multiple in ladder}
    return there is not None and asked <= there.asked and there.sequences >= sequences


def evaluate_run(
    folder: Path,
    ladder: Sequence[float] = LADDER,
    sequences: int = SEQUENCES,
    device: torch.device | str = "cpu",
    out: Path | None = None,
    in_precision: str = "fp32",
    say: Callable[[str], None] = log.info,
) -> list[Row]:
    """Measure a run and write `results.json`, or another file; returns its rows.

    A seed that was parked or has succeeded before the end is measured as it was left; its rows say
    at which step that was. `in_precision` is that of products: fp32, tf32 or bf16. The run's
    own results are not replaced where no length can be tested at all: that is an error. Those of
    the same step that have more in them are kept as `results-before.json`, and `say` is told.
    """
    device = torch.device(device)
    if in_precision not in PRECISIONS:
        raise bad_value("precision", in_precision, " | ".join(PRECISIONS))
    half = torch.autocast(device.type, torch.bfloat16, enabled=in_precision == "bf16")
    with precision(in_precision, device), half:
        trainer = open_run(folder, device)
        seeds = trainer.run.seeds
        found = evaluate_stack(
            trainer.tester(),
            len(seeds),
            trainer.task,
            ladder,
            sequences,
            device,
            trainer.stack.model.ceiling,
        )
    both = {"parked": trainer.parked, "succeeded": trainer.succeeded}
    marks = [
        {name: steps[row] for name, steps in both.items() if steps[row] is not None}
        for row in range(len(seeds))
    ]
    rows = [
        {"seed": seed, **mark, **row}
        for seed, mark, own in zip(seeds, marks, found, strict=True)
        for row in own
    ]
    results = {
        "format": FORMAT,
        "step": trainer.step,
        "sequences": sequences,
        "precision": in_precision,
        "rows": rows,
    }
    if out is None or out.resolve() == (folder / RESULTS).resolve():
        _check_tested(rows)
        _set_aside(folder, Extent.of(results), say)
    write_json(out or folder / RESULTS, results)
    return rows


def _set_aside(folder: Path, new: Extent, say: Callable[[str], None]) -> None:
    """Keep results that are about to be replaced by fewer, unless larger ones are kept already."""
    old, kept = Extent.read(folder / RESULTS), Extent.read(folder / BEFORE)
    if old is None or old.step != new.step:
        return
    if old.tested <= new.tested and old.sequences <= new.sequences:
        return
    if kept is None or kept.step != new.step or old.size >= kept.size:
        write_bytes(folder / BEFORE, (folder / RESULTS).read_bytes())
        say(f"{RESULTS} is replaced; the one before ({old}) is kept as {folder / BEFORE}")
    else:
        say(f"{RESULTS} ({old}) is replaced; {folder / BEFORE} has a larger test ({kept})")


def _check_tested(rows: Sequence[Row]) -> None:
    """Rows that are all without a number are none to keep."""
    if all(row["exact"] is None for row in rows):
        asked = dict.fromkeys(f"{row['multiple']:g}" for row in rows)
        why = dict.fromkeys(f"length {row['length']}: {row['reason']}" for row in rows)
        accepted = f"at least one that can be tested ({'; '.join(why)})"
        raise bad_value("lengths", " ".join(asked), accepted)
