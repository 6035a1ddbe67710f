"""`outlast.fit`: many seeds trained and tested from Python."""

from __future__ import annotations

from pathlib import Path

import outlast.train.session as session
import pytest

import outlast
from outlast.errors import OutlastError, RunFolderError
from outlast.evaluation.ladder import LADDER
from outlast.runs.records import read_run
from tiny_runs import MODEL, TASK

FEW = {"steps": 4, "block": 2, "checkpoint": 2, "probe": 0, "batch": 4, "device": "cpu"}


def test_seeds_are_trained_tested_and_left_as_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    rows = outlast.fit(TASK, MODEL, folder, "dat(switch=2)", seeds=range(3), **FEW)
    assert [(row["seed"], row["multiple"]) for row in rows] == [
        (seed, multiple) for seed in range(3) for multiple in LADDER
    ]
    record = read_run(folder)
    assert record["seeds"] == [0, 1, 2]
    assert record["settings"]["steps"] == 4
    assert [method.split("(")[0] for method in record["methods"]] == ["dat"]
    assert outlast.load(folder, seed=2).size == record["parameters"]
    with pytest.raises(RunFolderError, match="holds a run already"):
        outlast.fit(TASK, MODEL, folder, **FEW)


def test_a_setting_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(OutlastError, match="settings have no 'step'; did you mean 'steps'"):
        outlast.fit(TASK, MODEL, tmp_path / "run", step=10)
    assert not (tmp_path / "run").exists()


def test_an_interrupt_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "go_on", lambda *_: False)  # a signal came, and all is saved
    with pytest.raises(KeyboardInterrupt, match=r"'outlast resume .*run' goes on"):
        outlast.fit(TASK, MODEL, tmp_path / "run", **FEW)
