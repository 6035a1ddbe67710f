"""Grids from the command line: trained together, found again by their folder, resumed as one."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path

import msgspec
import pytest

from outlast.cli import MISTAKE, STOPPED, main
from outlast.errors import RunFolderError
from outlast.runs.folder import RESULTS, RUN, STUDY, SWEEP, write_json
from outlast.runs.grids import grid_runs, run_folders
from outlast.runs.records import read_results, read_run, write_results
from outlast.train.trainer import Block, Trainer
from outlast.workflow.create import create_runs
from tiny_runs import CPU, assert_same_run, create, killed_at_write, tiny

SMALL = (
    "train", "--task", "parity(length=4)", "--model", "lstm @ 8", "--steps", "10",
    "--steps-per-block", "5", "--batch-size", "4", "--warmup", "0", "--probe-every", "0",
    "--checkpoint-every", "5", "--device", "cpu",
)  # fmt: skip
AXES = ("--seeds", "0-1", "--grid", "lr=0.004,0.001", "method=none,ema(0.9)")
NAMES = [f"lr={lr},method={m}" for lr in ("0.004", "0.001") for m in ("none", "ema-0.9")]


def resume(*folders: str | Path) -> int:
    return main(["resume", *map(str, folders), "--device", "cpu"])


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Watch:
    """Notes the runs of each block; while `ask` is set, asks to leave after a block."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.blocks: list[list[str]] = []
        self.ask = True
        self.signal = signal.SIGTERM
        next_block = Trainer.next_block

        def watched(trainer: Trainer) -> Block:
            self.blocks.append([folder.name for folder in trainer.folders])
            if self.ask:
                os.kill(os.getpid(), self.signal)
            return next_block(trainer)

        monkeypatch.setattr(Trainer, "next_block", watched)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grid that was trained and tested."""
    out = tmp_path_factory.mktemp("home") / "grid"
    assert main([*SMALL, *AXES, "--out", str(out)]) == 0
    return out


@pytest.fixture
def copied(grid: Path, tmp_path: Path) -> Path:
    """A copy of that grid, to be changed."""
    return Path(shutil.copytree(grid, tmp_path / "grid"))


# ---- train -------------------------------------------------------------------------------------


def test_train_command_makes_a_tested_run_of_each_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "grid"
    command = [*SMALL, "--out", str(out)]
    assert main([*command, "--seeds", "0-1", "--grid", "lr=0.001,0.002"]) == 0
    text = capsys.readouterr().out
    assert "seeds 0, 1 each, 2 runs together" in text
    for rate in ("0.001", "0.002"):
        assert read_run(out / f"lr={rate}").settings.lr == float(rate)
        assert read_results(out / f"lr={rate}" / RESULTS).step == 10
        assert f"lr={rate}" in text
    assert main([*command, "--grid", "lr=0.001,0.002"]) == MISTAKE
    error = capsys.readouterr().err
    assert "holds a run already" in error
    assert f"go on with 'outlast resume {out}'," in error, "one of two would go on"
    # what is in the way of one run is said before any other is created
    assert main([*command, "--grid", "lr=0.003,0.001"]) == MISTAKE
    assert "lr=0.001 holds a run already" in capsys.readouterr().err
    assert not (out / "lr=0.003").exists()
    assert resume(out / "lr=0.001", out / "lr=0.002") == 0


def test_grid_may_be_given_in_pieces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "grid"
    command = [*SMALL, "--out", str(out), "--grid", "lr=0.001"]
    for pieces, message in (
        (
            ["lr=0.002", "weight_decay=1"],
            "lr is given twice: --grid lr=0.001 and --grid lr=0.002; give it once",
        ),
        ([], "grid=: expected settings and their values"),
    ):
        assert main([*command, "--grid", *pieces]) == MISTAKE
        assert message in capsys.readouterr().err
    assert not out.exists()
    assert main([*command, "--grid", "weight_decay=0,0.1", "clip=1"]) == 0
    assert {path.name for path in run_folders(out)} == {
        "lr=0.001,weight_decay=0,max_grad_norm=1", "lr=0.001,weight_decay=0.1,max_grad_norm=1",
    }  # fmt: skip


def test_setting_beside_a_grid_of_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "grid"
    for flags, message in (
        (["--lr", "0.1", "--grid", "lr=0.001,0.002"], "lr is given twice: --lr 0.1 and --grid lr="),
        (["--grid", "lr=0.001", "--lr=0.002"], "lr is given twice: --lr 0.002 and --grid lr="),
        (["--clip", "1", "--grid", "max_grad_norm=1,2"], "max_grad_norm is given twice: --clip 1"),
        (["--batch", "8", "--batch_size", "16"], "batch_size is given twice: --batch-size 4 and"),
        (["--lr", "0.1", "--lr=0.2"], "lr is given twice: --lr 0.1 and --lr 0.2; give it once"),
    ):
        assert main([*SMALL, "--out", str(out), *flags]) == MISTAKE
        assert message in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.usefixtures("in_tmp_path")
def test_value_that_diverges_is_listed_and_the_others_are_sound(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*SMALL, "--out", "grid", "--grid", "lr=1e38,0.001"]) == 0
    text = capsys.readouterr().out
    assert "\ndiverged: lr=1e38: seed 0: the loss or a weight is not finite" in text
    assert "diverged: lr=0.001" not in text
    assert "Try a smaller lr (it is 1e+38)" in text
    for rate, parked in (("1e38", 0), ("0.001", None)):
        rows = read_results(Path("grid", f"lr={rate}", RESULTS)).rows
        assert {row.get("parked") for row in rows} == {parked}
    # without a sound run it is an error, also on going on
    assert main([*SMALL, "--out", "none", "--grid", "lr=1e37,1e38"]) == MISTAKE
    error = capsys.readouterr().err
    assert error.count("No seed is left to train. Try a smaller lr") == 2
    for folders in (["none/lr=1e37", "none/lr=1e38"], ["none"]):
        assert resume(*folders) == MISTAKE
        assert capsys.readouterr().err == error


def test_eval_of_a_grid_replaces_no_results_if_one_run_cannot_be_measured(
    in_tmp_path: None,
) -> None:
    assert main([*SMALL, "--out", "grid", "--grid", "lr=0.001,0.002"]) == 0
    first, second = Path("grid", "lr=0.001"), Path("grid", "lr=0.002", RUN)
    second.write_text(second.read_text().replace('"lr": 0.002', '"lr": 0.003'))
    before = (first / RESULTS).read_bytes()
    assert main(["eval", "grid", "--lengths", "1", "--sequences", "2"]) == MISTAKE
    assert (first / RESULTS).read_bytes() == before


# ---- resume ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_grid_is_resumed_as_a_whole_bit_for_bit(
    number: signal.Signals,
    grid: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    watch: Watch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    watch.signal = number
    assert main([*SMALL, *AXES, "--out", "grid"]) == STOPPED
    assert "saved; go on with: outlast resume grid\n" in capsys.readouterr().out
    watch.ask = False
    assert resume("grid") == 0
    text = capsys.readouterr().out
    assert "seeds 0, 1 each, 4 runs together" in text
    assert "a page of all of them: outlast report grid\n" in text
    assert watch.blocks == [NAMES, NAMES], "the rows lie in another order than they did"
    for name in NAMES:
        assert_same_run(grid / name, Path("grid", name))
        assert read_results(grid / name / RESULTS) == read_results(Path("grid", name, RESULTS))


@pytest.mark.usefixtures("in_tmp_path")
def test_two_grids_in_a_folder_are_resumed_one_after_the_other(
    watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each beside the runs it was created with, and in their order; the models may differ."""
    wide = [*SMALL[:4], "lstm @ 16", *SMALL[5:]]
    grids = {"lr=0.004,0.001,1e38": SMALL, "lr=0.003,0.004": wide}  # the second has one anew
    for axis, words in grids.items():
        assert main([*words, "--grid", axis, "--out", "grid", "--overwrite"]) == STOPPED
    watch.blocks.clear()
    watch.ask = False
    capsys.readouterr()
    assert resume("grid") == 0
    assert sorted(watch.blocks) == [["lr=0.001", "lr=1e38"], ["lr=0.003", "lr=0.004"]]
    text = capsys.readouterr().out
    assert text.count("seeds 0 each, 2 runs together") == 2
    assert "\ndiverged: lr=1e38: seed 0: " in text
    assert len(list(Path("grid").glob(f"*/{RESULTS}"))) == 4


