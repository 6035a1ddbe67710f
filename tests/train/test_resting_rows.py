"""SeedState at rest are left out of the step where enough of them are, and no seed can tell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import outlast.train.rows as rows
import pytest
import torch
from test_parking import break_rows
from test_stopping import DAT, successes

import outlast.train.run_state as trainer_module
import outlast.train.trainer as fleet
from outlast.runs.checkpoint import load_checkpoint
from outlast.runs.records import read_metrics
from outlast.runs.spec import RunSpec
from outlast.train.seeds import rows_to_step
from outlast.train.step import Stepper
from outlast.train.trainer import Trainer
from outlast.workflow.train import train_runs
from tiny_runs import CPU, InMemory, assert_same_run, assert_seed_is, create, halt, resume, tiny

SEEDS = (5, 1, 3, 2, 4, 0)


def spec(*methods: str, **changed: Any) -> RunSpec:
    own = {"steps": 70, "block": 5, "probe": 5, "checkpoint": 10, "lr": 0.03, "stop": "success"}
    return tiny(*(methods or (DAT,)), task="parity(length=3)", **({"seeds": SEEDS} | own | changed))


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each wave of each block had."""
    found: list[int] = []
    real = Stepper.run

    def run(self: Stepper, *args: Any) -> torch.Tensor:
        found.append(len(self.rows))
        return real(self, *args)

    monkeypatch.setattr(Stepper, "run", run)
    return found


# ---- which ones --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rests", "clock", "chosen"),
    [
        ([90, 90, 90, 90], 40, (0, 1, 2, 3)),
        ([40, 90, 90, 90], 40, (0, 1, 2, 3)),
        ([40, 90, 30, 90], 40, (1, 3)),
        ([40, 90, 30, 20], 40, (0, 1)),  # the last to come to rest fills the place
        ([90, 30], 40, (0, 1)),  # too few to save anything
        ([90, 30, 30], 40, (0, 1, 2)),
        ([10, 90, 20, 90, 30, 90, 35, 40], 40, (1, 3, 5, 7)),
        ([10, 90, 20, 41, 30, 90, 35, 40], 40, (1, 3, 5, 7)),  # it is not known before its time
        ([10, 90, 20, 41, 30, 90, 35, 40], 45, (1, 5)),
        ([10, 90, 20, 41, 30, 42, 35, 40], 45, (1, 5)),
    ],
)
def test_who_is_stepped(rests: list[int], clock: int, chosen: tuple[int, ...]) -> None:
    assert rows_to_step(rests, clock) == chosen


def test_it_does_not_matter_what_comes_later() -> None:
    """A run resumed beside one that is ahead of it knows more, and must choose the same."""
    made = torch.Generator().manual_seed(0)
    for _ in range(200):
        rests = torch.randint(1, 12, (9,), generator=made).tolist()
        for clock in range(12):
            unknown = [12 if at > clock else at for at in rests]
            chosen = rows_to_step(rests, clock)
            assert chosen == rows_to_step(unknown, clock)
            assert {row for row, at in enumerate(rests) if at > clock} <= set(chosen)


# ---- that it saves, and changes nothing --------------------------------------------------------


@pytest.mark.parametrize("methods", [(DAT,), (DAT, "ema(0.5)")], ids=" + ".join)
def test_a_seed_is_the_seed_alone(methods: tuple[str, ...], sizes: list[int]) -> None:
    among = InMemory(spec(*methods)).steps(70)
    assert sorted(set(sizes)) == [3, 6], "they went on as they were: this shows nothing"
    assert sizes == sorted(sizes, reverse=True)
    stopped = successes(among.lines[0])
    for seed in SEEDS:
        alone = InMemory(spec(*methods, seeds=(seed,))).steps(70)
        assert_seed_is(among, alone, seed, atol=2e-3)
        assert stopped.get(seed) == successes(alone.lines[0]).get(seed)


