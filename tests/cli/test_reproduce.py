"""A whole study through the command line, from nothing to the page; and its mistakes."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from rich.console import Console

import outlast.cli.common as common
import outlast.reporting.page as report_module
import outlast.studies.runner as runner
from outlast.cli import main
from outlast.cli.exit_codes import FAILED, MISTAKE, STOPPED
from outlast.registry import studies
from outlast.runs.folder import RESULTS, locked
from outlast.runs.records import read_run
from outlast.studies import Arm, Claim, Study
from outlast.studies.runner import News
from tiny_runs import start_processes_at_once, tiny


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
    name: str, scale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", name, "--scale", scale, "--dry"]) == 0
    study: Study = studies.entry(name).factory(scale=scale)
    text = capsys.readouterr().out
    for chosen in study.choose():  # a long name may be folded
        assert re.search(rf"^{re.escape(chosen.name[:8])}", text, re.MULTILINE), chosen.name
    assert list(tmp_path.iterdir()) == []


def test_study_is_run_once_and_tested_again_only_where_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["reproduce", "mini", "--device", "cpu", "--workers", "2"]

    assert main([*command, "--dry"]) == 0
    text = capsys.readouterr().out
    assert "Does it run?" in text
    assert re.search(r"^joint .*2$", text, re.MULTILINE)
    assert "broken" not in text
    assert list(tmp_path.iterdir()) == []

    assert main(command) == 0
    folder = tmp_path / "runs" / "mini-demo"
    text = capsys.readouterr().out
    assert "trained jointly: done" in text
    for label in ("trained jointly", "delayed attention"):
        lines = re.findall(rf"^{label}: 2 seeds at once \(about .* GiB", text, re.MULTILINE)
        assert len(lines) == 1
    page = folder / "report" / "index.html"
    assert page.resolve().as_uri() in text
    html = page.read_text()
    for words in ("A study in small", "delayed attention", "trained jointly", "It is perfect"):
        assert words in html
    assert json.loads((folder / "study.json").read_text())["study"] == "mini"
    assert {r["seed"] for r in json.loads((folder / "dat" / RESULTS).read_text())["rows"]} == {0, 1}
    assert read_run(folder / "dat").label == "delayed attention"

    # given again, nothing is trained anew
    before = {p: p.stat().st_mtime_ns for p in folder.glob("*/*") if "report" not in str(p)}
    assert main(command) == 0
    assert "delayed attention: done" in capsys.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in before} == before

    # one that was tested by less since then is tested again, and only that
    results = folder / "dat" / RESULTS
    full = results.read_bytes()
    for lengths, sequences in ((["1"], "64"), (["1", "2", "3"], "8")):
        test = ["--lengths", *lengths, "--sequences", sequences]
        assert main(["eval", str(folder / "dat"), *test]) == 0
        assert main(command) == 0
        text = capsys.readouterr().out
        assert "delayed attention: testing" in text
        assert "trained jointly: testing" not in text
        assert results.read_bytes() == full
    joint = {p: t for p, t in before.items() if p.parent.name == "joint"}
    assert {p: p.stat().st_mtime_ns for p in joint} == joint
    before = {p: p.stat().st_mtime_ns for p in before}

    # other seeds in the same folder are a mistake
    assert main([*command, "--seeds", "7"]) == MISTAKE
    assert "joint holds a run with other seeds or settings (seeds=0, 1, not 7)" in (
        capsys.readouterr().err
    )
    assert {p: p.stat().st_mtime_ns for p in before} == before


@pytest.mark.parametrize("dry", [True, False])
def test_setting_that_does_not_go_with_an_arm_is_refused_before_anything_is_run(
    dry: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["reproduce", "mini", "--arms", "retry", *(["--dry"] if dry else [])]
    assert main([*command, "--steps", "8"]) == MISTAKE
    shown = capsys.readouterr()
    assert "error: arm retry: latest=4: expected less than half of training" in shown.err
    assert "joint" not in shown.out
    assert list(tmp_path.iterdir()) == []


def test_failed_arm_is_named_and_the_page_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start_processes_at_once(monkeypatch)
    folder = tmp_path / "study"
    with locked(folder / "dat"):
        assert main(["reproduce", "mini", "--out", str(folder)]) == FAILED
    text = capsys.readouterr().out
    assert "trained jointly: done" in text
    assert re.search(r"^delayed attention: .*dat is in use by", text, re.MULTILINE)
    assert re.search(r"^failed: dat: .*dat is in use by", text, re.MULTILINE)
    assert "not finished" not in text
    assert "goes on with them" not in text
    assert (folder / "report" / "index.html").exists()
    assert not (folder / "dat" / RESULTS).exists()


def test_diverged_arm_is_a_result_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start_processes_at_once(monkeypatch)
    folder = tmp_path / "study"
    command = ["reproduce", "mini", "--out", str(folder), "--device", "cpu", "--arms", "broken"]
    for _ in range(2):  # given again, it says the same
        assert main([*command, "joint"]) == 0
        text = capsys.readouterr().out
        assert "far too fast: seeds 0, 1: the loss or a weight is not finite" in text
        assert "trained jointly: done" in text
        assert "\ndiverged: broken: seeds 0, 1: the loss or a weight is not finite" in text
        assert "not finished" not in text
        assert "failed" not in text
    assert "diverged: every seed was parked" in (folder / "report" / "index.html").read_text()
    assert (folder / "broken" / RESULTS).exists()

    # where no arm has a sound seed, there is nothing to show
    assert main(command) == FAILED
    assert "\ndiverged: broken: seeds 0, 1: the loss" in capsys.readouterr().out


def test_report_of_a_study_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start_processes_at_once(monkeypatch)
    folder = tmp_path / "study"
    assert main(["reproduce", "mini", "--arms", "joint", "--seeds", "3", "--out", str(folder)]) == 0
    page = folder / "report" / "index.html"
    first = page.read_bytes()
    page.unlink()
    assert main(["report", str(folder)]) == 0
    assert page.read_bytes() == first
    assert page.resolve().as_uri() in capsys.readouterr().out


@pytest.mark.parametrize("terminal", [True, False])
def test_seeds_at_once_is_a_line_that_stays(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal too, where a bar's own words last until the next block."""
    start_processes_at_once(monkeypatch)
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=terminal, width=200, color_system=None)
    monkeypatch.setattr(common, "console", console)
    command = ["reproduce", "mini", "--arms", "joint", "--out", str(tmp_path / "study")]
    assert main([*command, "--device", "cpu"]) == 0
    lines = [line for line in shown.getvalue().splitlines() if "seeds at once" in line]
    assert [line.split(": ")[1][:15] for line in lines] == ["2 seeds at once"]


