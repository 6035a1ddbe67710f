"""The run folder on disk: files are whole or not there, one user at a time, nothing is lost."""

from __future__ import annotations

import ast
import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_folders import RUN_SPEC, contents

import outlast as package
from outlast.errors import RunFolderError, SpecError
from outlast.runs.folder import (
    CHECKPOINT,
    LOCK,
    METRICS,
    PREVIOUS_RESULTS,
    RESULTS,
    RUN,
    check_writable,
    locked,
    write_json,
    write_text,
)
from outlast.runs.records import read_run
from tiny_runs import MODEL, Killed, assert_same_run, checkpoint, create, outlast, resume, tiny


def temporaries(folder: Path) -> list[str]:
    return [path.name for path in folder.glob(".*") if path.name != LOCK]


# ---- atomic writes -----------------------------------------------------------------------------


def test_crash_before_the_rename_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: Any) -> None:
        raise Killed

    path = tmp_path / "file.json"
    write_json(path, {"old": 1})
    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(Killed):
        write_json(path, {"new": 2})
    assert json.loads(path.read_text()) == {"old": 1}


def test_file_is_flushed_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, order = tmp_path / "file.txt", []
    rename, sync = Path.replace, os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append("sync"), sync(fd)))
    monkeypatch.setattr(
        Path, "replace", lambda self, to: (order.append("rename"), rename(self, to))[1]
    )
    write_text(path, "all of it")
    assert order == ["sync", "rename"]
    assert path.read_text() == "all of it"
    assert temporaries(tmp_path) == []


def test_write_deletes_what_a_killed_write_of_the_same_file_left(tmp_path: Path) -> None:
    """No lock is needed for it: tests, pages and records of studies are written without one."""
    path, others = tmp_path / "[1].json", {".[1].json.swp", ".2.json.12345678.tmp"}
    for name in others:
        (tmp_path / name).write_text("of somebody else")
    for write in (lambda: write_json(path, {"new": 1}), lambda: check_writable(path)):
        assert killed_at(Path, "replace", write) or killed_at(Path, "unlink", write)
    assert len(temporaries(tmp_path)) == 4
    write_json(path, {"new": 2})
    assert set(temporaries(tmp_path)) == others


