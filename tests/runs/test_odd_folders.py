"""Folders with pipes in them, without a name or a permission: one line of error, and no hang."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from run_folders import RUN_SPEC

from outlast.cli import MISTAKE, main
from outlast.errors import RunFolderError
from outlast.runs.folder import CHECKPOINT, LOCK, METRICS, RESULTS, RUN, locked
from outlast.runs.grids import run_folders
from tiny_runs import create, fails


@pytest.mark.parametrize("name", [RUN, METRICS, CHECKPOINT, RESULTS, LOCK])
@pytest.mark.parametrize("verb", ["resume", "eval", "report"])
def test_pipe_in_the_place_of_a_file_does_not_hang(folder: Path, name: str, verb: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    ended = main([verb, str(folder)])
    needed = {
        "resume": {RUN, METRICS, CHECKPOINT, RESULTS, LOCK},
        "eval": {RUN, CHECKPOINT},
        "report": {RUN, METRICS},
    }
    assert ended == (MISTAKE if name in needed[verb] else 0)


def test_folder_that_may_not_be_entered_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    look = Path.stat

    def stat(self: Path, **options: Any) -> os.stat_result:
        if self.parent == folder:
            raise PermissionError(errno.EACCES, "Permission denied")
        return look(self, **options)

    monkeypatch.setattr(Path, "stat", stat)
    for words in (["resume"], ["eval"], ["report"], ["resume", "--seeds", "0", "--out", "x"]):
        assert main([words[0], str(folder), *words[1:]]) == MISTAKE
        assert capsys.readouterr().err == f"error: cannot look into {folder}: Permission denied\n"
    with pytest.raises(RunFolderError, match=r"cannot use .* as a run folder: Permission denied"):
        create(RUN_SPEC, folder, overwrite=True)


def test_grid_that_may_not_be_listed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "scandir", fails(os.scandir, 1, PermissionError(errno.EACCES, "No")))
    with pytest.raises(RunFolderError, match=r"cannot look into .*: No"):
        run_folders(tmp_path)


@pytest.mark.parametrize("verb", ["resume", "eval", "report"])
def test_folder_whose_name_is_not_utf8_is_refused(
    folder: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    renamed = folder.rename(folder.with_name("run\udcff"))
    assert main([verb, str(renamed)]) == MISTAKE
    assert "run\\udcff': its name is not in UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", ""], 'out=".": expected the name of a folder'),
        (["--out", "", "--grid", "lr=0.1,0.2"], 'out=".": expected the name of a folder'),
        (["--out", "x/.."], 'out="x/..": expected the name of a folder'),
        (["--out", "x\udcff"], "out='x\\udcff': expected a name in UTF-8"),
        (["--out", "x", "--label", "\udcff"], "label='\\udcff': expected text in UTF-8"),
        (["--out", "x\udcff", "--label", "y"], "cannot use 'x\\udcff': its name is not in UTF-8"),
    ],
)
def test_train_refuses_a_name_that_is_none_and_makes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--task", "parity", "--model", "lstm @ 8", *words]) == MISTAKE
    assert capsys.readouterr().err.startswith(f"error: {message}")
    assert list(tmp_path.iterdir()) == []


def test_folder_made_for_a_lock_is_deleted_if_nothing_was_written(tmp_path: Path) -> None:
    out = tmp_path / "new" / "run"
    with locked(out):
        assert (out / LOCK).exists()
    assert list(tmp_path.iterdir()) == []
    out.mkdir(parents=True)  # one that was there stays
    with locked(out):
        pass
    assert out.exists()