def test_diverged_run_is_not_called_trained_or_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    create(tiny(steps=60, lr=1e38), folder)
    assert resume(folder) == MISTAKE
    capsys.readouterr()
    assert resume(folder) == MISTAKE
    text = capsys.readouterr().out
    assert re.search(r"^has ended: every seed diverged by step \d+ of 60$", text, re.MULTILINE)
    assert f"diverged on every seed and tested: {folder / RESULTS}" in text
    assert "trained" not in text
    assert "finished" not in text


def test_resume_tests_only_runs_without_a_test_of_their_last_step(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, other = (copied / name / RESULTS for name in NAMES[:2])
    results, before = read_results(other), kept.stat().st_mtime_ns
    for step in (None, 5):
        other.unlink()
        if step is not None:
            write_results(other, msgspec.structs.replace(results, step=step))
        capsys.readouterr()
        assert resume(copied) == 0
        again = f"to test it again: outlast eval {kept.parent}"
        lines = f"\n{NAMES[0]}\nfinished and tested: {kept} ({again})\n"
        assert lines in capsys.readouterr().out
        assert kept.stat().st_mtime_ns == before
        assert read_results(other) == results
    assert resume(kept.parent) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("finished and tested: ")
    assert kept.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["{}", "--seeds", "0", "--out", "x"],
            "--seeds and --out cannot be combined with several runs",
        ),
        (["{}", "{}"], "grid .*grid: expected different run folders"),
        (["{}", "{}/" + NAMES[2]], "expected different run folders"),
    ],
)
def test_resume_refuses_a_grid(
    grid: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", *(word.format(grid) for word in words)]) == MISTAKE
    assert re.search(message, capsys.readouterr().err)


# ---- the folder of a grid ----------------------------------------------------------------------


def test_runs_of_a_grid_come_in_the_order_they_were_created(grid: Path, copied: Path) -> None:
    assert grid_runs(grid) == run_folders(grid) == [grid / name for name in NAMES]
    assert run_folders(grid / NAMES[0]) == [grid / NAMES[0]]
    shutil.rmtree(copied / NAMES[1])  # one that is gone is not missed
    create(tiny(), copied / "another")  # and one that was added is found
    assert [folder.name for folder in grid_runs(copied)] == ["another", NAMES[0], *NAMES[2:]]


@pytest.mark.usefixtures("no_figures")
def test_page_of_a_grid_has_an_arm_for_each_run(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(copied)]) == 0
    page = copied / "report" / "index.html"
    assert page.resolve().as_uri() in capsys.readouterr().out
    (study,) = json.loads((copied / "report" / "results.json").read_text())["studies"]
    assert [arm["name"] for arm in study["arms"]] == NAMES
    assert [arm["label"] for arm in study["arms"]][1] == "grid lr=0.004 method=ema(0.9)"
    assert {arm["status"] for arm in study["arms"]} == {"evaluated"}
    assert "4 runs compared" in page.read_text()
    assert grid_runs(copied) == [copied / name for name in NAMES], "the page is taken for a run"