def test_no_row_is_touched_that_rests(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    run = InMemory(spec("ema(0.5)", seeds=(0, 1, 2, 3), stop="never", steps=60))
    break_rows(monkeypatch, {1: 7, 2: 12})
    run.steps(15)
    before = run.trainer.rows.copy()
    monkeypatch.undo()
    run.steps(60)
    assert run.trainer.parked == [None, 5, 10, None]
    for table, own in zip(run.trainer.rows.tables(), before, strict=True):
        assert torch.equal(table[[1, 2]], own[[1, 2]])
        assert not torch.equal(table[[0, 3]], own[[0, 3]])
    assert run.trainer.chosen == (0, 3)
    assert sizes == [4, 4, 4]  # and from then on two, after the fixture was undone


@pytest.mark.parametrize("together", [0, 4])
def test_killed_and_resumed_is_the_run_that_was_not(
    tmp_path: Path, sizes: list[int], together: int
) -> None:
    run = spec(DAT, "ema(0.5)", checkpoint_every=5, seeds_at_once=together)
    for name in ("whole", "parts"):
        create(run, tmp_path / name)
    assert resume(tmp_path / "whole")
    assert len(set(sizes)) == (2 if not together else 1)
    steps = len(sizes)
    for _ in range(14):
        halt(tmp_path / "parts")
    assert resume(tmp_path / "parts")
    assert sizes[:steps] == sizes[steps:]
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_runs_together_meet_again_where_they_met(tmp_path: Path, sizes: list[int]) -> None:
    """One saves often and the other seldom: the first waits for the second, and rows that rest
    now did not rest at the steps that are done again."""
    runs = [
        spec(seeds=SEEDS[:4], checkpoint_every=5),
        spec(DAT, "ema(0.5)", seeds=(5, 1), checkpoint_every=35, steps=105),
        spec(seeds=(0,), stop="never", checkpoint_every=50, steps=120),
    ]
    whole, parts = ([tmp_path / side / str(i) for i in range(3)] for side in ("whole", "parts"))
    for folders in (whole, parts):
        for run, folder in zip(runs, folders, strict=True):
            create(run, folder)
    assert train_runs(whole, CPU)[0]
    assert len(set(sizes)) > 1
    for saves in (7, 4, 3, 5):
        halt(*parts, saves=saves)
    steps = [
        load_checkpoint(f)[1]["step"] for f in parts if (f / "checkpoint.safetensors").exists()
    ]
    assert len(set(steps)) > 1
    assert train_runs(parts, CPU)[0]
    for one, other in zip(whole, parts, strict=True):
        assert_same_run(one, other)


def test_waves_are_cut_anew(sizes: list[int]) -> None:
    run = InMemory(spec(seeds_at_once=4))
    run.trainer.fit()
    assert len(run.trainer.waves) == 2
    run.steps(70)
    assert len(run.trainer.waves) == 1
    assert set(sizes) == {3}


def test_short_of_memory_with_rows_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "FEW", 2)
    whole, short = (InMemory(spec()) for _ in range(2))
    whole.steps(70)
    real = Stepper.run

    def run_out(self: Stepper, *args: Any) -> torch.Tensor:
        if len(self.rows) == 3:
            raise torch.OutOfMemoryError("a few bytes short")
        return real(self, *args)

    monkeypatch.setattr(Stepper, "run", run_out)
    held: list[tuple[int, BaseException | None]] = []
    build = Trainer._build

    def look(self: Trainer, waves: Any) -> None:
        held.append((len(self.steppers), sys.exception()))
        build(self, waves)

    monkeypatch.setattr(Trainer, "_build", look)
    short.steps(70)
    assert len(held) > 1
    assert set(held) == {(0, None)}, "new waves are built while the old ones hold their memory"
    assert successes(short.lines[0]) == successes(whole.lines[0])
    for seed in SEEDS:
        assert short.events(seed) == whole.events(seed)


def test_a_probe_is_of_the_rows_that_are_stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a seed at rest nothing is tested, and of the others the same is found as with all rows."""
    tested: list[int] = []
    real = fleet.evaluate_stack

    def note(model: Any, seeds: int, *args: Any, **options: Any) -> list[list[Any]]:
        rows = real(model, seeds, *args, **options)
        run_all = trainer_module.tester(among.trainer.rows.stack, among.trainers, range(len(SEEDS)))
        everyone = real(run_all, len(SEEDS), *args, **options)
        tested.append(seeds)
        assert rows == [everyone[row] for row in among.trainer.chosen]
        return rows

    monkeypatch.setattr(fleet, "evaluate_stack", note)
    among = InMemory(spec(DAT, "ema(0.5)"))
    among.steps(70)
    assert set(tested) == {6, 3}, "they went on as they were: this shows nothing"
    stopped = successes(among.lines[0])
    for seed in SEEDS:
        probes = [x["step"] for x in among.lines[0] if x["seed"] == seed and "probe" in x]
        assert probes == list(range(5, stopped.get(seed, 70) + 1, 5))


def test_a_run_that_is_over_makes_the_others_faster(tmp_path: Path, sizes: list[int]) -> None:
    runs = [spec(seeds=(0, 1, 2), stop="never", steps=20), spec(seeds=(0, 1), stop="never")]
    folders = [tmp_path / str(i) for i in range(2)]
    for run, folder in zip(runs, folders, strict=True):
        create(run, folder)
    told: list[float] = []
    assert train_runs(folders, CPU, lambda _, p: told.append(p.seconds_left))[0]
    assert sizes == [5] * 4 + [2] * 10
    assert all(left >= 0 for left in told)
    assert [max(x["step"] for x in read_metrics(f)) for f in folders] == [20, 70]


def test_a_fleet_that_nobody_left_is_whole() -> None:
    run = InMemory(spec(stop="never")).steps(20)
    assert not run.trainer.compact
    (stepper,) = run.trainer.steppers
    assert stepper.rows is run.trainer.rows
    assert isinstance(run.fleet, Trainer)
