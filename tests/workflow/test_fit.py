"""`outlast.fit`: many seeds trained and tested from Python."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import outlast
import outlast.api as api
from outlast.errors import OutlastError, RunFolderError
from outlast.registry import Entry, presets
from outlast.runs.records import ResultRow, read_run
from outlast.runs.spec import LADDER, RunSpec, Settings
from outlast.train.run_state import Progress
from outlast.workflow import progress as progress_module
from outlast.workflow.progress import with_progress
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


def test_fit_takes_from_a_preset_what_is_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {name: value for name, value in FEW.items() if name != "device"}
    whole = RunSpec(TASK, MODEL, ("dat(switch=2)",), settings=Settings(**few, lr=0.01))
    monkeypatch.setitem(presets._entries, "tiny", Entry("tiny", lambda: whole, "a test"))
    rows = outlast.fit(preset="tiny", out=tmp_path / "preset", seeds=[1], device="cpu")
    given = outlast.fit(TASK, MODEL, tmp_path / "given", "dat(switch=2)", [1], lr=0.01, **FEW)
    assert rows == given
    records = [read_run(tmp_path / name) for name in ("preset", "given")]
    assert records[0].spec.identity == records[1].spec.identity

    monkeypatch.setattr(api, "train_and_evaluate", lambda *_: Outcome(False, [None]))
    with pytest.raises(KeyboardInterrupt):
        outlast.fit(
            "parity(length=4)", out=tmp_path / "own", methods=(), preset="tiny", batch=8, steps=6
        )
    own = read_run(tmp_path / "own")
    assert (own.short.task, own.short.model) == ("parity(length=4)", records[0].short.model)
    assert (own.methods, own.seeds) == ((), tuple(range(10)))
    assert own.settings == replace(records[0].settings, batch_size=8, steps=6, warmup=0)

    task = "composite(modulus=3, keys=9, length=4)"  # three answers, and the preset has two outputs
    with pytest.raises(KeyboardInterrupt):
        outlast.fit(task, out=tmp_path / "wide", preset="tiny")
    wide = read_run(tmp_path / "wide").short.model
    assert wide == records[0].short.model.removesuffix("head=2") + "head=3"


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


# ---- progress and listeners ----------------------------------------------------------------------


class Diary(outlast.Listener):
    """Keeps the order of what it is told."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def starting(self, folders: Sequence[Path], device: torch.device) -> None:
        self.events.append(("starting", [folder.name for folder in folders], device.type))

    def say(self, words: str) -> None:
        self.events.append("say")

    def training(self, folder: Path, progress: Progress) -> None:
        self.events.append(("training", progress.step))

    def testing(self, folder: Path) -> None:
        self.events.append("testing")

    def tested(self, folder: Path, rows: list[ResultRow]) -> None:
        self.events.append(("tested", len(rows)))

    def ended(self, folders: Sequence[Path], outcome: Outcome) -> None:
        self.events.append(("ended", outcome.ended))


@pytest.mark.parametrize("progress", [None, False, True])
def test_listener_is_told_everything_in_order(
    progress: bool | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    diary = Diary()
    options = FEW | {"seeds": [0], "progress": progress, "callbacks": [diary]}
    rows = outlast.fit(TASK, MODEL, tmp_path / "run", **options)
    assert diary.events == [
        ("starting", ["run"], "cpu"),
        "say",
        ("training", 2),
        ("training", 4),
        "testing",
        ("tested", len(rows)),
        ("ended", True),
    ]
    output = capsys.readouterr()
    assert not output.out
    lines = output.err.splitlines()
    if progress:  # pytest has no terminal, so plain lines
        assert [line.partition(",")[0] for line in lines] == [
            "run: step 2/4", "run: step 4/4", "run: testing", "run: done"
        ]  # fmt: skip
        assert "left, loss state" in lines[0]
    else:
        assert not lines


def progress_of(step: int) -> Progress:
    return Progress(step, 100, 61.0, {"state": 0.25}, {}, 0, 1)


def test_bar_is_shown_on_a_terminal_by_default() -> None:
    text, folder = io.StringIO(), Path("runs/[bold]x")
    terminal = Console(file=text, force_terminal=True, width=120)
    diary = Diary()
    with with_progress(diary, console=terminal) as listener:
        listener.training(folder, progress_of(50))
    assert "[bold]x" in text.getvalue()
    assert "50%" in text.getvalue()
    assert "1:01 left" in text.getvalue()
    assert "loss state 0.250" in text.getvalue()
    with with_progress(diary, console=terminal) as listener:
        listener.testing(folder)
    assert "testing" in text.getvalue()
    assert diary.events == [("training", 50), "testing"]
    with with_progress(diary, False, terminal) as listener:
        assert listener is diary


def test_plain_lines_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    text = io.StringIO()
    with with_progress(outlast.Listener(), True, Console(file=text, width=40)) as listener:
        for step, now[0] in ((10, 0.0), (20, 1.0), (30, 16.0), (100, 17.0)):
            listener.training(Path("run"), progress_of(step))
    steps = [line.partition(",")[0] for line in text.getvalue().splitlines()]
    assert steps == ["run: step 10/100", "run: step 30/100", "run: step 100/100"]


def test_error_of_a_listener_ends_the_bar_and_leaves_the_run_to_resume(tmp_path: Path) -> None:
    class Full(outlast.Listener):
        def training(self, folder: Path, progress: Progress) -> None:
            raise OSError("the disk of the tracker is full")

    with pytest.raises(OSError, match="the tracker"):
        outlast.fit(TASK, MODEL, tmp_path / "run", callbacks=[Full()], progress=True, **FEW)
    assert read_run(tmp_path / "run").seeds == tuple(range(10))
    assert not (tmp_path / "run" / "results.json").exists()
