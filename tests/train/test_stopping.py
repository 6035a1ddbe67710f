"""A seed that has succeeded rests as it is, the others go on; a run whose seeds have ends."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from outlast.cli.progress import sentence
from test_parking import break_rows

from outlast.cli import MISTAKE, main
from outlast.errors import SpecError
from outlast.reporting.page import report
from outlast.runs.checkpoint import load_checkpoint
from outlast.runs.folder import RESULTS
from outlast.runs.records import read_metrics, read_run
from outlast.runs.spec import RunSpec, Settings, Success, read_stop
from outlast.runs.status import finished
from outlast.train.run_state import Progress
from outlast.train.trainer import Trainer
from outlast.workflow.create import canonical
from outlast.workflow.evaluate import evaluate_run
from outlast.workflow.grid import spread
from outlast.workflow.subset import take_seeds
from outlast.workflow.train import train_runs
from tiny_runs import CPU, InMemory, assert_same_run, assert_seed_is, create, halt, resume, tiny

DAT = "dat(switch=20)"
GOAL = "success(probes=2)"


def spec(*methods: str, **changed: Any) -> RunSpec:
    """So short a task that its accuracy jumps to 1, each seed's at a step of its own."""
    own = {"steps": 70, "block": 5, "probe": 5, "checkpoint": 10, "lr": 0.03, "stop": GOAL}
    return tiny(*(methods or (DAT,)), task="parity(length=3)", **(own | changed))


def begun(folder: Path, run: RunSpec) -> Path:
    create(run, folder)
    return folder


def successes(lines: list[dict[str, Any]]) -> dict[int, int]:
    return {x["seed"]: x["step"] for x in lines if x.get("event") == "succeeded"}


# ---- how it is written -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("never", None),
        ("success", Success()),
        ("success(0.9)", Success(0.9)),
        ("success(at=3, accuracy=1, probes=5)", Success(1.0, 3, 5)),
    ],
)
def test_it_is_a_spec(text: str, goal: Success | None) -> None:
    assert read_stop(text) == goal
    full = canonical(spec(stop=text)).settings.stop
    assert read_stop(full) == goal
    assert full == (str(goal) if goal else "never")