def test_two_writers_of_one_file_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one takes the file of the first for one that was left, and deletes it."""
    path, rename, calls = tmp_path / "file.txt", Path.replace, []

    def after_another(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == 1:
            write_text(path, "the second")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", after_another)
    write_text(path, "the first")
    assert path.read_text() == "the first"
    assert len(calls) == 3
    assert temporaries(tmp_path) == []


def killed_at(owner: type, name: str, work: Callable[[], object]) -> bool:
    """Do work in a forked process that kills itself instead of calling a method."""
    pid = os.fork()
    if pid == 0:
        setattr(owner, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_value_that_is_not_json_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_json(path, {"old": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"new": float("nan")})
    assert json.loads(path.read_text()) == {"old": 1}
    assert temporaries(tmp_path) == []


def test_resume_deletes_half_written_files_and_no_others(folder: Path) -> None:
    for name in (RUN, METRICS, CHECKPOINT, RESULTS):
        (folder / f".{name}.abc123").write_text("half")
    (folder / ".other").write_text("not ours")
    assert resume(folder)
    assert temporaries(folder) == [".other"]


# ---- a full disk -------------------------------------------------------------------------------


def no_space(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_keeps_the_earlier_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = create(RUN_SPEC, tmp_path / "run")
    sync, left = os.fsync, [2]  # the metrics cut back, the first checkpoint, then no more

    def fsync(fd: int) -> None:
        left[0] -= 1
        return sync(fd) if left[0] >= 0 else no_space()

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(
        RunFolderError, match=r"cannot write .*checkpoint.*No space left.*untouched"
    ):
        resume(folder)
    monkeypatch.undo()
    assert json.loads(checkpoint(folder)[1])["step"] == 10
    assert temporaries(folder) == []
    assert resume(folder)  # there is room again


def test_full_disk_while_metrics_are_written_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_run: Path
) -> None:
    folder = create(RUN_SPEC, tmp_path / "run")
    real = Path.open

    def full(self: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        if self.name == METRICS and mode == "a":
            no_space()
        return real(self, mode, *args, **options)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(RunFolderError, match=r"cannot write .*metrics.jsonl: No space left"):
        resume(folder)
    monkeypatch.undo()
    assert resume(folder)
    assert_same_run(finished_run, folder)


def test_system_limit_on_file_sizes_is_one_line_and_can_be_resumed(
    tmp_path: Path, finished_run: Path
) -> None:
    folder = create(RUN_SPEC, tmp_path / "run")
    room = (finished_run / CHECKPOINT).stat().st_size // 2
    limit = (resource.RLIMIT_FSIZE, (room, room))
    refused = outlast("resume", folder, preexec_fn=lambda: resource.setrlimit(*limit))
    assert refused.returncode == 2, refused.stderr
    assert refused.stderr.startswith(f"error: cannot write {folder / CHECKPOINT}: ")
    assert refused.stderr.count("\n") == 1
    assert not (folder / CHECKPOINT).exists()
    assert temporaries(folder) == []
    assert resume(folder)
    assert_same_run(finished_run, folder)


def test_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunFolderError, match=r"cannot use .* as a run folder"):
            create(RUN_SPEC, out)
    assert (tmp_path / "file").read_text() == "in the way"


# ---- one user at a time ------------------------------------------------------------------------


def test_locked_folder_is_refused_in_this_process_and_in_another(folder: Path) -> None:
    before, owner = checkpoint(folder), f"in use by process {os.getpid()}"
    with locked(folder):
        for attempt in (
            lambda: resume(folder),
            lambda: create(RUN_SPEC, folder, overwrite=True),
        ):
            with pytest.raises(RunFolderError, match=owner):
                attempt()
        other = outlast("resume", folder)
    assert other.returncode == 2
    assert other.stderr.startswith("error: ")
    assert owner in other.stderr
    assert "Traceback" not in other.stderr
    assert checkpoint(folder) == before
    assert resume(folder)


def test_lock_of_a_killed_process_is_free(folder: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from outlast.runs.folder import locked\n"
        "with locked(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(folder)], timeout=300)
    assert killed.returncode == -9
    assert (folder / LOCK).read_text() != f"process {os.getpid()}"
    assert resume(folder)


# ---- nothing is overwritten untold -------------------------------------------------------------


def test_create_refuses_folder_with_a_run(folder: Path) -> None:
    before = contents(folder)
    with pytest.raises(RunFolderError, match=r"holds a run already.*resume.*--overwrite"):
        create(RUN_SPEC, folder)
    assert contents(folder) == before


@pytest.mark.parametrize("name", [METRICS, CHECKPOINT, RESULTS])
def test_create_refuses_folder_with_only_one_file_of_a_run(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("weeks of work")
    with pytest.raises(RunFolderError, match="holds a run already"):
        create(RUN_SPEC, tmp_path)
    assert (tmp_path / name).read_text() == "weeks of work"


@pytest.mark.parametrize("deleted", [1, 2, 3])
def test_run_killed_while_it_is_overwritten_can_be_resumed(
    folder: Path, deleted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / RESULTS).write_text("{}")
    unlink, names = Path.unlink, list[str]()

    def kill(self: Path, missing_ok: bool = False) -> None:
        unlink(self, missing_ok)
        names.append(self.name)
        if len([n for n in names if n in (METRICS, CHECKPOINT, RESULTS)]) == deleted:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", kill)
        with pytest.raises(Killed):
            create(RUN_SPEC, folder, overwrite=True)
    assert resume(folder)


def test_overwrite_deletes_everything_of_the_old_run(folder: Path) -> None:
    for name in (RESULTS, PREVIOUS_RESULTS):
        (folder / name).write_text("{}")
    create(tiny(steps=10, seeds=(3,)), folder, overwrite=True)
    assert read_run(folder).seeds == (3,)
    assert list(contents(folder)) == [RUN]


def test_bad_spec_leaves_the_existing_run(folder: Path) -> None:
    before = contents(folder)
    with pytest.raises(SpecError, match="no task 'composit'"):
        create(tiny(task="composit"), folder, overwrite=True)
    assert contents(folder) == before


def test_results_without_a_checkpoint_are_not_trained_over(folder: Path) -> None:
    (folder / RESULTS).write_text("{}")
    (folder / CHECKPOINT).unlink()
    with pytest.raises(RunFolderError, match=r"has results but no checkpoint\.safetensors"):
        resume(folder)
    assert (folder / RESULTS).read_text() == "{}"


# ---- nothing in a folder is executed -----------------------------------------------------------


def test_no_file_is_read_or_written_by_pickle() -> None:
    home = Path(package.__file__).parent
    files = sorted(home.rglob("*.py"))
    assert len(files) > 50
    forbidden = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
    uses = []
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [a.name.partition(".")[0] for a in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(node.module or "").partition(".")[0]]
            elif isinstance(node, ast.Attribute) and node.attr in ("load", "save"):
                owner = ast.unparse(node.value)
                names = ["pickle"] if owner in ("torch", "torch.serialization") else []
            if forbidden & set(names):
                uses.append(f"{file.relative_to(home)}:{node.lineno}")
    # messages to a child process of our own and to a task of Ray, which are never in a file
    messages = ("processes.py:", "sweep/ray_tasks.py:")
    assert [use for use in uses if not use.startswith(messages)] == []


def test_files_of_a_run_are_plain(finished_run: Path) -> None:
    assert contents(finished_run).keys() == {RUN, METRICS, CHECKPOINT}
    record = json.loads((finished_run / RUN).read_text())
    assert record["settings"]["steps"] == RUN_SPEC.settings.steps
    assert record["shown"]["model"] == MODEL
    assert record["model"].endswith("mlp(expand=4.0, dropout=0.0) @ 16, embedding=1.0, head=2")
    lines = (finished_run / METRICS).read_text().splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [0, 0]
