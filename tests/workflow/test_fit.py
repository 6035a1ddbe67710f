"""`outlast.fit`: many seeds trained and tested from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import outlast
import outlast.api as api
from outlast.errors import OutlastError, RunFolderError
from outlast.runs.records import read_run
from outlast.runs.spec import LADDER
from outlast.workflow.train import Outcome
from tiny_runs import MODEL, TASK

FEW: dict[str, Any] = {
    "steps": 4,
    "steps_per_block": 2,
    "checkpoint_every": 2,
    "probe_every": 0,
    "batch_size": 4,
    "device": "cpu",
}


def test_seeds_are_trained_tested_and_left_as_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    rows = outlast.fit(TASK, MODEL, folder, "dat(switch=2)", seeds=range(3), **FEW)
    assert [(row["seed"], row["multiple"]) for row in rows] == [
        (seed, multiple) for seed in range(3) for multiple in LADDER
    ]
    record = read_run(folder)
    assert record.seeds == (0, 1, 2)
    assert record.settings.steps == 4
    assert [method.split("(")[0] for method in record.methods] == ["dat"]
    assert outlast.load(folder, seed=2).size == record.parameters
    with pytest.raises(RunFolderError, match="holds a run already"):
        outlast.fit(TASK, MODEL, folder, **FEW)


def test_fit_refuses_an_unknown_setting(tmp_path: Path) -> None:
    with pytest.raises(OutlastError, match="settings have no 'step'; did you mean 'steps'"):
        outlast.fit(TASK, MODEL, tmp_path / "run", step=10)
    assert not (tmp_path / "run").exists()


def test_fit_that_is_asked_to_stop_raises_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal came and all is saved. Settings go by their old names here."""
    monkeypatch.setattr(api, "train_and_evaluate", lambda *_: Outcome(False, [None]))
    old_names = {"steps": 4, "block": 2, "checkpoint": 2, "probe": 0, "batch": 4, "clip": 0.5}
    with pytest.raises(KeyboardInterrupt, match=r"'outlast resume .*run' goes on"):
        outlast.fit(TASK, MODEL, tmp_path / "run", device="cpu", **old_names)
    settings = read_run(tmp_path / "run").settings
    assert (settings.batch_size, settings.steps_per_block, settings.max_grad_norm) == (4, 2, 0.5)
    assert (settings.checkpoint_every, settings.probe_every) == (2, 0)
