"""Reading folders: what is missing is a state, what is damaged is an error with a place."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from report_folders import write_demo, write_run, write_study

from outlast.errors import RunFolderError
from outlast.reporting.load import load_run, load_study, read

Unfinished = tuple[int, int] | None


def append_metrics(folder: Path, *lines: dict[str, object]) -> Path:
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return folder


def change_results(folder: Path, row: dict[str, int] | None = None, **values: int) -> Path:
    """Change some values of the results, and of each of their rows."""
    path = folder / "results.json"
    results = json.loads(path.read_text()) | values
    results["rows"] = [old | (row or {}) for old in results["rows"]]
    path.write_text(json.dumps(results))
    return folder


def test_run_has_record_losses_probes_events_and_rows(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "run", label=" a  label ", seeds=(0, 5)))
    assert (run.label, run.seeds) == ("a label", (0, 5))
    assert run.record.settings.batch_size == 32
    assert list(run.losses) == ["state", "recall", "running"]
    assert sorted(run.probes) == [1.0, 3.0]
    assert {event.event for event in run.events} == {"switch", "warm-up (new kind)"}
    assert run.last_step == 2500
    assert run.results is not None
    assert len(run.rows) == len(run.results.rows) == 10


def test_run_without_results_or_metrics_is_unfinished_or_not_tested(tmp_path: Path) -> None:
    early = load_run(write_run(tmp_path / "a", evaluated=False, until=700))
    trained = load_run(write_run(tmp_path / "b", evaluated=False))
    bare = write_run(tmp_path / "c", evaluated=False)
    (bare / "metrics.jsonl").unlink()
    runs = (early, trained, load_run(bare))
    assert [run.unfinished for run in runs] == [(700, 2500), None, (0, 2500)]
    assert [(run.results, run.rows) for run in runs] == [(None, ())] * 3


@pytest.mark.parametrize(
    ("step", "events", "unfinished"),
    [
        (600, {}, (600, 2500)),
        (600, {0: "succeeded"}, (600, 2500)),
        (600, {0: "succeeded", 1: "parked"}, None),
        (600, {0: "succeeded", 1: "succeeded"}, None),
        (550, {0: "succeeded", 1: "succeeded"}, (550, 2500)),
        (2500, {}, None),  # whatever the metrics have lost
        (None, {}, (600, 2500)),
    ],
)
def test_run_that_was_tested_early_is_unfinished(
    tmp_path: Path, step: int | None, events: dict[int, str], unfinished: Unfinished
) -> None:
    folder = write_run(tmp_path / "run", seeds=(0, 1), until=600)
    lines = [{"step": 600, "seed": seed, "event": name} for seed, name in events.items()]
    append_metrics(folder, *lines)
    if step is not None:
        change_results(folder, step=step)
    run = load_run(folder)
    assert run.unfinished == unfinished
    assert run.parked == {seed: 600 for seed, name in events.items() if name == "parked"}
    assert run.succeeded == {seed: 600 for seed, name in events.items() if name == "succeeded"}
    assert not run.diverged


def test_run_has_diverged_when_every_seed_is_parked(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", seeds=(0, 1), until=600)
    events = [{"step": 600, "seed": seed, "event": "parked", "since": 550} for seed in (0, 1)]
    run = load_run(append_metrics(folder, *events))
    assert run.parked == {0: 550, 1: 550}
    assert run.diverged


def test_results_alone_say_that_every_seed_has_ended(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", seeds=(0, 1), until=600)
    (folder / "metrics.jsonl").unlink()
    assert load_run(change_results(folder, step=600)).unfinished == (600, 2500)
    assert load_run(change_results(folder, row={"succeeded": 600})).unfinished is None


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.json", "{", r"run\.json: damaged JSON"),
        ("results.json", '{"rows": 3}', r"results\.json: rows=3: expected a list"),
        ("metrics.jsonl", '{"seed": 0}\n', r"metrics\.jsonl, line 1: it has no step"),
    ],
)
def test_damage_in_any_file_is_named_by_its_place(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    folder = write_run(tmp_path / "run")
    (folder / name).write_text(text)
    with pytest.raises(RunFolderError, match=message):
        load_run(folder)


def test_loss_that_is_not_finite_is_kept(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", seeds=(0,), until=50)
    append_metrics(folder, {"step": 100, "seed": 0, "loss": {"state": math.nan, "recall": None}})
    losses = load_run(folder).losses
    assert math.isnan(losses["state"][0][100])
    assert 100 not in losses["recall"][0]


def test_folder_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="neither a run folder"):
        read([tmp_path])
    with pytest.raises(RunFolderError, match="nothing to report on"):
        read([])


def test_sweep_without_runs_of_its_own_says_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(RunFolderError, match="a sweep with no recorded run yet"):
        read([tmp_path])
    for name in ("round1", "round2"):
        write_run(tmp_path / name / "lr=1e-3")
    (tmp_path / "round3").mkdir()
    with pytest.raises(RunFolderError, match=r"runs are in \S+/round1, \S+/round2: give one of"):
        read([tmp_path])


def test_arm_may_be_missing_but_not_elsewhere(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "s", [("gone", "not run", "g")], [])
    (arm,) = load_study(folder).arms
    assert (arm.name, arm.label, arm.run) == ("gone", "not run", None)
    write_study(folder, [("../other", "outside", "g")], [])
    with pytest.raises(RunFolderError, match="not the name of a subfolder"):
        read([folder])


def test_loose_runs_form_one_study_with_distinct_names(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / d / "run", label="same") for d in "ab"]
    studies = read([write_demo(tmp_path / "demo"), *folders])
    assert [study.title for study in studies] == ["Delayed attention training", "2 runs compared"]
    assert [arm.name for arm in studies[1].arms] == ["run", "run-2"]
    assert len({arm.label for arm in studies[1].arms}) == 2
