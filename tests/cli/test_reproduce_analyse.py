"""`outlast reproduce --analyse`: a study, its analyses and its page by one command."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from shell import Shell

import outlast.cli.analysing as analysing
from outlast.analysis.runs import AnalysisSettings, analyse_run
from outlast.analysis.sequences import NothingToSeeError
from outlast.cli.exit_codes import FAILED, MISTAKE, STOPPED
from outlast.registry import studies
from outlast.runs.analyses import AnalysisTable, Row, read_analysis, write_analysis
from outlast.studies import Analysis, Arm, Study
from tiny_runs import start_processes_at_once, tiny

COMMAND = ["reproduce", "looked", "--device", "cpu", "--workers", "1", "--out", "study"]
ANALYSES = (
    Analysis("sharpness"), Analysis("key-probe", along=True), Analysis("gradients", toward="dat"),
)  # fmt: skip


def looked() -> Study:
    """Two arms of one design and one without attention, in seconds."""

    def arm(name: str, *methods: str, **changed: Any) -> Arm:
        usual = {"steps": 10, "probe_every": 0, "keep_checkpoints": "every=5"}
        return Arm(name, replace(tiny(*methods, **(usual | changed)), label=name))

    arms = [
        arm("a-joint"),
        arm("a-dat", "dat(switch=5)"),
        arm("lstm", model="lstm > mlp @ 16, head=2", seeds=(0,)),
    ]
    return Study(
        "looked", "demo", "Looked at", "Why?", arms, (), (1,), 16, default=("a-*",),
        analyses=ANALYSES,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    studies.register("looked", "a test")(lambda scale="demo": looked())
    yield
    del studies._entries["looked"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study, trained and tested, without an analysis."""
    from outlast.cli import main

    home = tmp_path_factory.mktemp("trained")
    studies.register("looked", "a test")(lambda scale="demo": looked())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        start_processes_at_once(patch)
        patch.setattr("outlast.reporting.page.pictures_of", lambda *_: {})
        assert main([*COMMAND, "--arms", "*"]) == 0
    del studies._entries["looked"]
    return home / "study"


@pytest.fixture
def study(trained: Path, here: Path) -> Path:
    return Path(shutil.copytree(trained, here / "study"))


def seeds_and_steps(folder: Path, name: str) -> set[tuple[object, object]]:
    table = read_analysis(folder, name)
    return set() if table is None else {(row["seed"], row["step"]) for row in table.rows}


