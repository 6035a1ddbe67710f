"""Blocks are atomic: after any error the blocks before it are saved, and the run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import outlast.train.run_state as run_state_module
import outlast.train.trainer as trainer_module
from outlast.errors import RunFolderError, TrainingError
from outlast.runs.checkpoint import load_state
from outlast.runs.folder import CHECKPOINT
from outlast.train.plan import MethodStates
from outlast.train.run_state import RunState
from outlast.train.seeds import SeedState
from outlast.train.step import Stepper
from tiny_runs import (
    CPU,
    InMemory,
    assert_same_run,
    create,
    create_all,
    fails,
    in_threes,
    resume,
    train_runs,
)

METHODS = (
    "dat(switch=below(0.000001), latest=6, otherwise=retry)",
    "ema(0.9)",
    "curriculum(from=2, by=loss, level=0.9)",
)
#: no checkpoint before the last step; the probe at 12 is in the middle
RUNS = [
    in_threes(*methods, seeds=seeds, steps=24, probe_every=6, checkpoint_every=24, stop=stop)
    for methods, seeds, stop in ((METHODS, (0, 1), "never"), ((), (2,), "success(probes=9)"))
]


class Broken(Exception):
    """An error of nobody's own."""


def break_step(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Let a step fail."""
    monkeypatch.setattr(Stepper, "_step", fails(Stepper._step, at, Broken("in a step")))


def steps(folders: list[Path]) -> list[int]:
    """Where the checkpoints of some runs stand."""
    return [load_state(folder).step for folder in folders]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = create_all(RUNS, tmp_path_factory.mktemp("whole"))
    assert train_runs(folders, CPU).ended
    return folders


@pytest.mark.parametrize(
    ("place", "name", "at", "saved"),
    [
        (Stepper, "_step", 11, 9),  # the second of a block
        (MethodStates, "observe", 11, 9),  # the second seed of three
        (trainer_module, "evaluate_stack", 2, 9),
        (trainer_module, "append_metrics", 8, 9),  # of the second run: the first has written
        (run_state_module, "sample_block", 7, 9),  # the data: nothing has been stepped
        (RunState, "progress", 7, 12),  # for whoever listens
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_blocks_before_an_error_are_saved_and_resumed_bit_for_bit(
    place: Any, name: str, at: int, saved: int, whole: list[Path], tmp_path: Path
) -> None:
    folders = create_all(RUNS, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, name, fails(getattr(place, name), at, Broken("it broke")))
        with pytest.raises(Broken, match="it broke"):
            train_runs(folders, CPU)
    assert steps(folders) == [saved, saved]
    assert train_runs(folders, CPU).ended
    for one, other in zip(folders, whole, strict=True):
        assert_same_run(one, other)


def test_block_that_fails_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    failed, unharmed = InMemory(*RUNS).steps(9), InMemory(*RUNS).steps(9)
    with monkeypatch.context() as patch:
        patch.setattr(trainer_module, "evaluate_stack", fails(len, 1, Broken()))
        with pytest.raises(Broken):
            failed.block()
    for one, other in zip(failed.runs, unharmed.runs, strict=True):
        assert one.state() == other.state()
    for table, values in zip(
        failed.trainer.seeds.read(), unharmed.trainer.seeds.read(), strict=True
    ):
        assert torch.equal(table, values)
    assert failed.steps(12).lines == unharmed.steps(12).lines


def test_memory_too_short_for_one_seed_is_an_error_and_progress_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders, step = create_all(RUNS, tmp_path), Stepper.run
    blocks = iter(range(2))

    def run_out(self: Stepper, *args: Any) -> torch.Tensor:
        if next(blocks, None) is None:
            raise torch.OutOfMemoryError("Tried to allocate 7.00 GiB.")
        return step(self, *args)

    monkeypatch.setattr(Stepper, "run", run_out)
    with pytest.raises(TrainingError, match=r"cpu .*smaller batch_size \(it is 8\).* 7\.00 GiB"):
        train_runs(folders, CPU)
    assert steps(folders) == [6, 6]


def test_state_that_cannot_be_rolled_back_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an error of CUDA, from which nothing on the card recovers; the first is raised."""
    folder = create(RUNS[0], tmp_path / "run")
    break_step(monkeypatch, at=11)
    monkeypatch.setattr(SeedState, "write", fails(SeedState.write, 1, Broken("another")))
    with pytest.raises(Broken, match="in a step"):
        resume(folder)
    assert not (folder / CHECKPOINT).exists()


def test_first_error_is_raised_where_saving_fails_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folders = create_all(RUNS, tmp_path)
    full = fails(trainer_module.save_checkpoint, 1, RunFolderError("the disk is full"))
    monkeypatch.setattr(trainer_module, "save_checkpoint", full)
    break_step(monkeypatch, at=11)
    with pytest.raises(Broken, match="in a step"):
        train_runs(folders, CPU)
    assert f"{folders[0]} could not be saved: the disk is full" in caplog.text
    assert steps(folders[1:]) == [9]


def test_error_in_the_first_block_saves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = create(RUNS[0], tmp_path / "run")
    break_step(monkeypatch, at=2)
    with pytest.raises(Broken):
        resume(folder)
    assert not (folder / CHECKPOINT).exists()
