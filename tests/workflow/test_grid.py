"""A grid: a run for each combination of values, trained together, found again by its folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from outlast.cli import MISTAKE, STOPPED, main
from outlast.errors import OutlastError, RunFolderError
from outlast.methods import Method
from outlast.registry import Entry, methods
from outlast.runs.folder import RESULTS, STUDY, write_json
from outlast.runs.grids import grid_runs, run_folders
from outlast.runs.records import read_run
from outlast.train.trainer import Trainer
from outlast.workflow.create import canonical
from outlast.workflow.grid import spread
from tiny_runs import CPU, MODEL, TASK, assert_same_run, create, tiny

# ---- which runs --------------------------------------------------------------------------------


def test_a_grid_is_every_combination() -> None:
    run = replace(canonical(tiny()), label="it")
    found = spread(run, ["lr=0.001,2e-3", "weight_decay=0,0.1"], Path("out"))
    assert [(r.settings.lr, r.settings.weight_decay) for r, _ in found] == [
        (0.001, 0.0), (0.001, 0.1), (0.002, 0.0), (0.002, 0.1),
    ]  # fmt: skip
    assert found[1][1] == Path("out") / "lr=0.001,weight_decay=0.1"
    assert found[1][0].label == "it lr=0.001 weight_decay=0.1"
    assert replace(found[2][0], settings=run.settings, label="it") == run
    assert spread(run, [], Path("out")) == [(run, Path("out"))]


def test_a_comma_in_brackets_is_the_values_own() -> None:
    axes = ["stop=never,success(accuracy=0.9, at=3), success(0.8,1)", "lr=0.1,0.2"]
    found = spread(tiny(), axes, Path("out"))
    stops = ["never", "success(accuracy=0.9, at=3)", "success(0.8, 1)"]
    assert [r.settings.stop for r, _ in found[::2]] == stops
    assert found[2][1] == Path("out") / "stop=success-accuracy=0.9-at=3,lr=0.1"


def test_methods_are_values_too() -> None:
    axes = ["lr=0.1,0.2", "method=none,dat(mode=freeze, switch=below(0.01)), dat + ema(0.9)"]
    found = spread(replace(tiny(), label="it"), axes, Path("out"))
    assert [r.methods for r, _ in found[:3]] == [
        (), ("dat(mode=freeze, switch=below(0.01))",), ("dat", "ema(0.9)"),
    ]  # fmt: skip
    assert [r.settings.lr for r, _ in found] == [0.1] * 3 + [0.2] * 3
    assert [folder.name for _, folder in found[:3]] == [
        "lr=0.1,method=none",
        "lr=0.1,method=dat-mode=freeze-switch=below-0.01",
        "lr=0.1,method=dat+ema-0.9",
    ]
    assert found[2][0].label == "it lr=0.1 method=dat + ema(0.9)"


def test_a_method_that_all_runs_have_stays() -> None:
    assert {r.methods for r, _ in spread(tiny("dat"), ["lr=0.1,0.2"], Path("out"))} == {("dat",)}


class Named(Method):
    """Takes numbers, or a text."""

    def __init__(self, what: tuple[int, ...] | str = "") -> None:
        self.what = what


def test_what_is_in_a_value_stays_in_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(methods._entries, "named", Entry("named", Named, "the test"))
    axis = """method=named("../up, (or, down"),named('a "b" + c'),named("~$x|é")"""
    found = spread(tiny(), [axis], Path("out"))
    assert [r.methods for r, _ in found] == [
        ('named("../up, (or, down")',), ("named('a \"b\" + c')",), ('named("~$x|é")',),
    ]  # fmt: skip
    assert [folder for _, folder in found] == [
        Path("out") / name
        for name in ("method=named-..-up-or-down", "method=named-ab+c", "method=named-x-é")
    ]
    # two runs never share a folder
    with pytest.raises(OutlastError, match=r"names of folders: method=named-ab is twice"):
        spread(tiny(), ['method=named("ab"),named("a b")'], Path("out"))
    with pytest.raises(OutlastError, match=r"different values: method=named\(\[1\]\) is twice"):
        spread(tiny(), ["method=named(1),named([1])"], Path("out"))


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (["lr"], "grid=lr: expected a setting and different values"),
        (["lr=0.1,"], "grid=lr=0.1,: expected a setting and different values"),
        (["lr=0.1,0.1"], "expected a setting and different values"),
        (["rl=0.1,0.2"], "grid=rl=0.1,0.2: expected a setting that may differ.*mean 'lr'"),
        (["batch_size=8,16"], "grid=batch_size=8,16: expected a setting that may differ"),
        (["lr=0.1", "lr=0.2"], "grid=lr=0.1 lr=0.2: expected each setting once"),
        (
            ["max_grad_norm=1", "lr=0.1", "lr=0.2"],
            "expected each setting once, .* values: lr is twice",
        ),
        (["lr=0.001,1e-3"], "grid=lr=0.001,1e-3: expected different values: lr=1e-3 is twice"),
        (["lr=fast,0.1"], "settings: lr=fast: expected a number"),
        (["lr=0,0.1"], "lr=0.*: expected a number > 0"),
        (["stop=success(0.9,never"], r"cannot read the value 'success\(0.9,never'"),
        (["stop=success,success(0.999)"], r"different values: stop=success\(0.999\) is twice"),
        (["methods=dat,none"], "grid=methods=dat,none: expected .*, or method; did you.*'method'"),
        (["processes=1,2"], "grid=processes=1,2: expected a setting that may differ among runs"),
        (["method=dta,none"], "there is no method 'dta'; did you mean 'dat'"),
        (["lr=1,2", "method=none,dta"], "^grid: lr=1, method=dta: there is no method 'dta'"),
        (
            ["max_grad_norm=1,2", "lr=0.1,abc"],
            "^grid: max_grad_norm=1, lr=abc: .*lr=abc: expected a number",
        ),
        (["method=dat,none,dat"], "grid=method=dat,none,dat: expected .* different values"),
        (["method=dat,dat(mode=skip)"], r"different values: method=dat\(mode=skip\) is twice"),
        (["method=dat(mode=x),none"], "method dat: mode=x: expected skip"),
        (["method=dat(,none"], r"cannot read the spec 'dat\(,none'"),
        (["method=dat +,none"], r"grid: method=dat \+: expected methods joined by \+"),
        (["method=none + dat,dat"], r"grid: method=none \+ dat: expected methods joined by \+"),
        (["seeds=0,1"], "grid=seeds=0,1: expected a setting that may differ"),
    ],
)
def test_a_grid_that_cannot_be_read(axes: list[str], message: str) -> None:
    with pytest.raises(OutlastError, match=message):
        spread(tiny(), axes, Path("out"))


def test_what_is_wrong_without_the_grid_is_not_put_down_to_it() -> None:
    with pytest.raises(OutlastError, match=r"^there is no task 'party'"):
        spread(tiny(task="party"), ["lr=0.1,0.2"], Path("out"))


def test_a_grid_of_methods_names_them_all() -> None:
    with pytest.raises(OutlastError, match=r"^method=ema\(0.9\): expected none beside a grid of"):
        spread(tiny("ema(0.9)"), ["method=dat,none"], Path("out"))


# ---- from the command line ---------------------------------------------------------------------

SMALL = (
    "train", "--task", "parity(length=4)", "--model", "lstm @ 8", "--steps", "10", "--steps-per-block", "5",
    "--batch-size", "4", "--warmup", "0", "--probe-every", "0", "--checkpoint-every", "5", "--device", "cpu",
)  # fmt: skip


def test_a_grid_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "grid"
    command = [*SMALL, "--out", str(out)]
    assert main([*command, "--seeds", "0-1", "--grid", "lr=0.001,0.002"]) == 0
    text = capsys.readouterr().out
    assert "seeds 0, 1 each, 2 runs together" in text
    for rate in ("0.001", "0.002"):
        folder = out / f"lr={rate}"
        assert read_run(folder)["settings"]["lr"] == float(rate)
        assert json.loads((folder / RESULTS).read_text())["step"] == 10
        assert f"lr={rate}" in text
    assert main([*command, "--grid", "lr=0.001,0.002"]) == MISTAKE
    said = capsys.readouterr().err
    assert "holds a run already" in said
    assert f"go on with 'outlast resume {out}'," in said, "one of two would go on"
    # what is in the way of one run is told before any other is begun
    assert main([*command, "--grid", "lr=0.003,0.001"]) == MISTAKE
    assert "lr=0.001 holds a run already" in capsys.readouterr().err
    assert not (out / "lr=0.003").exists()
    folders = [str(out / "lr=0.001"), str(out / "lr=0.002")]
    assert main(["resume", *folders, "--device", "cpu"]) == 0


def test_a_grid_may_be_given_in_pieces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "grid"
    command = [*SMALL, "--out", str(out), "--grid", "lr=0.001"]
    assert main([*command, "--grid", "lr=0.002", "max_grad_norm=1"]) == MISTAKE
    assert (
        "grid=lr=0.001 lr=0.002 max_grad_norm=1: expected each setting once"
        in capsys.readouterr().err
    )
    assert main([*command, "--grid"]) == MISTAKE
    assert "grid=: expected settings and their values" in capsys.readouterr().err
    assert not out.exists()
    assert main([*command, "--grid", "weight_decay=0,0.1", "max_grad_norm=1"]) == 0
    assert {path.name for path in run_folders(out)} == {
        "lr=0.001,weight_decay=0,max_grad_norm=1", "lr=0.001,weight_decay=0.1,max_grad_norm=1",
    }  # fmt: skip


def test_a_value_that_diverges_is_listed_and_the_others_are_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*SMALL, "--out", "grid", "--grid", "lr=1e38,0.001"]) == 0
    text = capsys.readouterr().out
    assert "\ndiverged: lr=1e38: seed 0: the loss or a weight is not finite" in text
    assert "diverged: lr=0.001" not in text
    assert "Try a smaller lr (it is 1e+38)" in text
    for rate in ("1e38", "0.001"):
        rows = json.loads(Path("grid", f"lr={rate}", RESULTS).read_text())["rows"]
        assert {row.get("parked") for row in rows} == {0 if rate == "1e38" else None}
    # without a sound run it is an error, also on going on
    assert main([*SMALL, "--out", "none", "--grid", "lr=1e38,2e38"]) == MISTAKE
    first = capsys.readouterr().err
    assert first.count("No seed is left to train. Try a smaller lr") == 2
    for folders in (["none/lr=1e38", "none/lr=2e38"], ["none"]):
        assert main(["resume", *folders, "--device", "cpu"]) == MISTAKE
        assert capsys.readouterr().err == first


# ---- the folder of a grid ----------------------------------------------------------------------

AXES = ("--seeds", "0-1", "--grid", "lr=0.004,0.001", "method=none,ema(0.9)")
NAMES = [f"lr={lr},method={m}" for lr in ("0.004", "0.001") for m in ("none", "ema-0.9")]


def test_it_goes_on_as_a_whole_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*SMALL, *AXES, "--out", "whole"]) == 0
    capsys.readouterr()
    block = Trainer.block
    stepped: list[list[str]] = []

    def ask(self: Trainer) -> None:
        block(self)
        stepped.append([trainer.folder.name for trainer in self.trainers])
        if len(stepped) == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "block", ask)
    assert main([*SMALL, *AXES, "--out", "grid"]) == STOPPED
    assert "saved; go on with: outlast resume grid\n" in capsys.readouterr().out
    assert main(["resume", "grid", "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "seeds 0, 1 each, 4 runs together" in text
    assert "a page of all of them: outlast report grid\n" in text
    assert stepped == [NAMES, NAMES], "the rows lie in another order than they did"
    for name in NAMES:
        assert_same_run(Path("whole", name), Path("grid", name))
        results = [json.loads(Path(f, name, RESULTS).read_text()) for f in ("whole", "grid")]
        assert results[0] == results[1]


def test_two_grids_in_a_folder_go_on_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each beside the runs it was begun with, and in their order; the models may differ."""
    monkeypatch.chdir(tmp_path)
    wide = [*SMALL[:4], "lstm @ 16", *SMALL[5:]]
    grids = {"lr=0.004,0.001,1e38": SMALL, "lr=0.003,0.004": wide}  # the second has one anew
    block, stepped, ask = Trainer.block, list[list[str]](), [True]

    def watched(self: Trainer) -> None:
        block(self)
        stepped.append([trainer.folder.name for trainer in self.trainers])
        if ask[0]:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "block", watched)
    for axis, words in grids.items():
        assert main([*words, "--grid", axis, "--out", "grid", "--overwrite"]) == STOPPED
    stepped.clear()
    ask[0] = False
    capsys.readouterr()
    assert main(["resume", "grid", "--device", "cpu"]) == 0
    assert sorted(stepped) == [["lr=0.001", "lr=1e38"], ["lr=0.003", "lr=0.004"]]
    text = capsys.readouterr().out
    assert text.count("seeds 0 each, 2 runs together") == 2
    assert "\ndiverged: lr=1e38: seed 0: " in text
    assert len(list(Path("grid").glob(f"*/{RESULTS}"))) == 4