def test_dry_run_names_the_analyses_and_their_settings(
    here: Path, shown: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.studies.estimate.BUDGET", 0.0)
    words = "then analysed on every arm: sharpness, key-probe (at every step that is kept, too), "
    assert words + "gradients (toward dat)" in shown(*COMMAND, "--analyse", "--dry").line
    chosen = shown(*COMMAND, "--analyse", "anatomy", "gradients", "--dry").line
    assert "on every arm: anatomy, gradients (toward dat)" in chosen
    assert "analysed" not in shown(*COMMAND, "--dry").line
    assert list(here.iterdir()) == []


def test_unknown_analysis_is_refused_before_anything_is_run(here: Path, run: Shell) -> None:
    refused = run(*COMMAND, "--analyse", "sharpnes")
    assert refused.code == MISTAKE
    assert "there is no analysis 'sharpnes'" in refused.err
    assert "sharpness" in refused.err
    assert list(here.iterdir()) == []


def test_one_command_trains_analyses_and_shows(
    here: Path, shown: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_processes_at_once(monkeypatch)
    shown(*COMMAND, "--analyse")
    study = here / "study"
    ends, along = {(0, None), (1, None)}, {(seed, step) for seed in (0, 1) for step in (0, 5)}
    for arm in ("a-joint", "a-dat"):
        assert seeds_and_steps(study / arm, "sharpness") == ends
        assert seeds_and_steps(study / arm, "key-probe") == ends | along
        assert {step for _, step in seeds_and_steps(study / arm, "gradients")} == {0, 5, 10}
    table = read_analysis(study / "a-joint", "gradients")
    assert table is not None
    assert table.settings["toward"] == "a-dat"
    html = (study / "report/index.html").read_text()
    assert "Inside the models" in html
    assert "Gradients through attention" in html


@pytest.mark.usefixtures("no_figures")
def test_given_again_it_makes_only_what_is_missing(study: Path, shown: Shell) -> None:
    first = shown(*COMMAND, "--analyse").out
    assert "analyses of lstm" in first
    assert "  sharpness: left out, " in first  # the arm has no attention
    files = sorted(study.glob("*/analysis/*.json"))
    assert len(files) == 6
    before = {path: path.stat().st_mtime_ns for path in files}
    again = shown(*COMMAND, "--analyse").out
    assert again.count(": already there") == 6
    assert {path: path.stat().st_mtime_ns for path in files} == before

    path = study / "a-dat/analysis/key-probe.json"
    table = json.loads(path.read_text())
    whole = seeds_and_steps(study / "a-dat", "key-probe")
    table["rows"] = [row for row in table["rows"] if row["step"] is None or row["seed"] == 0]
    path.write_text(json.dumps(table))
    text = shown(*COMMAND, "--analyse").out
    assert text.count(": already there") == 5
    assert seeds_and_steps(study / "a-dat", "key-probe") == whole


@pytest.mark.usefixtures("no_figures")
def test_steps_that_have_not_joined_stay_missing_and_nothing_else_is_made_again(
    study: Path, shown: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "ANALYSES", (Analysis("sharpness", along=True),))
    words = "sharpness: left out, the attention of seeds 0, 1 at step 0 has not joined yet"
    assert words in shown(*COMMAND, "--analyse").out
    path = study / "a-dat/analysis/sharpness.json"
    assert seeds_and_steps(study / "a-dat", "sharpness") == {
        (seed, step) for seed in (0, 1) for step in (5, None)
    }
    before = path.stat().st_mtime_ns
    assert words in shown(*COMMAND, "--analyse").out
    assert path.stat().st_mtime_ns == before


@pytest.mark.usefixtures("no_figures")
def test_table_of_another_version_is_made_anew_with_all_its_steps(
    study: Path, shown: Shell
) -> None:
    shown(*COMMAND, "--analyse", "key-probe")
    path = study / "a-dat/analysis/key-probe.json"
    whole = path.read_bytes()
    path.write_text(json.dumps(json.loads(whole) | {"outlast": "0.0.1"}))
    shown(*COMMAND, "--analyse", "key-probe")
    assert path.read_bytes() == whole


@pytest.mark.usefixtures("no_figures")
def test_arm_that_cannot_be_analysed_does_not_stop_the_others(study: Path, run: Shell) -> None:
    rows = [{"seed": 0, "step": 5, "multiple": 1.0, "weight": 0.5}]
    table = AnalysisTable(analysis="sharpness", settings={"sequences": 4}, rows=rows)
    write_analysis(study / "a-joint", table)
    result = run(*COMMAND, "--analyse", "sharpness")
    assert result.code == FAILED
    assert result.err.count("error: ") == 1
    assert "would lose its rows of seed 0 at step 5" in result.err
    assert seeds_and_steps(study / "a-dat", "sharpness") == {(0, None), (1, None)}
    assert (study / "report/index.html").exists()


@pytest.mark.usefixtures("no_figures")
def test_steps_are_looked_at_if_the_end_has_nothing_to_see(
    study: Path, shown: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def analyse(run: Path, name: str, settings: AnalysisSettings, *rest: Any) -> list[Row]:
        if not settings.steps:
            raise NothingToSeeError("its weights are not finite")
        return analyse_run(run, name, settings, *rest)

    monkeypatch.setattr(analysing, "analyse_run", analyse)
    text = shown(*COMMAND, "--analyse", "key-probe").out
    assert text.count("  key-probe: left out, its weights are not finite\n") == 3
    along = {(seed, step) for seed in (0, 1) for step in (0, 5)}
    assert seeds_and_steps(study / "a-dat", "key-probe") == along


@pytest.mark.usefixtures("no_figures")
def test_interrupted_analyses_leave_a_page_and_the_advice_to_go_on(
    study: Path, run: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    (study / "report/index.html").unlink()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(analysing, "analyse_run", interrupt)
    result = run(*COMMAND, "--analyse")
    assert result.code == STOPPED
    assert "analyses not finished; the same command goes on with them" in result.out
    assert (study / "report/index.html").exists()


@pytest.mark.usefixtures("no_figures")
def test_study_that_was_stopped_is_not_analysed(
    study: Path, run: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.studies.runner.run_study", lambda *_: ["a-joint"])
    result = run(*COMMAND, "--analyse")
    assert result.code == STOPPED
    assert "not finished: a-joint" in result.out
    assert "analyses of" not in result.out
