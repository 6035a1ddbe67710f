"""Successive halving: who goes on, with how many seeds and steps, and that it finds the best."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from outlast.errors import OutlastError, TrainingError
from outlast.runs.spec import RunSpec
from outlast.sweep.candidates import find_candidates
from outlast.sweep.devices import Event, Events, LocalDevices
from outlast.sweep.halving import (
    SCORES,
    Halving,
    check_halving,
    describe_rounds,
    halve,
    joint_accuracy,
    successive_halving,
)
from outlast.sweep.work import PackJob
from outlast.workflow.evaluate import Evaluation
from tiny_runs import start_processes_at_once, tiny

NAMES = [f"lr=0.{i}" for i in range(1, 9)]
RUNS = {name: tiny(seeds=(0, 1, 2, 3), steps=800, warmup=1) for name in NAMES}


def test_best_share_goes_on_with_more_seeds_and_steps() -> None:
    asked: list[tuple[int, list[str], int, int]] = []

    def score(number: int, runs: Mapping[str, RunSpec]) -> dict[str, float | None]:
        first = next(iter(runs.values()))
        asked.append((number, list(runs), len(first.seeds), first.settings.steps))
        return {name: None if name == NAMES[0] else float(name[-1]) for name in runs}

    rounds = successive_halving(RUNS, Halving(rounds=3, keep=0.4, steps=0.25), score)
    assert [(number, len(names), *size) for number, names, *size in asked] == [
        (1, 8, 1, 200), (2, 4, 2, 400), (3, 2, 4, 800),
    ]  # fmt: skip
    assert rounds[0].kept == ["lr=0.8", "lr=0.7", "lr=0.6", "lr=0.5"]
    assert rounds[-1].kept == ["lr=0.8", "lr=0.7"]


def test_equal_scores_keep_the_earlier_and_failed_runs_never_go_on() -> None:
    rounds = successive_halving(
        RUNS,
        Halving(rounds=2),
        lambda number, runs: dict.fromkeys(runs, 0.5) | {NAMES[0]: None, NAMES[1]: None},
    )
    assert rounds[0].kept == NAMES[2:6]
    with pytest.raises(TrainingError, match=r"round 1 .* no run has a score"):
        successive_halving(RUNS, Halving(), lambda number, runs: dict.fromkeys(runs))


def test_stopped_search_returns_the_rounds_that_are_through() -> None:
    scores = {1: dict.fromkeys(NAMES, 1.0)}
    rounds = successive_halving(RUNS, Halving(), lambda number, runs: scores.get(number))
    assert [r.number for r in rounds] == [1]


def test_first_round_may_name_its_steps_and_is_whole_blocks() -> None:
    run = RUNS[NAMES[0]]
    assert Halving(steps=12).shortened(run, 1).settings.steps == 10
    assert Halving(steps=1).shortened(run, 1).settings.steps == 5
    assert Halving(steps=10**6).shortened(run, 1).settings.steps == 800


def test_rounds_are_described_with_what_they_take() -> None:
    assert describe_rounds(RUNS, Halving(rounds=3, keep=0.4, steps=0.25)) == [
        "round 1: 8 runs of 1 seed and 200 steps",
        "round 2: 4 runs of 2 seeds and 400 steps",
        "round 3: 2 runs of 4 seeds and 800 steps",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds=1", "halving: rounds=1: expected"),
        ("keep=1", "halving: keep=1.0: expected a share"),
        ("steps=1.5", "halving: steps=1.5: expected"),
        ("at=0", "halving: at=0.0: expected"),
        ("at=3, best=1", "expected halving.at, rounds"),
        ("halve(3)", "halving"),
    ],
)
def test_bad_rule_is_refused(text: str, message: str) -> None:
    with pytest.raises(OutlastError, match=message):
        Halving.read(text)


def test_rule_is_read_as_it_is_written() -> None:
    rule = Halving(2.0, 4, 0.3, 2, 100)
    assert Halving.read(str(rule)) == rule
    assert Halving.read("at=2, rounds=4, keep=0.3, seeds=2, steps=100") == rule


def test_search_that_cannot_be_scored_is_refused_before_it_begins() -> None:
    with pytest.raises(OutlastError, match="halving: seeds=9: expected at most 4"):
        check_halving(RUNS, Halving(seeds=9))
    with pytest.raises(OutlastError, match=r"halving: at=1000000000.0: expected a multiple"):
        check_halving(RUNS, Halving(at=1e9))
    late = {"late": tiny("dat(switch=25)", seeds=(0,))}  # 30 steps; the first round has 10
    with pytest.raises(OutlastError, match=r"late: .*switch"):
        check_halving(late, Halving())


def test_search_with_run_folders_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_processes_at_once(monkeypatch)
    usual = {"steps": 20, "checkpoint_every": 5, "probe_every": 0}
    runs = find_candidates(tiny(model="lstm @ 8", **usual), ["lr=0.001,0.01,0.1"])
    rule, updates = Halving(at=2.0, rounds=2, keep=0.3), []
    options = (runs, rule, LocalDevices(["cpu"]), Evaluation((1.0, 3.0), 16), 4)
    for _ in range(2):
        rounds, outcome = halve(tmp_path, *options, lambda number, packs: updates.append)
        assert not outcome.failed
        assert not outcome.stopped
        (best,) = rounds[-1].kept
        assert rounds[-1].scores[best] == joint_accuracy(tmp_path / "round2" / best, 2.0)
    assert [u.state for u in updates[-2:]] == ["done", "done"]  # the second time nothing is trained
    assert [p.name for p in (tmp_path / "round2").glob("lr*")] == [best]
    scores = json.loads((tmp_path / SCORES).read_text())
    assert [len(each["scores"]) for each in scores["rounds"]] == [3, 1]
    with pytest.raises(OutlastError, match="no score at 10 x its length: it was not tested"):
        joint_accuracy(tmp_path / "round2" / best, 10.0)


class OneRunFails(LocalDevices):
    """The devices of this machine, on which the run with lr=0.1 always fails."""

    def run(self, jobs: deque[PackJob], asked: Sequence[int]) -> Events[PackJob]:
        for job in [job for job in jobs if "lr=0.1" in job.pack.names]:
            jobs.remove(job)
            yield Event(job, "failed", OutlastError("a bad number"))
        yield from super().run(jobs, asked)


def test_run_that_failed_in_the_first_round_is_told_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_processes_at_once(monkeypatch)
    usual = {"steps": 10, "checkpoint_every": 5, "probe_every": 0}
    runs = find_candidates(tiny(model="lstm @ 8", **usual), ["lr=0.001,0.1"])
    rounds, outcome = halve(
        tmp_path, runs, Halving(at=2.0, rounds=2), OneRunFails(["cpu"]), Evaluation((1.0,), 16), 1,
        lambda number, packs: lambda update: None,
    )  # fmt: skip
    assert [list(each.runs) for each in rounds] == [["lr=0.001", "lr=0.1"], ["lr=0.001"]]
    assert list(outcome.failed.values()) == ["round 1: lr=0.1: a bad number"]
    assert not outcome.stopped