def test_arms_trained_together_say_once_how_many_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start_processes_at_once(monkeypatch)
    command = ["reproduce", "mini", "--together", "True", "--out", str(tmp_path / "study")]
    assert main([*command, "--device", "cpu"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "seeds at once" in line]
    assert [line.split(" (")[0] for line in lines] == [
        "trained jointly and 1 more: 4 seeds at once"
    ]


@pytest.mark.parametrize(("fails", "code"), [(False, STOPPED), (True, FAILED)])
def test_stopped_arms_are_told_apart_from_failed_ones(
    fails: bool,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run_study(*arguments: Any) -> list[str]:
        watch = arguments[6]
        watch(News("joint", "stopped"))
        if fails:
            watch(News("dat", "failed", error="it is [broken]"))
        return ["dat", "joint"] if fails else ["joint"]

    monkeypatch.setattr(runner, "run_study", run_study)
    monkeypatch.setattr(report_module, "report", lambda _, out: out / "index.html")
    assert main(["reproduce", "mini", "--out", str(tmp_path / "study")]) == code
    text = capsys.readouterr().out
    assert "\nnot finished: joint; the same command goes on with them\n" in text
    assert ("\nfailed: dat: it is [broken]\n" in text) == fails


def test_recorded_command_is_without_overwrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "run_study", lambda *_: ["joint"])
    monkeypatch.setattr(report_module, "report", lambda _, out: out / "index.html")
    folder = tmp_path / "study"
    words = ["reproduce", "mini", "--overwrite", "--out", str(folder)]
    monkeypatch.setattr("sys.argv", ["outlast", *words])
    assert main() == STOPPED
    command = f"outlast reproduce mini --out {folder}"
    assert f"\nnot finished: joint; go on with: {command} (" in capsys.readouterr().out
    assert json.loads((folder / "study.json").read_text())["command"] == command
