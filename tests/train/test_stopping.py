"""A seed that has succeeded rests as it is; a run ends when all of its seeds rest.

How `stop` is written: `tests/runs/test_spec.py`. Which rows are stepped: `test_resting_rows.py`.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import outlast
from outlast.cli import MISTAKE, main
from outlast.runs.checkpoint import load_state
from outlast.runs.folder import CHECKPOINT
from outlast.runs.records import read_metrics, read_results, read_run
from outlast.runs.status import finished
from outlast.workflow.evaluate import Evaluation, evaluate_run
from outlast.workflow.progress import sentence
from outlast.workflow.subset import take_seeds
from tiny_runs import (
    CPU,
    InMemory,
    Recorder,
    assert_same_run,
    break_rows,
    create,
    create_all,
    halt,
    probe_lines,
    resume,
    stopping,
    successes,
    train_runs,
    train_until,
    trained,
)


def test_seed_rests_as_soon_as_its_probes_are_good() -> None:
    """The probes of the run that nobody stops say when."""
    seeds = (1, 3, 2, 5, 4)
    whole = InMemory(stopping(seeds=seeds, stop="never")).steps(70)
    stopped = InMemory(stopping(seeds=seeds, stop="success(accuracy=1, probes=2)"))
    run, kept = stopped.run, dict[int, list[torch.Tensor]]()
    while run.unfinished:
        stopped.block()
        for row, step in enumerate(run.succeeded):
            if step is not None:
                tables = [table[row].clone() for table in stopped.trainer.seeds.tables()]
                for table, values in zip(tables, kept.setdefault(row, tables), strict=True):
                    assert torch.equal(table, values)
    expected = {}
    for seed in seeds:
        probes = [x.probe or {} for x in probe_lines(whole.lines[0]) if x.seed == seed]
        good = [probe["1"] == 1 for probe in probes]
        pairs = [5 * (i + 2) for i, both in enumerate(pairwise(good)) if all(both)]
        if pairs:
            expected[seed] = pairs[0]
    assert len(set(expected.values())) > 2, "they all succeed at once: this shows little"
    assert expected.keys() < set(seeds), "they all succeed: this shows nothing of the others"
    assert successes(stopped.lines[0]) == expected
    assert run.succeeded == [expected.get(seed) for seed in seeds]
    assert run.step == 70
    for seed in seeds:
        last = [line.step for line in stopped.lines[0] if line.seed == seed][-1]
        assert last == expected.get(seed, 70)
        assert len(stopped.losses(seed)) == expected.get(seed, 70) // 5


def test_run_is_over_when_all_its_seeds_have_succeeded(tmp_path: Path) -> None:
    folder, recorder = create(stopping(seeds=(1, 5), steps=200), tmp_path / "run"), Recorder()
    assert resume(folder, recorder)
    steps, state = successes(read_metrics(folder)), load_state(folder)
    assert steps.keys() == {1, 5}
    assert state.succeeded == [steps[1], steps[5]]
    assert state.step == max(steps.values()) < 200
    assert finished(folder)
    *before, last = recorder.progress
    assert (last.over, last.succeeded, last.seconds_left) == (True, (1, 5), 0)
    assert not any(progress.over for progress in before)
    assert sentence(last).endswith("succeeded: seeds 1, 5")
    assert "loss" not in sentence(last)
    saved = (folder / CHECKPOINT).read_bytes()
    assert resume(folder)  # there is nothing left to do
    assert (folder / CHECKPOINT).read_bytes() == saved


def test_parked_and_succeeded_seeds_end_a_run_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no failure: there is a seed to show."""
    break_rows(monkeypatch, {1: 57})
    folder = trained(stopping(seeds=(5, 2, 1), steps=200), tmp_path / "run")
    state = load_state(folder)
    assert state.parked == [None, 55, None]
    assert [step is not None for step in state.succeeded] == [True, False, True]
    assert state.step == 60
    assert finished(folder)


def test_run_halted_between_two_good_probes_resumes_bit_for_bit(tmp_path: Path) -> None:
    run = stopping(seeds=(5, 1, 4, 2), checkpoint_every=5)
    whole, folder = trained(run, tmp_path / "whole"), create(run, tmp_path / "halted")
    streaks = set()
    for _ in range(13):
        halt(folder)
        streaks |= set(load_state(folder).streaks)
    assert {0, 1, 2} <= streaks
    assert resume(folder)
    assert_same_run(whole, folder)


def test_seeds_taken_out_of_a_run_keep_their_success(tmp_path: Path) -> None:
    folder = create(stopping(seeds=(5, 1, 4, 2)), tmp_path / "whole")
    succeeded = train_until(40, folder).succeeded[0]
    assert succeeded is not None
    take_seeds(folder, (2, 5), tmp_path / "some")
    assert load_state(tmp_path / "some").succeeded == [None, succeeded]
    assert resume(tmp_path / "some")
    take_seeds(folder, (5,), tmp_path / "one")
    assert finished(tmp_path / "one")
    assert resume(tmp_path / "one")


def test_runs_trained_together_stop_each_by_its_own_rule(tmp_path: Path) -> None:
    runs = [stopping(seeds=(5, 1), steps=200), stopping(seeds=(5, 1), stop="never", steps=60)]
    folders = create_all(runs, tmp_path)
    outcome = train_runs(folders, CPU)
    assert (outcome.ended, outcome.failures) == (True, [None, None])
    assert [len(successes(read_metrics(folder))) for folder in folders] == [2, 0]
    first, second = (load_state(folder).step for folder in folders)
    assert first < 60 == second


@pytest.mark.usefixtures("no_figures")
def test_results_and_page_name_the_step_of_success(tmp_path: Path) -> None:
    folder = trained(stopping(seeds=(5, 1), steps=200), tmp_path / "run")
    steps = successes(read_metrics(folder))
    assert "not evaluated yet" in outlast.report([folder], tmp_path / "before").read_text()
    rows = evaluate_run(folder, Evaluation((1, 3), 32))
    assert {(row["seed"], row["succeeded"]) for row in rows} == set(steps.items())
    page = outlast.report([folder], tmp_path / "page").read_text()
    text = (tmp_path / "page" / "report.md").read_text()
    for seed, step in steps.items():
        assert f"{seed}, succeeded at step {step}" in page
        assert f"{seed}, succeeded at step {step}" in text
    assert "2 stopped on success" in text
    (arm,) = json.loads((tmp_path / "page" / "results.json").read_text())["studies"][0]["arms"]
    assert arm["succeeded"] == {str(seed): step for seed, step in steps.items()}
    assert arm["parked"] == {}


def test_train_command_stops_on_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    command = [
        "train", "--task", "parity(length=2)", "--model", "lstm @ 8", "--out", str(out),
        "--steps", "400", "--steps-per-block", "5", "--batch-size", "8", "--probe-every", "5",
        "--lr", "0.05", "--checkpoint-every", "50", "--warmup", "0", "--device", "cpu",
    ]  # fmt: skip
    assert main([*command, "--stop", "always"]) == MISTAKE
    assert "stop=always: expected never or success" in capsys.readouterr().err
    assert main([*command, "--stop", "success"]) == 0
    step = load_state(out).step
    assert step < 400
    assert f"seed 0 succeeded at step {step}" in capsys.readouterr().out
    assert read_run(out).settings.stop == "success(accuracy=0.999, at=1, probes=2)"
    assert read_results(out / "results.json").step == step
