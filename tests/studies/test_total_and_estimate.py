"""How far a whole study is, and how long it would take."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import outlast.studies.estimate as estimate_module
from outlast.studies import Arm
from outlast.studies.estimate import Estimate, estimate, makespan, rough
from outlast.studies.progress import StudyProgress
from outlast.studies.runner import Update
from outlast.train.run_state import Progress
from tiny_runs import tiny

CPU = torch.device("cpu")


def arm(name: str, **changed: object) -> Arm:
    return Arm(name, replace(tiny(**changed), label=name))  # type: ignore[arg-type]


def at(name: str, step: int, steps: int, seeds: int = 2) -> Update:
    return Update(name, "training", Progress(step, steps, 0.0, {}, {}, 0, seeds))


def test_total_is_the_share_of_seed_steps_and_the_time_left() -> None:
    now = [0.0]
    arms = [arm("a", steps=10), arm("b", steps=20, seeds=(0, 1, 2))]  # 20 and 60 seed-steps
    total = StudyProgress(arms, lambda: now[0])
    assert (total.total().share, total.total().left) == (0, "")
    now[0] = 30.0
    assert total.take(at("a", 5, 10)).share == pytest.approx(10 / 80)
    after = total.take(at("b", 10, 20, seeds=3))
    assert after.share == pytest.approx(40 / 80)
    # b is at step 10 after one block of 5: it had been at step 5, so 10 + 15 steps took 30 s
    assert after.seconds_left == pytest.approx(30 * 40 / 25)
    assert after.words == "0 of 2 arms at their end, 50 % of all seed-steps"
    assert after.left == "about 0:48 left"
    assert total.take(Update("a", "testing")).share == pytest.approx(50 / 80)
    assert total.take(Update("a", "done")).words.startswith("1 of 2 arms at their end")


def test_arms_done_before_say_nothing_of_the_speed() -> None:
    now = [0.0]
    total = StudyProgress([arm("a", steps=10), arm("b", steps=10)], lambda: now[0])
    now[0] = 10.0
    after = total.take(Update("a", "done"))
    assert (after.share, after.seconds_left) == (0.5, None)
    assert total.take(at("b", 5, 10)).seconds_left == pytest.approx(10.0)


@pytest.mark.parametrize("state", ["failed", "stopped"])
def test_arm_that_ended_early_takes_no_time_and_is_not_done(state: str) -> None:
    total = StudyProgress([arm("a", steps=10), arm("b", steps=10)], lambda: 1.0)
    total.take(Update("b", "done"))
    total.take(at("a", 5, 10))
    after = total.take(Update("a", state))
    assert (after.share, after.seconds_left) == (0.75, 0)
    assert after.words == f"1 of 2 arms at their end, 1 {state}, 75 % of all seed-steps"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (40, "40 s"), (600, "10 min"), (7200, "2 h"), (4 * 86400, "4 days")],
)
def test_estimated_times_have_few_digits(seconds: float, words: str) -> None:
    assert rough(seconds) == words


@pytest.mark.parametrize(("at_once", "end"), [(1, 12.0), (2, 7.0), (9, 5.0)])
def test_makespan_is_when_the_last_arm_ends(at_once: int, end: float) -> None:
    assert makespan([5.0, 4.0, 3.0], at_once) == end


def test_estimate_times_each_kind_once_and_counts_all_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed = []

    def seconds(run: object, *_: object) -> float:
        timed.append(run)
        return 0.5

    monkeypatch.setattr(estimate_module, "seconds_of_step", seconds)
    arms = [arm("a", steps=10), replace(arm("b", steps=30)), arm("c", steps=20, batch_size=4)]
    assert estimate(arms, CPU, workers=1) == Estimate(30.0, 2, 2, "cpu")
    assert estimate(arms, CPU, workers=2).seconds == 15.0
    assert len(timed) == 4


def test_kinds_past_the_budget_are_estimated_by_their_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([0.0, 0.0, 99.0])
    monkeypatch.setattr(estimate_module.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(estimate_module, "seconds_of_step", lambda *_: 0.5)
    arms = [arm("a", steps=10), arm("b", steps=10, batch_size=16)]  # twice the batch
    result = estimate(arms, CPU, workers=1)
    assert result.seconds == pytest.approx(5.0 + 10.0)
    assert "on cpu, by 2 timed steps of 1 of 2 kinds of arm (the others by their size)" in str(
        result
    )


def test_estimate_measures_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr(estimate_module, "BUDGET", 60.0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    threads = torch.get_num_threads()
    result = estimate([arm("a", steps=1000)], CPU, workers=1)
    assert result.seconds is not None
    assert 0 < result.seconds < 1000
    assert str(result).startswith("about ")
    assert list(tmp_path.iterdir()) == []  # type: ignore[attr-defined]
    assert torch.get_num_threads() == threads


def test_nothing_timed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate_module, "BUDGET", 0.0)
    assert str(estimate([arm("a")], CPU, 1)) == "no estimate of the time: nothing could be timed"