def test_what_is_finished_and_tested_is_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also beside a run that is not; tests that are missing, or of an earlier step, are made."""
    out = tmp_path / "grid"
    assert main([*SMALL, "--out", str(out), "--grid", "lr=0.001,0.002"]) == 0
    kept, other = (out / f"lr={rate}" / RESULTS for rate in ("0.001", "0.002"))
    results = json.loads(other.read_text())
    for missing in (None, results | {"step": 5}):
        other.unlink() if missing is None else other.write_text(json.dumps(missing))
        before = kept.stat().st_mtime_ns
        capsys.readouterr()
        assert main(["resume", str(out), "--device", "cpu"]) == 0
        text = capsys.readouterr().out
        again = f"to test it again: outlast eval {kept.parent}"
        assert f"\nlr=0.001\nfinished and tested: {kept} ({again})\n" in text
        assert kept.stat().st_mtime_ns == before
        assert json.loads(other.read_text()) == results
    assert main(["resume", str(kept.parent), "--device", "cpu"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("finished and tested: ")
    assert kept.stat().st_mtime_ns == before


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("home") / "grid"
    assert main([*SMALL, *AXES, "--out", str(out)]) == 0
    return out


def test_its_runs_come_in_the_order_they_were_begun(grid: Path, tmp_path: Path) -> None:
    assert grid_runs(grid) == run_folders(grid) == [grid / name for name in NAMES]
    assert run_folders(grid / NAMES[0]) == [grid / NAMES[0]]
    copied = Path(shutil.copytree(grid, tmp_path / "copied"))
    shutil.rmtree(copied / NAMES[1])  # one that is gone is not missed
    create(tiny(), copied / "another")  # and one that was added is found
    assert [f.name for f in grid_runs(copied)] == ["another", NAMES[0], *NAMES[2:]]


def test_its_page_has_an_arm_for_each_run(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(grid)]) == 0
    page = grid / "report" / "index.html"
    assert page.resolve().as_uri() in capsys.readouterr().out
    (study,) = json.loads((grid / "report" / "results.json").read_text())["studies"]
    assert [arm["name"] for arm in study["arms"]] == NAMES
    assert [arm["label"] for arm in study["arms"]][1] == "grid lr=0.004 method=ema(0.9)"
    assert {arm["status"] for arm in study["arms"]} == {"evaluated"}
    assert "4 runs compared" in page.read_text()
    assert grid_runs(grid) == [grid / name for name in NAMES], "the page is taken for a run"


def test_each_of_its_runs_is_measured(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--lengths", "2", "--sequences", "16", "--device", "cpu"]
    before = (grid / NAMES[0] / RESULTS).read_bytes()
    assert main(["eval", str(grid), *small, "--out", "some.json"]) == MISTAKE
    assert "out=some.json: expected none, as" in capsys.readouterr().err
    assert (grid / NAMES[0] / RESULTS).read_bytes() == before
    assert main(["eval", str(grid), *small]) == 0
    text = capsys.readouterr().out
    for name in NAMES:
        assert f"\n{name}\n" in text
        rows = json.loads((grid / name / RESULTS).read_text())["rows"]
        assert {row["multiple"] for row in rows} == {2.0}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{}", "--seeds", "0", "--out", "x"], "grid: expected one run folder, where --seeds"),
        (["{}", "{}"], "grid .*grid: expected different run folders"),
        (["{}", "{}/" + NAMES[2]], "expected different run folders"),
    ],
)
def test_what_a_grid_cannot_be_asked(
    grid: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", *(word.format(grid) for word in words)]) == MISTAKE
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize("verb", ["resume", "eval"])
def test_a_folder_without_a_run(
    tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "inside").mkdir()
    assert main([verb, str(tmp_path)]) == MISTAKE
    assert capsys.readouterr().err == (
        f"error: {tmp_path} has no run.json: it is not a run folder, and none of the folders in it "
        "is\n"
    )
    assert main(["report", str(tmp_path)]) == MISTAKE
    assert "nor are there runs in it" in capsys.readouterr().err


def test_a_study_is_no_grid(tmp_path: Path) -> None:
    create(tiny(), tmp_path / "arm")
    write_json(tmp_path / STUDY, {"format": 1, "command": "outlast reproduce dat"})
    with pytest.raises(RunFolderError, match=r"is a whole study: go on .* 'outlast reproduce dat'"):
        run_folders(tmp_path)
    assert run_folders(tmp_path / "arm") == [tmp_path / "arm"]


def test_a_grid_does_not_hide_in_a_run(tmp_path: Path) -> None:
    create(tiny(), tmp_path / "run")
    with pytest.raises(OutlastError, match=r"out=.*run: expected a folder that is no run itself"):
        spread(tiny(), ["lr=0.001,0.002"], tmp_path / "run")


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_nor_is_a_run_begun_over_a_grid_or_a_study(
    tmp_path: Path, overwrite: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    create(tiny(), tmp_path / "grid" / "lr=0.001")
    write_json(tmp_path / "study" / STUDY, {"format": 1})
    for name, what in (("grid", "other runs, such as lr=0.001"), ("study", "a study")):
        before = sorted(tmp_path.rglob("*"))
        assert main([*SMALL, "--out", str(tmp_path / name), *overwrite]) == MISTAKE
        assert f"{name} holds {what}; a run would hide it" in capsys.readouterr().err
        assert sorted(tmp_path.rglob("*")) == before


def test_a_run_with_others_in_its_folder_is_still_replaced(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "some"):
        create(tiny(), folder)
    begin(tiny(seeds=(5,)), tmp_path, CPU, overwrite=True)
    assert read_run(tmp_path)["seeds"] == [5]


def test_a_setting_is_given_once_beside_a_grid_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--task", TASK, "--model", MODEL, "--out", str(tmp_path / "grid")]
    assert main([*words, "--lr", "0.1", "--grid", "lr=0.001,0.002"]) == MISTAKE
    assert "lr=0.1: expected none of its own beside a grid of lr" in capsys.readouterr().err
    assert not (tmp_path / "grid").exists()
