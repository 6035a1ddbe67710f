"""The run folder: whole or not at all, one user at a time, and clear about what is wrong."""

from __future__ import annotations

import ast
import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import outlast as package
import outlast.runs as runs
from outlast.errors import OutlastError, RunFolderError, SpecError
from outlast.runs.checkpoint import load_checkpoint
from outlast.runs.folder import CHECKPOINT, METRICS, PREVIOUS_RESULTS, RESULTS, RUN
from outlast.runs.status import finished
from outlast.workflow.load import load, open_run
from tiny_runs import (
    CPU,
    MODEL,
    SETTINGS,
    Killed,
    assert_same_run,
    checkpoint,
    create,
    outlast,
    resume,
    tiny,
    trained,
)

QUICK = tiny(steps=20, steps_per_block=10, probe_every=0, checkpoint_every=10, seeds=(0,))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run that is finished; not to be changed."""
    return trained(QUICK, tmp_path_factory.mktemp("done") / "run")


@pytest.fixture
def folder(done: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    copy = tmp_path / "run"
    copy.mkdir()
    for name in (RUN, METRICS, CHECKPOINT):
        (copy / name).write_bytes((done / name).read_bytes())
    return copy


def left_over(folder: Path) -> list[str]:
    return [p.name for p in folder.glob(".*") if p.name != ".lock"]


# ---- atomic ------------------------------------------------------------------------------------


class Crash(BaseException):
    """The process is gone."""


def test_a_crash_between_writing_and_renaming_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.json"
    runs.write_json(path, {"old": 1})
    monkeypatch.setattr(Path, "replace", _crash)
    with pytest.raises(Crash):
        runs.write_json(path, {"new": 2})
    assert json.loads(path.read_text()) == {"old": 1}


def test_a_file_is_on_the_disk_before_it_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, order = tmp_path / "file.txt", []
    rename, sync = Path.replace, os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append("sync"), sync(fd)))
    monkeypatch.setattr(
        Path, "replace", lambda self, to: (order.append("rename"), rename(self, to))[1]
    )
    runs.write_text(path, "all of it")
    assert order == ["sync", "rename"]
    assert path.read_text() == "all of it"
    assert left_over(tmp_path) == []


def test_what_is_not_json_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    runs.write_json(path, {"old": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        runs.write_json(path, {"new": float("nan")})
    assert json.loads(path.read_text()) == {"old": 1}
    assert left_over(tmp_path) == []


def test_half_written_files_of_a_killed_process_are_swept_up(folder: Path) -> None:
    for name in (RUN, METRICS, CHECKPOINT, RESULTS):
        (folder / f".{name}.abc123").write_text("half")
    (folder / ".other").write_text("not ours")
    assert resume(folder)
    assert left_over(folder) == [".other"]


def _crash(*_: Any) -> None:
    raise Crash


# ---- a full disk -------------------------------------------------------------------------------


def _no_space(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_keeps_the_earlier_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    create(QUICK, folder)
    sync, left = os.fsync, [2]  # the metrics cut back, the first checkpoint, then no more

    def fsync(fd: int) -> None:
        left[0] -= 1
        return sync(fd) if left[0] >= 0 else _no_space()

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(
        RunFolderError, match=r"cannot write .*checkpoint.*No space left.*untouched"
    ):
        resume(folder)
    monkeypatch.undo()
    assert json.loads(checkpoint(folder)[1])["step"] == 10
    assert left_over(folder) == []
    assert resume(folder)  # there is room again


def test_a_full_disk_while_writing_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: Path
) -> None:
    folder = tmp_path / "run"
    create(QUICK, folder)
    real = Path.open

    def full(self: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        if self.name == METRICS and mode == "a":
            _no_space()
        return real(self, mode, *args, **options)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(RunFolderError, match=r"cannot write .*metrics.jsonl: No space left"):
        resume(folder)
    monkeypatch.undo()
    assert resume(folder)
    assert_same_run(done, folder)


def test_a_disk_that_is_really_full(tmp_path: Path, done: Path) -> None:
    """The system refuses to write files beyond a size, in a process of its own."""
    folder = tmp_path / "run"
    create(QUICK, folder)
    room = (done / CHECKPOINT).stat().st_size // 2
    refused = subprocess.run(
        [sys.executable, "-m", "outlast", "resume", str(folder)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert refused.returncode == 2, refused.stderr
    assert refused.stderr.startswith(f"error: cannot write {folder / CHECKPOINT}: ")
    assert refused.stderr.count("\n") == 1
    assert not (folder / CHECKPOINT).exists()
    assert left_over(folder) == []
    assert resume(folder)
    assert_same_run(done, folder)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunFolderError, match=r"cannot use .* as a run folder"):
            create(QUICK, out)
    assert (tmp_path / "file").read_text() == "in the way"


# ---- one user at a time, nothing overwritten ---------------------------------------------------


def test_a_folder_in_use_is_refused(folder: Path) -> None:
    with runs.locked(folder):
        for attempt in (
            lambda: resume(folder),
            lambda: create(QUICK, folder, overwrite=True),
        ):
            with pytest.raises(RunFolderError, match=f"in use by process {os.getpid()}"):
                attempt()
    assert resume(folder)


def test_two_processes_on_one_folder(folder: Path) -> None:
    before = checkpoint(folder)
    with runs.locked(folder):
        second = outlast("resume", folder)
    assert second.returncode == 2
    assert second.stderr.startswith("error: ")
    assert f"in use by process {os.getpid()}" in second.stderr
    assert "Traceback" not in second.stderr
    assert checkpoint(folder) == before


def test_a_lock_ends_with_its_process(folder: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from outlast.runs import locked\n"
        "with locked(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(folder)], timeout=60)
    assert killed.returncode == -9
    assert (folder / ".lock").read_text() != f"process {os.getpid()}"
    assert resume(folder)


def test_an_existing_run_is_never_overwritten_untold(folder: Path) -> None:
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(RunFolderError, match=r"holds a run already.*resume.*--overwrite"):
        create(QUICK, folder)
    assert {n: (folder / n).read_bytes() for n in before} == before


@pytest.mark.parametrize("name", [METRICS, CHECKPOINT, RESULTS])
def test_nor_is_what_is_left_of_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("weeks of work")
    with pytest.raises(RunFolderError, match="holds a run already"):
        create(QUICK, tmp_path)
    assert (tmp_path / name).read_text() == "weeks of work"


@pytest.mark.parametrize("unlinked", [1, 2, 3])
def test_killed_while_it_starts_anew_it_can_go_on(
    folder: Path, unlinked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / RESULTS).write_text("{}")
    unlink, gone = Path.unlink, list[str]()

    def kill(self: Path, missing_ok: bool = False) -> None:
        unlink(self, missing_ok)
        gone.append(self.name)
        if len([n for n in gone if n in (METRICS, CHECKPOINT, RESULTS)]) == unlinked:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", kill)
        with pytest.raises(Killed):
            create(QUICK, folder, overwrite=True)
    assert resume(folder)


def test_told_to_it_starts_anew(folder: Path) -> None:
    for name in (RESULTS, PREVIOUS_RESULTS):
        (folder / name).write_text("{}")
    begin(tiny(steps=10, seeds=(3,)), folder, CPU, overwrite=True)
    assert not (folder / PREVIOUS_RESULTS).exists()
    assert runs.read_run(folder)["seeds"] == [3]
    assert not any((folder / n).exists() for n in (METRICS, CHECKPOINT, RESULTS))


def test_a_bad_spec_leaves_an_existing_run_alone(folder: Path) -> None:
    before = (folder / RUN).read_bytes()
    with pytest.raises(SpecError, match="no task 'composit'"):
        create(tiny(task="composit"), folder, overwrite=True)
    assert (folder / RUN).read_bytes() == before
    assert (folder / CHECKPOINT).exists()


# ---- damaged, cut short, foreign, from the future ----------------------------------------------


def refused(folder: Path, message: str) -> None:
    """Whoever opens the folder gets the same clear error, and nothing in it is changed."""
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != ".lock"}
    for attempt in (
        lambda: open_run(folder, CPU),
        lambda: load(folder),
        lambda: resume(folder),
    ):
        with pytest.raises(OutlastError, match=message):
            attempt()
    assert {n: (folder / n).read_bytes() for n in before} == before


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.999])
def test_a_checkpoint_cut_short(folder: Path, share: float) -> None:
    whole = (folder / CHECKPOINT).read_bytes()
    (folder / CHECKPOINT).write_bytes(whole[: int(len(whole) * share)])
    refused(folder, "checkpoint.safetensors is damaged or cut short")
    with pytest.raises(RunFolderError, match="damaged or cut short"):
        finished(folder)


def test_a_checkpoint_of_noise(folder: Path) -> None:
    (folder / CHECKPOINT).write_bytes(os.urandom(5000))
    refused(folder, "checkpoint.safetensors is damaged or cut short")


def test_a_pickle_is_not_opened(folder: Path) -> None:
    torch.save({"weights": torch.zeros(3)}, folder / CHECKPOINT)
    refused(folder, "checkpoint.safetensors is damaged or cut short")


def test_a_safetensors_file_of_somebody_else(folder: Path) -> None:
    save_file({"weights": torch.zeros(3)}, folder / CHECKPOINT)
    refused(folder, "is a safetensors file, but not a checkpoint of outlast")


def _rewrite(folder: Path, change: Callable[[dict[str, Any]], Any], *drop: str) -> None:
    tensors, state = load_checkpoint(folder)
    kept = {n: t for n, t in tensors.items() if n not in drop}
    save_file(kept, folder / CHECKPOINT, {"outlast": json.dumps(change(state))})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s | {"format": 2}, "has format 2; this version reads 1"),
        (lambda s: {k: v for k, v in s.items() if k != "format"}, "has format None"),
        (lambda s: [s], "is damaged or cut short: .*not a JSON object"),
        (lambda s: {k: v for k, v in s.items() if k != "step"}, "is damaged: it has no step"),
        (lambda s: {"format": 1}, "is damaged: it has no step, averaged"),
        (
            lambda s: s | {"run": s["run"] | {"seeds": [5]}},
            r"another run: its seeds is \[5\], this run's is \[0\]",
        ),
    ],
)
def test_a_checkpoint_with_another_header(
    folder: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    _rewrite(folder, change)
    refused(folder, message)


def test_results_without_a_checkpoint_are_not_trained_over(folder: Path) -> None:
    (folder / RESULTS).write_text("{}")
    (folder / CHECKPOINT).unlink()
    with pytest.raises(RunFolderError, match=r"has results but no checkpoint\.safetensors"):
        resume(folder)
    assert (folder / RESULTS).read_text() == "{}"


def test_a_checkpoint_from_before_seeds_could_be_parked(folder: Path) -> None:
    def older(state: dict[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in state.items() if name != "parked"}
        return kept | {"probe": {"1": 0.5, "3": 0.25}}

    _rewrite(folder, older)
    assert finished(folder)
    trainer = open_run(folder, CPU)
    assert trainer.parked == [None]
    assert trainer.progress(0.0).probe == {"1": 0.5, "3": 0.25}
    assert resume(folder)


def test_a_checkpoint_without_one_tensor(folder: Path) -> None:
    _rewrite(folder, lambda state: state, "weights.head.bias")
    refused(folder, "does not fit this run: weights.head.bias should be .*, found nothing")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"model": "lstm > attention(heads=4) > mlp @ 16"}, "another run: its model is lstm"),
        ({"task": "composite(modulus=2, keys=32, queries=3, length=4)"}, "its task is composite"),
        ({"seeds": (1,)}, r"its seeds is \[1\]"),
    ],
)
def test_a_checkpoint_of_another_run(
    folder: Path, tmp_path: Path, other: dict[str, Any], message: str
) -> None:
    """Even where every shape fits, as with another number of heads."""
    changed = tiny(
        **({"seeds": (0,)} | other),
        steps=10,
        steps_per_block=10,
        probe_every=0,
        checkpoint_every=10,
    )
    foreign = trained(changed, tmp_path / "other")
    (folder / CHECKPOINT).write_bytes((foreign / CHECKPOINT).read_bytes())
    refused(folder, message)


def test_a_checkpoint_of_other_methods(folder: Path, tmp_path: Path) -> None:
    changed = tiny(
        "ema(0.9)", seeds=(0,), steps=10, steps_per_block=10, probe_every=0, checkpoint_every=10
    )
    foreign = trained(changed, tmp_path / "other")
    (folder / CHECKPOINT).write_bytes((foreign / CHECKPOINT).read_bytes())
    refused(folder, r"its methods is \['ema\(decay=0.9\)'\], this run's is \[\]")


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    create(QUICK, tmp_path / "run")
    for attempt in (lambda: open_run(tmp_path / "run", CPU), lambda: load(tmp_path / "run")):
        with pytest.raises(RunFolderError, match="nothing was trained there yet"):
            attempt()
    with pytest.raises(RunFolderError, match="nothing was saved there yet"):
        load_checkpoint(tmp_path / "run")


def test_no_folder_at_all(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    for attempt in (
        lambda: open_run(missing, CPU),
        lambda: load(missing),
        lambda: resume(missing),
    ):
        with pytest.raises(RunFolderError, match=r"has no run.json: it is not a run folder"):
            attempt()
    assert not missing.exists()


def _change_record(**changed: Any) -> Callable[[bytes], bytes]:
    return lambda text: json.dumps(json.loads(text) | changed).encode()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b"", "cannot read .*run.json"),
        (lambda b: b[: len(b) // 2], "cannot read .*run.json"),
        (lambda b: b"\xff\xfe" + b, "cannot read .*run.json"),
        (lambda b: b"[1, 2]", "cannot read .*run.json: expected a JSON object"),
        (_change_record(format=2), "its format is 2, this version of outlast reads format 1"),
        (lambda b: b'{"format": 1}', "run.json has no label, methods, model, seeds, settings"),
        (_change_record(task="parityy"), "there is no task 'parityy'; did you mean 'parity'"),
        (_change_record(task=3), "run.json: task=3: expected a word"),
        (_change_record(model="lstm > mpl"), "there is no mixer or preset 'mpl'"),
        (_change_record(methods="dat"), "run.json: methods=dat: expected a list"),
        (_change_record(methods=["dta"]), "there is no method 'dta'; did you mean 'dat'"),
        (_change_record(seeds=[]), "seeds=: expected at least one"),
        (_change_record(seeds=["a"]), "run.json: seeds=a: expected a whole number"),
        (_change_record(seeds=[0, 0]), "seeds=.*: expected different whole numbers"),
        (_change_record(settings=[]), "run.json: settings=.*: expected an object"),
        (_change_record(settings={"step": 5}), "settings have no 'step'; did you mean 'steps'"),
        (
            _change_record(settings={"steps": "many"}),
            "settings: steps=many: expected a whole number",
        ),
    ],
)
def test_a_damaged_record(folder: Path, damage: Callable[[bytes], bytes], message: str) -> None:
    (folder / RUN).write_bytes(damage((folder / RUN).read_bytes()))
    refused(folder, message)


# ---- metrics -----------------------------------------------------------------------------------


def test_a_torn_last_line_is_left_out(folder: Path) -> None:
    whole = (folder / METRICS).read_bytes()
    lines = runs.read_metrics(folder)
    for torn in (b"{", b'{"step": 30, "se', b'{"step": 30, "loss": \xe2\x82'):
        (folder / METRICS).write_bytes(whole + torn)
        assert runs.read_metrics(folder) == lines
    assert resume(folder)
    assert (folder / METRICS).read_bytes() == whole


@pytest.mark.parametrize("line", ['{"step": 1', "[]", "12", '{"seed": 0}', '{"step": "x"}', ""])
def test_a_damaged_line_before_the_last_is_an_error(folder: Path, line: str) -> None:
    first, *rest = (folder / METRICS).read_text().splitlines()
    (folder / METRICS).write_text("\n".join([first, line, *rest]) + "\n")
    with pytest.raises(RunFolderError, match=r"cannot read .*metrics.jsonl: line 2 is damaged"):
        runs.read_metrics(folder)


def test_metrics_that_cannot_be_read(tmp_path: Path) -> None:
    assert runs.read_metrics(tmp_path) == []
    (tmp_path / METRICS).mkdir()
    with pytest.raises(RunFolderError, match=r"cannot read .*metrics.jsonl"):
        runs.read_metrics(tmp_path)


def test_metrics_are_cut_back_to_a_step(folder: Path) -> None:
    lines = runs.read_metrics(folder)
    assert {line["step"] for line in lines} == {10, 20}
    runs.cut_metrics(folder, 10)
    assert runs.read_metrics(folder) == [line for line in lines if line["step"] == 10]
    runs.cut_metrics(folder, 0)
    assert (folder / METRICS).read_text() == ""


# ---- nothing in a folder is executed -----------------------------------------------------------


def test_no_pickle_anywhere() -> None:
    home = Path(package.__file__).parent
    files = sorted(home.rglob("*.py"))
    assert len(files) > 50
    forbidden = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
    found = []
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
                found.append(f"{file.relative_to(home)}:{node.lineno}")
    assert found == []


def test_everything_in_a_folder_is_plain(done: Path) -> None:
    assert {p.name for p in done.iterdir()} == {".lock", RUN, METRICS, CHECKPOINT}
    record = json.loads((done / RUN).read_text())
    assert record["settings"]["steps"] == 20 != SETTINGS.steps
    assert record["shown"]["model"] == MODEL
    assert record["model"].endswith("mlp(expand=4.0, dropout=0.0) @ 16, embedding=1.0, head=2")
    assert all(json.loads(line)["seed"] == 0 for line in (done / METRICS).read_text().splitlines())
