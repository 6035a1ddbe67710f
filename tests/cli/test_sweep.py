"""`outlast sweep`: runs over devices, and what is wrong with a sweep is said before it begins."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from shell import Shell

from outlast.cli.pack_table import pack_table
from outlast.runs.folder import RESULTS
from outlast.runs.grids import packs_of, run_folders
from outlast.sweep.candidates import find_candidates
from outlast.sweep.engine import PackUpdate
from outlast.sweep.packs import cut_packs
from outlast.sweep.progress import SweepProgress
from outlast.sweep.work import PackProgress
from outlast.workflow.evaluate import Evaluation
from tiny_runs import start_processes_at_once, tiny

TINY = [
    "sweep", "--task", "parity(length=2)", "--steps", "10", "--steps-per-block", "5",
    "--checkpoint-every", "5", "--probe-every", "0", "--batch-size", "2", "--sequences", "8",
    "--lengths", "1", "2", "--out", "runs/sweep",
]  # fmt: skip
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "sweep.md"
AXES = ["--grid", "model=lstm @ 4,gru @ 4", "lr=0.01,0.02"]


@pytest.fixture(autouse=True)
def _processes_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    start_processes_at_once(monkeypatch)


def test_sweep_leaves_run_folders_that_other_verbs_take(here: Path, shown: Shell) -> None:
    text = shown(*TINY, *AXES, "--devices", "cpu,cpu").out
    assert "4 runs, 4 seeds in 2 packs on 2 x cpu" in text
    assert "model=lstm-4,lr=0.01 and 1 more: done" in text
    assert re.search(r"packs: 0 running, 0 waiting, 2 done; \S+ seeds/s", text)
    assert "joint accuracy at 2 x" in text
    folders = run_folders(here / "runs" / "sweep")
    assert [[f.name for f in pack] for pack in packs_of(folders)] == [
        [f"model={model}-4,lr=0.01", f"model={model}-4,lr=0.02"] for model in ("gru", "lstm")
    ]
    assert all((folder / RESULTS).exists() for folder in folders)

    again = shown(*TINY, *AXES, "--devices", "cpu").out
    assert "running" not in again.replace("0 running", "")


def test_nothing_is_written_by_a_dry_sweep_or_a_bad_one(here: Path, run: Shell) -> None:
    assert "successive halving of 4 runs" in run(*TINY, *AXES, "--halving", "at=2", "--dry").out
    many = ",".join(map(str, range(1, 3201)))
    for words, message in (
        (["--model", "lstm @ 4", "--grid", f"warmup={many}", f"seeds={many}"], "10,240,000"),
        ([*AXES, "--model", "lstm"], "model is given twice"),
        ([*AXES, "--lr", "0.1"], "lr is given twice"),
        ([*AXES, "--halving", "at=0"], "halving: at=0.0"),
        ([*AXES, "--halving", "seeds=2"], "halving: seeds=2: expected at most 1"),
        ([*AXES, "--sequences", "0"], "sequences"),
        ([*AXES, "--devices", "tpu"], "device=tpu"),
        ([*AXES, "--gpus-per-pack", "0.5"], "it is for a Ray cluster"),
        ([*AXES, "--ray", "auto", "--devices", "cpu"], "--ray cannot be combined"),
        ([*AXES, "--pack-seeds", "0"], "pack_seeds=0"),
        ([*AXES, "--threads", "0"], "threads=0"),
        ([*AXES, "--per-device", "0"], "per_device=0"),
        ([*AXES, "--grid"], "grid=: expected axes"),
    ):
        result = run(*TINY, *words)
        assert result.code == 2, words
        assert message in result.err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ray", "auto", "--workers", "2"], "--ray cannot be combined with --workers"),
        (["--ray", "auto", "--devices", "cpu"], "--ray cannot be combined with --device"),
        (["--ray", "auto", "--overwrite"], "--ray cannot be combined with --overwrite"),
        (["--gpus-per-pack", "0.5"], "it is for a Ray cluster"),
        (["--device", "cpu", "--devices", "cpu,cpu"], "give one of them"),
    ],
)
def test_study_is_told_once_where_it_is_trained(
    words: list[str], message: str, here: Path, run: Shell
) -> None:
    result = run("reproduce", "dat", *words)
    assert result.code == 2
    assert message in result.err
    assert list(here.iterdir()) == []


def test_changed_grid_in_the_folder_of_a_sweep_is_refused(here: Path, run: Shell) -> None:
    runs = here / "runs" / "sweep"
    assert run(*TINY, "--model", "lstm @ 4", "--grid", "lr=0.01", "--devices", "cpu").code == 0
    before = sorted(runs.rglob("*"))
    result = run(*TINY, "--model", "lstm @ 4", "--grid", "lr=0.02", "--devices", "cpu")
    assert result.code == 2
    assert "holds another sweep (axes=lr=0.01, not lr=0.02)" in result.err
    assert sorted(runs.rglob("*")) == before


def test_folder_that_cannot_be_used_is_refused_before_the_plan_is_shown(
    here: Path, run: Shell
) -> None:
    one = [*TINY, "--model", "lstm @ 4", "--grid", "lr=0.01", "--devices", "cpu"]
    (here / "runs" / "sweep" / "lr=0.01").mkdir(parents=True)
    before = sorted((here / "runs").rglob("*"))
    for words, message in ((one, "this sweep did not make it"), ([*one, "--dry"], "did not make")):
        result = run(*words)
        assert (result.code, result.out) == (2, "")
        assert message in result.err
        left = [path for path in sorted((here / "runs").rglob("*")) if path.name != ".lock"]
        assert left == before  # another sweep may still use the folder
    (here / "runs" / "sweep" / "run.json").write_text("{}")
    for words in (one, [*one, "--dry"]):
        result = run(*words)
        assert (result.code, result.out) == (2, "")
        assert "holds a run" in result.err


def test_folder_with_a_name_that_is_too_long_is_an_error(run: Shell) -> None:
    for more in ([], ["--dry"], ["--pack-seeds", "2"]):
        result = run(*TINY[:-1], "x" * 300, "--model", "lstm @ 4", "--devices", "cpu", *more)
        assert result.code == 2
        assert re.search("^error: cannot .*: File name too long", result.err)


@pytest.mark.parametrize("verb", ["resume", "eval", "report"])
def test_other_verbs_say_how_a_sweep_without_a_run_goes_on(
    verb: str, here: Path, run: Shell
) -> None:
    (here / "s" / "round1").mkdir(parents=True)
    (here / "s" / "sweep.json").write_text("{}")
    words = "s: a sweep with no recorded run yet: the command of the sweep goes on with it"
    assert words in run(verb, "s").err


def test_more_threads_than_cores_are_told(run: Shell) -> None:
    words = [*TINY, "--model", "lstm @ 4", "--devices", "cpu,cpu", "--threads", "999", "--dry"]
    assert "2 packs at a time with 999 threads each want more than" in run(*words).line


def test_every_command_of_the_page_runs(
    here: Path, shown: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.reporting.page.pictures_of", lambda arms, out, prefix: {})
    blocks = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    assert len(lines) == 5
    for line in lines:  # smaller, for time
        small = re.sub("--steps [14]00", "--steps 10 --steps-per-block 5 --probe-every 0", line)
        small = small.replace("--seeds 0-3", "--seeds 0-1").replace("--out", "--sequences 8 --out")
        name, *words = shlex.split(small if " sweep " in line else line)
        assert name == "outlast"
        shown(*words)
    assert len(list((here / "runs" / "halved" / "round3").glob(f"lr=*/{RESULTS}"))) == 2


def test_table_shows_packs_that_run_and_counts_the_rest() -> None:
    runs = find_candidates(tiny(), ["lr=" + ",".join(f"{i}e-3" for i in range(1, 9))])
    packs = cut_packs(runs, Evaluation(), 4)
    progress = SweepProgress(packs)
    progress.take(PackUpdate(packs[2], "running", PackProgress("node7 cuda:0", 0.25)))
    table, left, total = pack_table(progress, 2).renderables
    cells = [list(column.cells) for column in table.columns]  # type: ignore[union-attr]
    assert [str(column[0]) for column in cells] == [
        "lr=5e-3 and 1 more", "running", "2", "4", "25 %", "node7 cuda:0", "training",
    ]  # fmt: skip
    assert str(cells[1][1]) == "waiting"
    assert str(left) == "and 2 more"
    assert str(total).startswith("1 running, 3 waiting, 0 done")
