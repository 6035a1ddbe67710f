"""A whole study through the command line, from nothing to the page; and its mistakes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from rich.console import Console
from shell import Shell

import outlast.cli.common as common
import outlast.reporting.page as report_module
import outlast.studies.runner as runner
from outlast.cli.exit_codes import FAILED, MISTAKE, STOPPED
from outlast.registry import studies
from outlast.runs.folder import RESULTS, locked
from outlast.runs.records import read_results, read_run
from outlast.runs.study import read_study
from outlast.studies import Arm, Claim, Study
from outlast.studies.runner import Update
from tiny_runs import start_processes_at_once, tiny

without_figures = pytest.mark.usefixtures("no_figures")


def arm(name: str, label: str, *methods: str, **changed: Any) -> Arm:
    settings = {"steps": 10, "probe_every": 5, "checkpoint_every": 5} | changed
    return Arm(name, replace(tiny(*methods, **settings), label=label))


def mini(scale: Literal["demo", "paper"] = "demo") -> Study:
    """Two arms in seconds."""
    arms = [
        arm("joint", "trained jointly"),
        arm("dat", "delayed attention", "dat(switch=5)"),
        arm("retry", "from the start again", "dat(switch=5, latest=4, otherwise=retry)"),
        arm("broken", "far too fast", lr=1e38, warmup=0, model="mlp > lstm @ 16"),
    ]
    claims = [
        Claim("It scores something", "dat", 3, "us", low=0.0),
        Claim("It is perfect", "dat", 3, "us", low=1.0),
        Claim("They differ", "dat", 1, "us", statistic="difference", versus="joint", high=1.0),
    ]
    return Study(
        "mini", scale, "A study in small", "Does it run?", arms, claims, (1, 3), 64,
        default=("joint", "dat"),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    studies.register("mini", "a test")(mini)
    yield
    del studies._entries["mini"]


@pytest.mark.parametrize("scale", ["demo", "paper"])
@pytest.mark.parametrize("name", ["dat", "phase1", "tra"])
def test_dry_run_lists_the_arms_and_writes_nothing(
    name: str, scale: str, here: Path, monkeypatch: pytest.MonkeyPatch, shown: Shell
) -> None:
    monkeypatch.setattr("outlast.studies.estimate.BUDGET", 0.0)
    text = shown("reproduce", name, "--scale", scale, "--dry").out
    study: Study = studies.entry(name).factory(scale=scale)
    for chosen in study.choose():  # a long name may be folded
        assert re.search(rf"^{re.escape(chosen.name[:8])}", text, re.MULTILINE), chosen.name
    assert list(here.iterdir()) == []


def written(folder: Path) -> dict[Path, int]:
    """When each file of the arms was written."""
    return {p: p.stat().st_mtime_ns for p in folder.glob("*/*") if p.parent.name != "report"}


@without_figures
def test_study_is_run_once_and_tested_again_only_where_needed(
    here: Path, run: Shell, shown: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["reproduce", "mini", "--device", "cpu", "--workers", "2"]

    dry = shown(*command, "--dry")
    assert "Does it run?" in dry.out
    assert re.search(r"^joint .*2$", dry.out, re.MULTILINE)
    estimate = r"about \d+ \S+ of training on cpu, by 2 timed steps of the arm"
    assert re.search(estimate, dry.line)
    assert "broken" not in dry.out
    assert list(here.iterdir()) == []

    text = shown(*command).out
    folder = here / "runs" / "mini-demo"
    assert "trained jointly: done" in text
    assert "the study: 0 of 2 arms at their end, 0 % of all seed-steps\n" in text
    assert "the study: 2 of 2 arms at their end, 100 % of all seed-steps" in text
    for label in ("trained jointly", "delayed attention"):
        lines = re.findall(rf"^{label}: 2 seeds at once \(about .* GiB", text, re.MULTILINE)
        assert len(lines) == 1
    page = folder / "report" / "index.html"
    assert page.resolve().as_uri() in text
    html = page.read_text()
    for words in ("A study in small", "delayed attention", "trained jointly", "It is perfect"):
        assert words in html
    assert read_study(folder).study == "mini"
    results = folder / "dat" / RESULTS
    assert {row["seed"] for row in read_results(results).rows} == {0, 1}
    assert read_run(folder / "dat").label == "delayed attention"

    # given again, nothing is trained anew
    start_processes_at_once(monkeypatch)
    before = written(folder)
    assert "delayed attention: done" in shown(*command).out
    assert written(folder) == before

    # one that was tested by less since then is tested again, and only that
    full = results.read_bytes()
    for lengths, sequences in ((["1"], "64"), (["1", "2", "3"], "8")):
        shown("eval", folder / "dat", "--lengths", *lengths, "--sequences", sequences)
        text = shown(*command).out
        assert "delayed attention: testing" in text
        assert "trained jointly: testing" not in text
        assert results.read_bytes() == full
    after = written(folder)
    assert [p for p in before if p.parent.name == "joint" and after[p] != before[p]] == []

    # other seeds in the same folder are a mistake
    refused = run(*command, "--seeds", "7")
    assert refused.code == MISTAKE
    assert "joint holds a run with other seeds or settings (seeds=0, 1, not 7)" in refused.err
    assert written(folder) == after


@pytest.mark.parametrize("options", [["--dry"], []])
def test_setting_that_does_not_go_with_an_arm_is_refused_before_anything_is_run(
    options: list[str], here: Path, run: Shell
) -> None:
    refused = run("reproduce", "mini", "--arms", "retry", *options, "--steps", "8")
    assert refused.code == MISTAKE
    assert "error: arm retry: method dat: latest=4: expected less than half" in refused.err
    assert "joint" not in refused.out
    assert list(here.iterdir()) == []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a study, whose processes start at once."""
    start_processes_at_once(monkeypatch)
    return tmp_path / "study"


