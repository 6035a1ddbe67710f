"""Evaluation of a run folder: every seed at every rung, into `results.json`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from outlast.errors import bad_value
from outlast.evaluate.ladder import LADDER, SEQUENCES, Row, evaluate_stack
from outlast.runs import FORMAT, RESULTS, write_json
from outlast.train.session import open_run, precision

PRECISIONS = ("fp32", "tf32", "bf16")


def evaluate_run(
    folder: Path,
    ladder: Sequence[float] = LADDER,
    sequences: int = SEQUENCES,
    device: torch.device | str = "cpu",
    out: Path | None = None,
    in_precision: str = "fp32",
) -> list[Row]:
    """Measure a run and write `results.json`, or another file; returns its rows.

    A seed that was parked or has succeeded before the end is measured as it was left; its rows say
    at which step that was. `in_precision` is that of products: fp32, tf32 or bf16. Where no length
    can be tested at all that is an error, and nothing is written.
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
    _check_tested(rows)
    write_json(
        out or folder / RESULTS,
        {
            "format": FORMAT,
            "step": trainer.step,
            "sequences": sequences,
            "precision": in_precision,
            "rows": rows,
        },
    )
    return rows


def _check_tested(rows: Sequence[Row]) -> None:
    """Rows that are all without a number are none to keep."""
    if all(row["exact"] is None for row in rows):
        asked = dict.fromkeys(f"{row['multiple']:g}" for row in rows)
        why = dict.fromkeys(f"length {row['length']}: {row['reason']}" for row in rows)
        accepted = f"at least one that can be tested ({'; '.join(why)})"
        raise bad_value("lengths", " ".join(asked), accepted)