def test_eval_command_tests_each_run_of_a_grid(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["--lengths", "2", "--sequences", "16", "--device", "cpu"]
    before = (copied / NAMES[0] / RESULTS).read_bytes()
    assert main(["eval", str(copied), *short, "--out", "some.json"]) == MISTAKE
    assert "--out some.json cannot be combined with" in capsys.readouterr().err
    assert (copied / NAMES[0] / RESULTS).read_bytes() == before
    assert main(["eval", str(copied), *short]) == 0
    text = capsys.readouterr().out
    for name in NAMES:
        assert f"\n{name}\n" in text
        rows = read_results(copied / name / RESULTS).rows
        assert {row["multiple"] for row in rows} == {2.0}


@pytest.mark.parametrize("verb", ["resume", "eval", "report"])
def test_folder_without_a_run_is_refused(
    tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "inside").mkdir()
    assert main([verb, str(tmp_path)]) == MISTAKE
    error = capsys.readouterr().err
    if verb == "report":
        assert "nor are there runs in it" in error
    else:
        inside = "and none of the folders in it is"
        assert error == f"error: {tmp_path} has no run.json: it is not a run folder, {inside}\n"


def test_study_is_no_grid(tmp_path: Path) -> None:
    arm = create(tiny(), tmp_path / "arm")
    write_json(tmp_path / STUDY, {"format": 1, "command": "outlast reproduce dat"})
    with pytest.raises(RunFolderError, match=r"is a whole study: go on .* 'outlast reproduce dat'"):
        run_folders(tmp_path)
    assert run_folders(arm) == [arm]


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_run_is_not_created_over_a_grid_a_study_or_a_sweep(
    tmp_path: Path, overwrite: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    create(tiny(), tmp_path / "grid" / "lr=0.001")
    write_json(tmp_path / "study" / STUDY, {"format": 1})
    write_json(tmp_path / "sweep" / SWEEP, {"format": 1})
    all_hidden = ("other runs, such as lr=0.001", "a study", "a sweep")
    for name, hidden in zip(("grid", "study", "sweep"), all_hidden, strict=True):
        before = sorted(tmp_path.rglob("*"))
        assert main([*SMALL, "--out", str(tmp_path / name), *overwrite]) == MISTAKE
        assert f"{name} holds {hidden}; a run would hide it" in capsys.readouterr().err
        assert sorted(tmp_path.rglob("*")) == before


def test_run_with_others_in_its_folder_can_be_overwritten(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "some"):
        create(tiny(), folder)
    create(tiny(seeds=(5,)), tmp_path, overwrite=True)
    assert read_run(tmp_path).seeds == (5,)


# ---- a grid that was killed while it was created -------------------------------------------------


def create_grid(out: Path, *, lr: float = 0.002, overwrite: bool = False) -> None:
    runs = [(tiny(lr=lr), out / name) for name in "abc"]
    create_runs(runs, CPU, overwrite, out, "abc")


@pytest.mark.parametrize("written", [1, 2])
def test_run_that_a_killed_grid_did_not_create_is_missed(
    tmp_path: Path, written: int, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "grid"
    assert killed_at_write(written + 1, lambda: create_grid(out))
    assert len(list(out.glob(f"*/{RUN}"))) == written
    missing = out / "abc"[written]
    for verb in ("resume", "eval", "report"):
        assert main([verb, str(out)]) == MISTAKE
        error = capsys.readouterr().err
        assert error.startswith(f"error: {missing} has no run.json, though it is a run of this")
        assert "--overwrite" in error
    with pytest.raises(RunFolderError, match="--overwrite"):
        create_grid(out)
    create_grid(out, overwrite=True)
    assert grid_runs(out) == [out / name for name in "abc"]


def test_run_deleted_after_a_killed_creation_is_not_missed(tmp_path: Path) -> None:
    out = tmp_path / "grid"
    assert killed_at_write(3, lambda: create_grid(out))
    shutil.rmtree(out / "c")
    assert grid_runs(out) == [out / "a", out / "b"]


def test_grid_killed_while_it_is_overwritten_has_no_old_run_among_new_ones(tmp_path: Path) -> None:
    out = tmp_path / "grid"
    create_grid(out)
    assert killed_at_write(2, lambda: create_grid(out, lr=0.5, overwrite=True))
    with pytest.raises(RunFolderError, match=r"grid/b has no run.json.*--overwrite"):
        grid_runs(out)
    assert read_run(out / "a").settings.lr == 0.5


def test_killed_grid_without_any_record_is_created_by_the_same_command(tmp_path: Path) -> None:
    out = tmp_path / "grid"
    assert killed_at_write(1, lambda: create_grid(out))
    with pytest.raises(RunFolderError, match=r"has no run.json: it is not a run folder"):
        run_folders(out)
    create_grid(out)
    assert len(grid_runs(out)) == 3
