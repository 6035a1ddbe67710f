"""Reading folders: what is missing is a state, what is damaged is an error with a place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_folders import write_demo, write_run, write_study

from outlast.errors import RunFolderError
from outlast.reporting.load import Arm, read, read_run
from outlast.reporting.summary import summarise_arm


def test_a_run_is_read(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", seeds=(0, 5)))
    assert run.seeds == (0, 5)
    assert list(run.losses) == ["state", "recall", "running"]
    assert sorted(run.probes) == [1.0, 3.0]
    assert {e.name for e in run.events} == {"switch", "warm-up (new kind)"}
    assert run.last_step == 2500
    assert run.rows is not None
    assert len(run.rows) == 10


def test_unfinished_and_unevaluated_are_states(tmp_path: Path) -> None:
    early = read_run(write_run(tmp_path / "a", evaluated=False, until=700))
    done = read_run(write_run(tmp_path / "b", evaluated=False))
    bare = write_run(tmp_path / "c", evaluated=False)
    (bare / "metrics.jsonl").unlink()
    status = [
        summarise_arm(Arm("x", "x", None, run)).status
        for run in (early, done, read_run(bare), None)
    ]
    assert status == [
        "unfinished: step 700 of 2,500",
        "not evaluated yet",
        "unfinished: step 0 of 2,500",
        "not run yet",
    ]


def ended(folder: Path, events: dict[int, str], step: int = 600) -> Path:
    """Add the event that ended each of these seeds, at a step."""
    with (folder / "metrics.jsonl").open("a") as file:
        for seed, name in events.items():
            file.write(json.dumps({"step": step, "seed": seed, "event": name}) + "\n")
    return folder


def say_tested(folder: Path, step: int) -> Path:
    """Say at which step a run was tested, as `outlast eval` does."""
    path = folder / "results.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "step": step}))
    return folder


@pytest.mark.parametrize(
    ("step", "events", "status"),
    [
        (600, {}, "unfinished: step 600 of 2,500"),
        (600, {0: "succeeded"}, "unfinished: step 600 of 2,500"),
        (600, {0: "succeeded", 1: "parked"}, "evaluated"),
        (600, {0: "succeeded", 1: "succeeded"}, "evaluated"),
        (550, {0: "succeeded", 1: "succeeded"}, "unfinished: step 550 of 2,500"),
        (2500, {}, "evaluated"),  # whatever the metrics have lost
        (None, {}, "unfinished: step 600 of 2,500"),
    ],
)
def test_a_test_does_not_finish_a_run(
    tmp_path: Path, step: int | None, events: dict[int, str], status: str
) -> None:
    folder = ended(write_run(tmp_path / "run", seeds=(0, 1), until=600), events)
    if step is not None:
        say_tested(folder, step)
    assert summarise_arm(Arm("x", "x", None, read_run(folder))).status == status


def test_results_alone_say_that_every_seed_had_ended(tmp_path: Path) -> None:
    folder = say_tested(write_run(tmp_path / "run", seeds=(0, 1), until=600), 600)
    (folder / "metrics.jsonl").unlink()
    results = json.loads((folder / "results.json").read_text())
    for row in results["rows"]:
        row["succeeded"] = 600
    (folder / "results.json").write_text(json.dumps(results))
    assert read_run(folder).unfinished is None


def test_a_line_being_written_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2550, "se')
    assert read_run(folder).last_step == 2500


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines()
    lines[6] = lines[6][:20]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl, line 7: damaged JSON"):
        read_run(folder)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.json", '{"format": 1,\n"label": }', r"run\.json, line 2: damaged JSON"),
        ("run.json", "[]", r"run\.json: expected a JSON object"),
        ("run.json", '{"format": 2}', r"run\.json: format 2; this version of Outlast reads 1"),
        ("run.json", '{"length": "ten"}', r"run\.json: length: expected a number, found 'ten'"),
        ("results.json", '{"rows": 3}', r"results\.json: rows: expected a list"),
        ("results.json", '{"rows": [{"seed": 0}]}', r"rows\[0\]: length: expected a number"),
        ("metrics.jsonl", '{"seed": 0}\n', r"metrics\.jsonl, line 1: step: expected a number"),
        ("metrics.jsonl", '{"step": 1, "seed": 0, "loss": 2}\n', r"line 1: loss: expected an obj"),
    ],
)
def test_damage_is_an_error_that_names_the_place(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    folder = write_run(tmp_path / "run")
    (folder / name).write_text(text)
    with pytest.raises(RunFolderError, match=message):
        read_run(folder)


def test_bytes_that_are_no_text_are_an_error(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "run.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RunFolderError, match=r"run\.json: cannot be read"):
        read_run(folder)


def test_what_is_no_folder_of_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="neither a run folder"):
        read([tmp_path])
    with pytest.raises(RunFolderError, match="nothing to report on"):
        read([])


def test_an_arm_may_be_missing_but_not_elsewhere(tmp_path: Path) -> None:
    study = write_study(tmp_path / "s", [("gone", "not run", "g")], [])
    assert read([study])[0].arms[0].run is None
    write_study(tmp_path / "s", [("../other", "outside", "g")], [])
    with pytest.raises(RunFolderError, match="not the name of a subfolder"):
        read([study])


def test_loose_runs_form_one_study_with_distinct_names(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / d / "run", label="same") for d in "ab"]
    studies = read([write_demo(tmp_path / "demo"), *folders])
    assert [study.title for study in studies] == ["Delayed attention training", "2 runs compared"]
    assert [arm.name for arm in studies[1].arms] == ["run", "run-2"]
    assert len({arm.label for arm in studies[1].arms}) == 2


def test_a_loss_that_is_not_finite_is_kept(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", seeds=(0,), until=50)
    line = {"step": 100, "seed": 0, "loss": {"state": float("nan")}}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    assert 100 in read_run(folder).losses["state"][0]
