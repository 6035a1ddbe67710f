"""Tables of analyses: what a further call adds, what it may replace, and how they are read."""

from __future__ import annotations

import json
import re
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.analysis.anatomy import CAUSES
from outlast.cli import main
from outlast.errors import RunFolderError
from outlast.reporting import anatomy_by_length
from outlast.runs.analyses import AnalysisTable, Row, anatomy_at_end, read_analysis, write_analysis
from outlast.runs.kept import load_kept, save_kept
from outlast.runs.records import read_run
from outlast.runs.study import ArmRecord, StudyRecord, write_study

TASK = "composite(modulus=2, keys=12, queries=2, length=3)"
MODEL = "lstm > attention(heads=2) > mlp @ 16"
FEW = ["--only", "sharpness", "--sequences", "4", "--lengths", "1"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Arms a-dat, a-joint, b-joint, and one without a checkpoint."""
    home = tmp_path_factory.mktemp("tables") / "study"
    common: dict[str, Any] = {"seeds": [0, 1], "steps": 4, "batch_size": 4, "steps_per_block": 1}
    kept = {"probe_every": 0, "keep_checkpoints": "every=2"}
    outlast.fit(TASK, MODEL, home / "a-dat", methods="dat(switch=0.5)", **common, **kept)
    outlast.fit(TASK, MODEL, home / "a-joint", **common)
    shutil.copytree(home / "a-joint", home / "b-joint")
    shutil.copytree(home / "a-joint", home / "a-empty")
    (home / "a-empty/checkpoint.safetensors").unlink()
    arms = ("a-empty", "a-dat", "a-joint", "b-joint")
    write_study(home, StudyRecord(study="demo", arms=tuple(ArmRecord(a, a) for a in arms)))
    return home


@pytest.fixture
def run(study: Path, tmp_path: Path) -> Path:
    shutil.copytree(study / "a-dat", tmp_path / "run", ignore=shutil.ignore_patterns("analysis"))
    return tmp_path / "run"


def seeds_and_steps(folder: Path, name: str = "sharpness") -> set[tuple[object, object]]:
    table = read_analysis(folder, name)
    return set() if table is None else {(row["seed"], row["step"]) for row in table.rows}


def test_further_steps_are_added_and_the_same_ones_are_replaced(run: Path) -> None:
    for _ in range(2):
        assert main(["analyse", str(run), *FEW]) == 0
        assert main(["analyse", str(run), *FEW, "--steps", "2", "--seeds", "1"]) == 0
    assert seeds_and_steps(run) == {(0, None), (1, None), (1, 2)}
    table = read_analysis(run, "sharpness")
    assert table is not None
    assert len(table.rows) == len({json.dumps(row) for row in table.rows})


def test_other_settings_replace_a_table_only_if_nothing_is_lost(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyse", str(run), *FEW]) == 0
    before = (run / "analysis/sharpness.json").read_bytes()
    other = ["analyse", str(run), "--only", "sharpness", "--sequences", "5", "--lengths", "1"]
    assert main([*other, "--seeds", "1"]) == 2
    words = capsys.readouterr().err
    assert "sharpness.json has sequences 4: this call would lose its rows of seed 0 at the" in words
    assert (run / "analysis/sharpness.json").read_bytes() == before
    assert main(other) == 0
    table = read_analysis(run, "sharpness")
    assert table is not None
    assert table.settings == {"ladder": [1.0], "sequences": 5}


def test_lengths_out_of_reach_write_no_table(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["analyse", str(run), "--only", "sharpness", "--lengths", "90", "--sequences", "4"]
    assert main(call) == 2
    assert "lengths=90: expected one that is within reach" in capsys.readouterr().err
    assert not (run / "analysis").exists()


def test_no_length_within_reach_is_an_error_before_anything_is_made(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["analyse", str(run), "--lengths", "90", "400", "--sequences", "4"]
    assert main(call) == 2
    words = f"lengths=90 400: expected one that is within reach of {run}; length 270 (90 x), "
    assert words in capsys.readouterr().err
    assert not (run / "analysis").exists()
    assert main([*call, "--only", "gradients"]) == 0  # which has no lengths


def test_memory_that_does_not_suffice_is_an_error_in_words(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("outlast.analysis.runs.load", fail)
    assert main(["analyse", str(run), *FEW]) == 2
    assert "does not suffice for sharpness" in capsys.readouterr().err


def test_arm_that_cannot_be_analysed_does_not_stop_the_study(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyse", str(study), *FEW]) == 2
    error = capsys.readouterr().err
    assert error.count("error: ") == 1
    assert "a-empty has no checkpoint.safetensors" in error
    assert seeds_and_steps(study / "b-joint") == {(0, None), (1, None)}


def test_run_of_a_grid_whose_record_is_damaged_or_missing_does_not_stop_the_others(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid, pack = tmp_path / "grid", ["c", "killed", "a", "b"]
    for name, changed in (("a", {}), ("b", {"format": 99}), ("c", {})):
        shutil.copytree(study / "a-joint", grid / name, ignore=lambda *_: ["analysis"])
        record = json.loads((grid / name / "run.json").read_text()) | {"pack": pack} | changed
        (grid / name / "run.json").write_text(json.dumps(record))
    (grid / "killed").mkdir()
    assert main(["analyse", str(grid), *FEW]) == 2
    said = capsys.readouterr()
    assert said.err.count("error: ") == 2
    assert f"error: cannot read {grid}/b/run.json: its format is 99" in said.err
    assert f"error: {grid}/killed has no run.json: it is not a run folder" in said.err
    assert [line for line in said.out.splitlines() if line in pack] == pack
    for name in ("a", "c"):
        assert seeds_and_steps(grid / name) == {(0, None), (1, None)}
    assert main(["resume", str(grid)]) == 2  # which takes all of a grid or nothing
    assert f"cannot read {grid}/b/run.json" in capsys.readouterr().err


def test_step_of_a_switch_is_looked_at_for_the_seeds_that_switched(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_kept(run, *load_kept(run, 2, read_run(run).spec), seeds=[1])
    assert main(["analyse", str(run), *FEW, "--steps", "2", "4"]) == 0
    assert "left out: seed 0 at step 2, it did not switch then" in capsys.readouterr().out
    assert seeds_and_steps(run) == {(0, 4), (1, 2), (1, 4)}
    assert main(["analyse", str(run), *FEW, "--steps", "2", "--seeds", "0"]) == 2


def test_toward_may_be_the_way_of_another_arm(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["analyse", str(study), "--only", "gradients", "--sequences", "4", "--toward", "dat"]
    assert main(call) == 2  # of a-empty
    towards = {}
    for arm in ("a-dat", "a-joint", "b-joint"):
        table = read_analysis(study / arm, "gradients")
        assert table is not None
        towards[arm] = table.settings["toward"]
    assert towards == {"a-dat": None, "a-joint": "a-dat", "b-joint": None}
    assert "gradients toward the run itself" in capsys.readouterr().out


def test_no_folder_is_said_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyse"]) == 2
    assert capsys.readouterr().err == "error: give at least one run folder\n"


def anatomy_row(seed: int, step: int | None, share: float) -> Row:
    return {"seed": seed, "step": step, "multiple": 1.0, "length": 3, "part": "state"} | {
        "cause": "right", "share": share, "count": 2,
    }  # fmt: skip


def test_end_of_training_is_no_step_or_else_the_last_one(run: Path) -> None:
    rows = [anatomy_row(0, None, 0.1), anatomy_row(0, 4, 0.2), anatomy_row(0, 2, 0.3)]
    rows += [anatomy_row(1, 2, 0.4), anatomy_row(1, 4, 0.5)]
    write_analysis(run, AnalysisTable(analysis="anatomy", rows=rows))
    assert [row.share for row in anatomy_at_end(run, CAUSES)] == [0.1, 0.5]
    (run / "checkpoint.safetensors").unlink()
    assert [row.share for row in anatomy_at_end(run, CAUSES)] == [0.1, 0.5]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"cause": "luck"}, r"anatomy.json: rows\[1\].cause=luck: expected one of right, state"),
        ({"share": None}, r"anatomy.json: rows\[1\].share=null: expected a number"),
        ({"seed": "a"}, r'anatomy.json: rows\[1\].seed="a": expected a whole number'),
    ],
)
def test_damaged_anatomy_names_file_row_and_field(run: Path, row: Row, words: str) -> None:
    rows = [anatomy_row(0, None, 0.1), anatomy_row(1, None, 0.1) | row]
    write_analysis(run, AnalysisTable(analysis="anatomy", rows=rows))
    with pytest.raises(RunFolderError, match=words):
        anatomy_at_end(run, CAUSES)


def test_anatomy_without_a_step_names_it(run: Path) -> None:
    row = anatomy_row(0, None, 0.1)
    del row["step"]
    write_analysis(run, AnalysisTable(analysis="anatomy", rows=[row]))
    with pytest.raises(RunFolderError, match=r"anatomy.json: rows\[0\] has no step"):
        anatomy_at_end(run, CAUSES)


def test_report_and_page_draw_every_cause_in_the_same_words() -> None:
    assert set(anatomy_by_length.CAUSES) == set(CAUSES)
    assert len({colour for _, colour in anatomy_by_length.CAUSES.values()}) == len(CAUSES)
    script = (files("outlast.view") / "assets/causes.js").read_text()
    _, _, table = script.partition("const CAUSES = {")
    drawn = re.findall(r'^  (\w+): \["(.+?)"', table.partition("};")[0], re.MULTILINE)
    words = {cause: words for cause, (words, _) in anatomy_by_length.CAUSES.items()}
    assert dict(drawn) == words


def test_anatomy_from_before_a_cause_was_known_is_read(run: Path) -> None:
    rows = [anatomy_row(0, None, 0.25) | {"cause": cause} for cause in CAUSES if cause != "unread"]
    write_analysis(run, AnalysisTable(analysis="anatomy", rows=rows))
    assert "unread" not in {row.cause for row in anatomy_at_end(run, CAUSES)}
    assert len(anatomy_at_end(run, CAUSES)) == len(CAUSES) - 1