def test_it_is_off_by_default_and_in_older_records() -> None:
    assert Settings().stop == "never"
    assert Settings.read({}).stop == "never"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "stop=: expected never or success; cannot read"),
        ("0.9", "stop=0.9: expected never or success; cannot read"),
        ("sucess", r"stop=sucess: expected never or success; did you mean 'success'"),
        ("never(1)", r"stop=never\(1\): expected never or success"),
        ("success(level=1)", r"stop=success\(level=1\): expected success\(accuracy, at, probes\)"),
        ("success(0.0)", r"stop: accuracy=0.0: expected a share of sequences above 0"),
        ("success(1.1)", r"stop: accuracy=1.1: expected a share"),
        ("success(much)", r"stop: accuracy=much: expected a number"),
        ("success(at=2)", r"stop: at=2: expected a multiple that is probed, 1 or 3"),
        ("success(probes=0)", r"stop: probes=0: expected a whole number >= 1"),
    ],
)
def test_what_it_does_not_take(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Settings(stop=text)


def test_what_cannot_be_probed_cannot_be_waited_for(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"stop=success: expected never where nothing is probed"):
        Settings(stop="success", probe_every=0)
    short = tiny(
        task="composite(modulus=2, keys=8, queries=2, length=4)",
        stop="success(at=3)",
        probe_every=10,
    )
    with pytest.raises(SpecError, match=r"stop: at=3: expected .*: the task ends at length 8"):
        create(short, tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_grid_may_have_it() -> None:
    found = spread(spec(), ["stop=never,success(0.9)"], Path("out"))
    assert [run.settings.stop for run, _ in found] == ["never", "success(0.9)"]


# ---- what it does ------------------------------------------------------------------------------


def test_a_seed_rests_when_its_probes_are_good() -> None:
    """The probes of the run that nobody stops say when."""
    seeds = (1, 3, 2, 5, 4)
    whole = InMemory(spec(seeds=seeds, stop="never")).steps(70)
    run = InMemory(spec(seeds=seeds, stop="success(accuracy=1, probes=2)"))
    kept: dict[int, list[torch.Tensor]] = {}
    while run.trainer.going:
        run.trainer.block()
        for row, at in enumerate(run.trainer.succeeded):
            own = [table[row].clone() for table in run.trainer.rows.tables()]
            if at is not None:
                for one, other in zip(own, kept.setdefault(row, own), strict=True):
                    assert torch.equal(one, other)
    expected = {}
    for seed in seeds:
        good = [x["probe"]["1"] == 1 for x in whole.lines[0] if x["seed"] == seed and "probe" in x]
        pairs = [5 * (i + 2) for i, both in enumerate(pairwise(good)) if all(both)]
        if pairs:
            expected[seed] = pairs[0]
    assert len(set(expected.values())) > 2, "they all succeed at once: this shows little"
    assert expected.keys() < set(seeds), "they all succeed: this shows nothing of the others"
    assert successes(run.lines[0]) == expected
    assert run.trainer.succeeded == [expected.get(seed) for seed in seeds]
    assert run.trainer.step == 70
    for seed in seeds:
        own = [x for x in run.lines[0] if x["seed"] == seed]
        assert own[-1]["step"] == expected.get(seed, 70)
        assert len(run.losses(seed)) == expected.get(seed, 70) // 5


@pytest.mark.parametrize("methods", [(DAT,), (DAT, "ema(0.5)")], ids=" + ".join)
def test_a_seed_among_others_is_the_seed_alone(methods: tuple[str, ...]) -> None:
    run = spec(*methods, seeds=(5, 1, 4, 2))
    among = InMemory(run).steps(70)
    assert 1 < len(successes(among.lines[0])) < 4
    for seed in run.seeds:
        alone = InMemory(replace(run, seeds=(seed,))).steps(70)
        assert_seed_is(among, alone, seed, atol=2e-3)
        assert successes(among.lines[0]).get(seed) == successes(alone.lines[0]).get(seed)


def test_a_run_whose_seeds_have_all_succeeded_is_over(tmp_path: Path) -> None:
    folder, told = begun(tmp_path / "run", spec(seeds=(1, 5), steps=200)), list[Progress]()
    assert go_on(folder, CPU, told.append)
    at = successes(read_metrics(folder))
    assert at.keys() == {1, 5}
    _, state = load_checkpoint(folder)
    assert state["succeeded"] == [at[1], at[5]]
    assert state["step"] == max(at.values()) < 200
    assert finished(folder)
    last = told[-1]
    assert (last.over, last.succeeded, last.seconds_left) == (True, (1, 5), 0)
    assert not any(p.over for p in told[:-1])
    assert sentence(last).endswith("succeeded: seeds 1, 5")
    assert "loss" not in sentence(last)
    before = (folder / "checkpoint.safetensors").read_bytes()
    assert resume(folder)  # there is nothing left to do
    assert (folder / "checkpoint.safetensors").read_bytes() == before


def test_parked_and_succeeded_seeds_end_a_run_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no failure: there is a seed to show."""
    folder = begun(tmp_path / "run", spec(seeds=(5, 2, 1), steps=200))
    break_rows(monkeypatch, {1: 57})
    assert resume(folder)
    _, state = load_checkpoint(folder)
    assert state["parked"] == [None, 55, None]
    assert [at is not None for at in state["succeeded"]] == [True, False, True]
    assert state["step"] == 60
    assert finished(folder)


@pytest.mark.parametrize("methods", [(DAT,), (DAT, "ema(0.5)")], ids=" + ".join)
def test_killed_and_resumed_is_the_run_that_was_not(
    tmp_path: Path, methods: tuple[str, ...]
) -> None:
    """Also between two good probes."""
    run = spec(*methods, seeds=(5, 1, 4, 2), checkpoint_every=5)
    whole, folder = begun(tmp_path / "whole", run), begun(tmp_path / "run", run)
    assert resume(whole)
    streaks = set()
    for _ in range(13):
        halt(folder)
        streaks |= set(load_checkpoint(folder)[1]["streaks"])
    assert {0, 1, 2} <= streaks
    assert resume(folder)
    assert_same_run(whole, folder)


def test_some_seeds_of_it_go_on(tmp_path: Path) -> None:
    run = canonical(spec(seeds=(5, 1, 4, 2)))
    folder = begun(tmp_path / "whole", run)
    fleet = Trainer([(run, folder)], CPU)
    assert not fleet.train(stop=lambda: fleet.trainers[0].step >= 40)
    assert fleet.trainers[0].succeeded[0] is not None
    take_seeds(folder, (2, 5), tmp_path / "some")
    assert load_checkpoint(tmp_path / "some")[1]["succeeded"] == [
        None,
        fleet.trainers[0].succeeded[0],
    ]
    assert resume(tmp_path / "some")
    take_seeds(folder, (5,), tmp_path / "one")
    assert finished(tmp_path / "one")
    assert resume(tmp_path / "one")


def test_runs_trained_together_stop_each_by_its_own_goal(tmp_path: Path) -> None:
    runs = [spec(seeds=(5, 1), steps=200), spec(seeds=(5, 1), stop="never", steps=60)]
    folders = [begun(tmp_path / str(i), run) for i, run in enumerate(runs)]
    assert train_runs(folders, CPU) == (True, [None, None])
    assert [len(successes(read_metrics(f))) for f in folders] == [2, 0]
    assert load_checkpoint(folders[0])[1]["step"] < 60 == load_checkpoint(folders[1])[1]["step"]


# ---- what is told ------------------------------------------------------------------------------


def test_results_and_the_page_say_so(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", spec(seeds=(5, 1), steps=200))
    assert resume(folder)
    at = successes(read_metrics(folder))
    unread = report([folder], tmp_path / "before")
    assert "not evaluated yet" in unread.read_text()
    rows = evaluate_run(folder, (1, 3), 32)
    assert {(r["seed"], r["succeeded"]) for r in rows} == set(at.items())
    page = report([folder], tmp_path / "page").read_text()
    text = (tmp_path / "page" / "report.md").read_text()
    for seed, step in at.items():
        assert f"{seed}, succeeded at step {step}" in page
        assert f"{seed}, succeeded at step {step}" in text
    assert "2 stopped on success" in text
    (arm,) = json.loads((tmp_path / "page" / "results.json").read_text())["studies"][0]["arms"]
    assert arm["succeeded"] == {str(seed): step for seed, step in at.items()}
    assert arm["parked"] == {}


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    command = ["train", "--task", "parity(length=2)", "--model", "lstm @ 8", "--out", str(out)]
    command += [
        "--steps",
        "400",
        "--steps-per-block",
        "5",
        "--batch-size",
        "8",
        "--probe-every",
        "5",
        "--lr",
        "0.05",
    ]
    command += ["--checkpoint-every", "50", "--warmup", "0", "--device", "cpu"]
    assert main([*command, "--stop", "always"]) == MISTAKE
    assert "stop=always: expected never or success" in capsys.readouterr().err
    assert main([*command, "--stop", "success"]) == 0
    text = capsys.readouterr().out
    step = load_checkpoint(out)[1]["step"]
    assert step < 400
    assert f"seed 0 succeeded at step {step}" in text
    assert read_run(out)["settings"]["stop"] == "success(accuracy=0.999, at=1, probes=2)"
    assert json.loads((out / RESULTS).read_text())["step"] == step
