"""Whatever goes wrong in a block, those before are saved, and the run goes on unharmed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import outlast.train.run_state as trainer_module
import outlast.train.trainer as fleet_module
from outlast.errors import RunFolderError, TrainingError
from outlast.runs.checkpoint import load_state
from outlast.runs.folder import CHECKPOINT
from outlast.train.plan import Conductor
from outlast.train.seeds import SeedState
from outlast.train.step import Stepper
from outlast.workflow.train import train_runs
from tiny_runs import CPU, InMemory, assert_same_run, create, resume, tiny

METHODS = (
    "dat(switch=below(0.000001), latest=6, otherwise=retry)",
    "ema(0.9)",
    "curriculum(from=2, by=loss, level=0.9)",
)
#: no checkpoint before the last step; the probe at 12 is in the middle
RUNS = [
    tiny(
        *methods,
        seeds=seeds,
        steps=24,
        steps_per_block=3,
        probe_every=6,
        checkpoint_every=24,
        stop=stop,
    )
    for methods, seeds, stop in ((METHODS, (0, 1), "never"), ((), (2,), "success(probes=9)"))
]


def begun(home: Path) -> list[Path]:
    folders = [home / name for name in ("one", "other")]
    for run, folder in zip(RUNS, folders, strict=True):
        create(run, folder)
    return folders


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = begun(tmp_path_factory.mktemp("whole"))
    assert train_runs(folders, CPU)[0]
    return folders


class Broken(Exception):
    """An error of nobody's own."""


def fails(real: Callable[..., Any], at: int, error: Exception) -> Callable[..., Any]:
    """The same function, which fails instead of its `at`-th call."""
    calls = iter(range(1, at + 1))

    @functools.wraps(real)
    def instead(*args: Any, **kwargs: Any) -> Any:
        if next(calls, 0) == at:
            raise error
        return real(*args, **kwargs)

    return instead


@pytest.mark.parametrize(
    ("where", "name", "at", "saved"),
    [
        (Stepper, "_step", 11, 9),  # the second of a block
        (Conductor, "observe", 11, 9),  # the second seed of three
        (fleet_module, "evaluate_stack", 2, 9),
        (trainer_module, "append_metrics", 8, 9),  # of the second run: the first has written
        (trainer_module, "fresh", 7, 9),  # the data: nothing has been stepped
        (trainer_module.RunState, "progress", 7, 12),  # for whoever watches
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_was_whole_is_saved_and_gone_on_with(
    where: Any, name: str, at: int, saved: int, whole: list[Path], tmp_path: Path
) -> None:
    folders = begun(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, fails(getattr(where, name), at, Broken("it broke")))
        with pytest.raises(Broken, match="it broke"):
            train_runs(folders, CPU, lambda *_: None)
    assert [load_state(folder)["step"] for folder in folders] == [saved, saved]
    assert train_runs(folders, CPU)[0]
    for one, other in zip(folders, whole, strict=True):
        assert_same_run(one, other)


def test_a_block_is_done_or_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    run, unharmed = InMemory(*RUNS).steps(9), InMemory(*RUNS).steps(9)
    with monkeypatch.context() as patch:
        patch.setattr(fleet_module, "evaluate_stack", fails(len, 1, Broken()))
        with pytest.raises(Broken):
            run.trainer.block()
    for one, other in zip(run.trainers, unharmed.trainers, strict=True):
        assert one.state() == other.state()
    for table, own in zip(run.trainer.rows.tables(), unharmed.trainer.rows.tables(), strict=True):
        assert torch.equal(table, own)
    assert run.steps(12).lines == unharmed.steps(12).lines


def test_memory_that_no_wave_can_mend_is_told_and_what_was_done_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = begun(tmp_path)
    short = torch.OutOfMemoryError("Tried to allocate 7.00 GiB.")
    step, done = Stepper.run, iter(range(2))

    def runs_out(self: Stepper, *args: Any) -> torch.Tensor:
        if next(done, None) is None:
            raise short
        return step(self, *args)

    monkeypatch.setattr(Stepper, "run", runs_out)
    with pytest.raises(TrainingError, match=r"cpu .*smaller batch \(it is 8\).* 7\.00 GiB"):
        train_runs(folders, CPU)
    assert [load_state(folder)["step"] for folder in folders] == [6, 6]


def test_what_cannot_be_put_back_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an error of CUDA's, from which nothing on the card recovers; the first is told."""
    folder = tmp_path / "run"
    create(RUNS[0], folder)
    monkeypatch.setattr(Stepper, "_step", fails(Stepper._step, 11, Broken("the first")))
    monkeypatch.setattr(SeedState, "put_back", fails(SeedState.put_back, 1, Broken("another")))
    with pytest.raises(Broken, match="the first"):
        resume(folder)
    assert not (folder / CHECKPOINT).exists()


def test_the_first_error_is_told_where_saving_fails_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folders = begun(tmp_path)
    full = fails(trainer_module.save_checkpoint, 1, RunFolderError("the disk is full"))
    monkeypatch.setattr(trainer_module, "save_checkpoint", full)
    monkeypatch.setattr(Stepper, "_step", fails(Stepper._step, 11, Broken("the first")))
    with pytest.raises(Broken, match="the first"):
        train_runs(folders, CPU)
    assert f"{folders[0]} could not be saved: the disk is full" in caplog.text
    assert load_state(folders[1])["step"] == 9


def test_before_the_first_block_there_is_nothing_to_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    create(RUNS[0], folder)
    monkeypatch.setattr(Stepper, "_step", fails(Stepper._step, 2, Broken()))
    with pytest.raises(Broken):
        resume(folder)
    assert not (folder / CHECKPOINT).exists()