@without_figures
def test_failed_arm_is_named_and_the_page_is_made(folder: Path, run: Shell) -> None:
    with locked(folder / "dat"):
        result = run("reproduce", "mini", "--out", folder)
    assert result.code == FAILED
    assert "trained jointly: done" in result.out
    assert re.search(r"^delayed attention: .*dat is in use by", result.out, re.MULTILINE)
    assert re.search(r"^failed: dat: .*dat is in use by", result.out, re.MULTILINE)
    assert "not finished" not in result.out
    assert "goes on with them" not in result.out
    assert (folder / "report" / "index.html").exists()
    assert not (folder / "dat" / RESULTS).exists()


@without_figures
def test_diverged_arm_is_a_result_and_named(folder: Path, run: Shell, shown: Shell) -> None:
    command = ["reproduce", "mini", "--out", folder, "--device", "cpu", "--arms", "broken"]
    for _ in range(2):  # given again, it says the same
        text = shown(*command, "joint").out
        assert "far too fast: seeds 0, 1: the loss or a weight is not finite" in text
        assert "trained jointly: done" in text
        assert "\ndiverged: broken: seeds 0, 1: the loss or a weight is not finite" in text
        assert "not finished" not in text
        assert "failed" not in text
    assert "diverged: every seed was parked" in (folder / "report" / "index.html").read_text()
    assert (folder / "broken" / RESULTS).exists()

    # where no arm has a sound seed, there is nothing to show
    result = run(*command)
    assert result.code == FAILED
    assert "\ndiverged: broken: seeds 0, 1: the loss" in result.out


def test_report_of_a_study_can_be_made_again(folder: Path, shown: Shell) -> None:
    shown("reproduce", "mini", "--arms", "joint", "--seeds", "3", "--out", folder)
    page = folder / "report" / "index.html"
    first = page.read_bytes()
    page.unlink()
    text = shown("report", folder).out
    assert page.read_bytes() == first
    assert page.resolve().as_uri() in text


@without_figures
@pytest.mark.parametrize("terminal", [True, False])
def test_seeds_at_once_is_a_line_that_stays(
    terminal: bool, folder: Path, monkeypatch: pytest.MonkeyPatch, shown: Shell
) -> None:
    """On a terminal too, where a bar's own words last until the next block."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=200, color_system=None)
    monkeypatch.setattr(common, "console", console)
    shown("reproduce", "mini", "--arms", "joint", "--out", folder, "--device", "cpu")
    lines = [line for line in text.getvalue().splitlines() if "seeds at once" in line]
    assert [line.split(": ")[1][:15] for line in lines] == ["2 seeds at once"]


@without_figures
def test_arms_trained_together_say_once_how_many_seeds(folder: Path, shown: Shell) -> None:
    command = ["reproduce", "mini", "--together", "True", "--out", folder, "--device", "cpu"]
    lines = [line for line in shown(*command).out.splitlines() if "seeds at once" in line]
    assert [line.split(" (")[0] for line in lines] == [
        "trained jointly and 1 more: 4 seeds at once"
    ]


@pytest.mark.parametrize(("fails", "code"), [(False, STOPPED), (True, FAILED)])
def test_stopped_arms_are_told_apart_from_failed_ones(
    fails: bool, code: int, here: Path, monkeypatch: pytest.MonkeyPatch, run: Shell
) -> None:
    def run_study(*arguments: Any) -> list[str]:
        watch = arguments[6]
        watch(Update("joint", "stopped"))
        if fails:
            watch(Update("dat", "failed", error="it is [broken]"))
        return ["dat", "joint"] if fails else ["joint"]

    monkeypatch.setattr(runner, "run_study", run_study)
    monkeypatch.setattr(report_module, "report", lambda _, out: out / "index.html")
    result = run("reproduce", "mini", "--out", "study")
    assert result.code == code
    assert "\nnot finished: joint; the same command goes on with them\n" in result.out
    assert ("\nfailed: dat: it is [broken]\n" in result.out) == fails


def test_recorded_command_is_without_overwrite(
    here: Path, monkeypatch: pytest.MonkeyPatch, run: Shell
) -> None:
    monkeypatch.setattr(runner, "run_study", lambda *_: ["joint"])
    monkeypatch.setattr(report_module, "report", lambda _, out: out / "index.html")
    words = ["reproduce", "mini", "--overwrite", "--out", "study"]
    monkeypatch.setattr("sys.argv", ["outlast", *words])
    result = run(*words)
    assert result.code == STOPPED
    command = "outlast reproduce mini --out study"
    assert f"\nnot finished: joint; go on with: {command} (" in result.out
    assert read_study(here / "study").command == command
