"""Some seeds of a run as a run of their own, from where they stand.

The rows of the checkpoint and the lines of the metrics are taken over as they are. When resumed,
each seed is what it would have been in the whole run, up to float32 rounding: matmuls over fewer
seeds may be summed in another order. With all seeds it is bit for bit the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import torch

from outlast.errors import RunFolderError, bad_value
from outlast.runs.checkpoint import load_checkpoint, save_checkpoint
from outlast.runs.folder import (
    CHECKPOINT,
    copying,
    has_file,
    kept_files,
    locked,
    require_free_folder,
)
from outlast.runs.kept import kept_seeds, load_kept, save_kept
from outlast.runs.records import read_metrics, read_run, write_metrics, write_run
from outlast.runs.spec import RunSpec
from outlast.workflow.load import open_run
from outlast.workflow.train import check_beginning


def take_seeds(folder: Path, seeds: Sequence[int], out: Path) -> None:
    """Make `out` the run folder of some seeds of the run in `folder`, which is left as it is."""
    record = read_run(folder)
    run = record.spec
    chosen = replace(run, seeds=tuple(seeds)).seeds  # one given twice is an error here
    written = ",".join(map(str, chosen))
    if not set(chosen) <= set(run.seeds):
        available = ", ".join(map(str, run.seeds))
        raise bad_value("seeds", written, f"some of those that {folder} has: {available}")
    rows = [run.seeds.index(seed) for seed in chosen]
    require_free_folder(out, way_out="")  # nothing here overwrites
    if not has_file(folder, CHECKPOINT):
        check_beginning(folder)  # a run that cannot be resumed is not to be resumed first
        raise RunFolderError(
            f"{folder} has no {CHECKPOINT}: its seeds would start from the beginning. Resume it "
            f"until one is saved, or train these seeds by 'outlast train ... --seeds {written}'"
        )
    open_run(folder, torch.device("cpu"), chosen)  # what could not go on is an error here
    tensors, state = load_checkpoint(folder, rows=rows, run=run)
    state = state.of_seeds(rows, chosen)
    if None not in state.parked:
        raise bad_value("seeds", written, "at least one that is not parked")
    lines = [
        line for line in read_metrics(folder) if line.seed in chosen and line.step <= state.step
    ]
    # it is in no other pack
    record = msgspec.structs.replace(record, seeds=chosen, pack=(out.resolve().name,))
    with locked(out):
        require_free_folder(out, way_out="")  # another process may be faster
        with copying(out):
            write_metrics(out, lines)
            save_checkpoint(out, tensors, state)
            _copy_kept(folder, out, run, state.step, chosen)
            write_run(out, record)  # last: without it a folder is not taken for a run


def _copy_kept(folder: Path, out: Path, run: RunSpec, last: int, chosen: Sequence[int]) -> None:
    """Copy the weights that were kept of some seeds, up to a step."""
    for step, path in kept_files(folder).items():
        held = kept_seeds(path, run)
        if step <= last and (seeds := [seed for seed in chosen if seed in held]):
            save_kept(out, *load_kept(folder, step, run, seeds), seeds)
