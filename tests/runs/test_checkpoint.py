"""Checkpoints: one that is damaged, cut short, foreign or of another run is never taken."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_folders import QUICK, RUN_SPEC, assert_refused
from safetensors.torch import load_file, save_file

from outlast.errors import RunFolderError
from outlast.runs.checkpoint import load_checkpoint, load_state
from outlast.runs.folder import CHECKPOINT
from outlast.runs.status import finished
from outlast.workflow.load import load, open_run
from outlast.workflow.train import open_trainer
from tiny_runs import CPU, checkpoint, create, resume, tiny, trained

State = dict[str, Any]


def without(state: State, *names: str) -> State:
    return {name: value for name, value in state.items() if name not in names}


def rewrite(folder: Path, change: Callable[[State], Any], *dropped: str) -> None:
    """Change the header of a checkpoint, or drop tensors."""
    tensors = without(load_file(folder / CHECKPOINT), *dropped)
    state = change(json.loads(checkpoint(folder)[1]))
    save_file(tensors, folder / CHECKPOINT, {"outlast": json.dumps(state)})


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.999])
def test_checkpoint_cut_short_is_refused(folder: Path, share: float) -> None:
    whole = (folder / CHECKPOINT).read_bytes()
    (folder / CHECKPOINT).write_bytes(whole[: int(len(whole) * share)])
    assert_refused(folder, "checkpoint.safetensors is damaged or cut short")
    with pytest.raises(RunFolderError, match="damaged or cut short"):
        finished(folder)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.write_bytes(os.urandom(5000)), "is damaged or cut short"),
        (lambda path: torch.save({"weights": torch.zeros(3)}, path), "is damaged or cut short"),
        (
            lambda path: save_file({"weights": torch.zeros(3)}, path),
            "is a safetensors file, but not a checkpoint of outlast",
        ),
    ],
    ids=["noise", "pickle", "safetensors of another program"],
)
def test_foreign_file_is_refused(
    folder: Path, write: Callable[[Path], object], message: str
) -> None:
    write(folder / CHECKPOINT)
    assert_refused(folder, rf"checkpoint\.safetensors {message}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state | {"format": 3}, "its format is 3; this version of outlast reads 1"),
        (lambda state: without(state, "format"), "its format is None"),
        (lambda state: [state], "is damaged or cut short: .*not a JSON object"),
        (lambda state: without(state, "step"), "cannot read .*checkpoint.* it has no step"),
        (lambda state: {"format": 1}, "cannot read .*checkpoint.* it has no step"),
        (
            lambda state: state | {"parked": 3},
            "cannot read .*checkpoint.* parked=3: expected a list",
        ),
        (
            lambda state: state | {"run": state["run"] | {"seeds": [5]}},
            r"another run: its seeds is \[5\], this run's is \[0\]",
        ),
    ],
)
def test_damaged_header_is_refused_by_its_field(
    folder: Path, change: Callable[[State], Any], message: str
) -> None:
    rewrite(folder, change)
    assert_refused(folder, message)


def test_missing_tensor_is_named(folder: Path) -> None:
    rewrite(folder, lambda state: state, "weights.head.bias")
    message = "does not fit this run: weights.head.bias should be .*, found nothing"
    assert_refused(folder, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "lstm > attention(heads=4) > mlp @ 16"}, "another run: its model is lstm"),
        ({"task": "composite(modulus=2, keys=32, queries=3, length=4)"}, "its task is composite"),
        ({"seeds": (1,)}, r"its seeds is \[1\]"),
        ({"methods": ("ema(0.9)",)}, r"its methods is \['ema\(decay=0.9\)'\], this run's is \[\]"),
    ],
)
def test_checkpoint_of_another_run_is_refused(
    folder: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    """Even where every shape fits, as with another number of heads."""
    other = trained(replace(RUN_SPEC, **change), tmp_path / "other")
    (folder / CHECKPOINT).write_bytes((other / CHECKPOINT).read_bytes())
    assert_refused(folder, message)


def test_run_without_a_checkpoint_cannot_be_loaded(tmp_path: Path) -> None:
    folder = create(RUN_SPEC, tmp_path / "run")
    for attempt in (lambda: open_run(folder, CPU), lambda: load(folder)):
        with pytest.raises(RunFolderError, match="nothing was trained there yet"):
            attempt()
    with pytest.raises(RunFolderError, match="nothing was saved there yet"):
        load_checkpoint(folder)


def test_format_1_from_before_seeds_could_be_parked_is_read(folder: Path) -> None:
    def older(state: State) -> State:
        kept = without(state, "parked", "succeeded", "streaks")
        return kept | {"format": 1, "probe": {"1": 0.5, "3": 0.25}}

    rewrite(folder, older)
    assert finished(folder)
    state = load_state(folder)
    assert (state.parked, state.succeeded, state.streaks) == ([None], [None], [0])
    with open_trainer([folder], CPU) as trainer:
        assert trainer.runs[0].progress(0.0).probe == {"1": 0.5, "3": 0.25}
    assert resume(folder)


def test_some_seeds_are_read_without_the_others(tmp_path: Path) -> None:
    folder = trained(tiny(seeds=(4, 7, 9), **QUICK), tmp_path / "run")
    whole, _ = load_checkpoint(folder)
    for rows in ([1], [2, 0]):
        subset, _ = load_checkpoint(folder, lambda name: name.startswith("weights."), rows)
        assert subset.keys() == {name for name in whole if name.startswith("weights.")}
        assert all(torch.equal(tensor, whole[name][rows]) for name, tensor in subset.items())
