"""Every block of docs/how-to/trackers.md runs, in order, as it stands."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import tracker_files
from how_to_scripts import blocks
from tracker_files import expected, same

import outlast
from outlast.cli import main
from outlast.registry import trackers

PAGE = "trackers.md"


def test_every_block_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in tracker_files.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    for line in blocks(PAGE, "bash"):
        name, *words = shlex.split(line)
        assert name == "outlast"
        assert main(words) == 0, capsys.readouterr().err
    run = Path("runs/mine")
    for reader in (tracker_files.tensorboard, tracker_files.wandb):
        assert same(reader(run, tmp_path), expected(run))
    for run in Path("runs/many").glob("lr=*"):
        assert same(tracker_files.tensorboard(run, tmp_path), expected(run))
    names: dict[str, Any] = {"__name__": PAGE}
    for block in blocks(PAGE, "python"):
        exec(compile(block, PAGE, "exec"), names)
    assert len(names["watch"].losses[1]) == 2
    parity = Path("runs/parity")
    assert same(tracker_files.tensorboard(parity, tmp_path), expected(parity))


def test_page_names_every_tracker_argument_and_hook() -> None:
    text = (tracker_files.ROOT / "docs" / "how-to" / PAGE).read_text("utf-8")
    for name in trackers.names():
        (row,) = [row for row in text.splitlines() if row.startswith(f"| `{name}` | `")][1:]
        for parameter in trackers.entry(name).parameters():
            assert f"`{parameter.name}`" in row
    for hook in vars(outlast.Listener):
        assert hook.startswith("_") or f"`{hook}(" in text
