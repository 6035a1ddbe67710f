"""Rows at rest are left out of the step where enough of them are, and no seed can tell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import outlast.train.seeds as seeds_module
import outlast.train.trainer as trainer_module
from outlast.runs.checkpoint import load_state
from outlast.runs.folder import CHECKPOINT
from outlast.runs.records import read_metrics
from outlast.runs.spec import RunSpec
from outlast.train.seeds import rows_to_step
from outlast.train.step import Stepper
from outlast.train.waves import WaveStepper
from tiny_runs import (
    CPU,
    LATE_DAT,
    InMemory,
    Recorder,
    assert_each_seed_is_alone,
    assert_halted_is_whole,
    assert_same_run,
    break_rows,
    create_all,
    halt,
    probe_lines,
    stopping,
    successes,
    train_runs,
)

SEEDS = (5, 1, 3, 2, 4, 0)
AVERAGED = (LATE_DAT, "ema(0.5)")


def spec(*methods: str, **changed: Any) -> RunSpec:
    return stopping(*methods, **({"seeds": SEEDS} | changed))


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each wave of each block had."""
    sizes: list[int] = []
    real = Stepper.run

    def run(self: Stepper, *args: Any) -> torch.Tensor:
        sizes.append(len(self.seeds))
        return real(self, *args)

    monkeypatch.setattr(Stepper, "run", run)
    return sizes


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
def test_rows_to_step(rests: list[int], clock: int, chosen: tuple[int, ...]) -> None:
    assert rows_to_step(rests, clock) == chosen


def test_rows_to_step_do_not_depend_on_what_comes_later() -> None:
    """A run resumed beside one that is ahead of it knows more, and must choose the same."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        rests = torch.randint(1, 12, (9,), generator=generator).tolist()
        for clock in range(12):
            unknown = [12 if at > clock else at for at in rests]
            chosen = rows_to_step(rests, clock)
            assert chosen == rows_to_step(unknown, clock)
            assert {row for row, at in enumerate(rests) if at > clock} <= set(chosen)


# ---- that it saves, and changes nothing --------------------------------------------------------


@pytest.mark.parametrize("methods", [(LATE_DAT,), AVERAGED], ids=" + ".join)
def test_seed_among_resting_rows_is_the_seed_alone(
    methods: tuple[str, ...], sizes: list[int]
) -> None:
    among = assert_each_seed_is_alone(spec(*methods), 70, atol=2e-3)
    stepped = sizes[: among.run.step // 5]
    assert sorted(set(stepped)) == [3, 6], "no row was left out: this shows nothing"
    assert stepped == sorted(stepped, reverse=True)
    assert 1 < len(successes(among.lines[0])) < len(SEEDS)


def test_resting_rows_are_not_touched(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    together = InMemory(spec("ema(0.5)", seeds=(0, 1, 2, 3), stop="never", steps=60))
    break_rows(monkeypatch, {1: 7, 2: 12})
    together.steps(15)
    before = [table.clone() for table in together.trainer.seeds.tables()]
    assert sizes == [4, 4, 4]
    monkeypatch.undo()
    together.steps(60)
    assert together.run.parked == [None, 5, 10, None]
    for table, values in zip(together.trainer.seeds.tables(), before, strict=True):
        assert torch.equal(table[[1, 2]], values[[1, 2]])
        assert not torch.equal(table[[0, 3]], values[[0, 3]])
    assert together.trainer.stepper.chosen == (0, 3)


@pytest.mark.parametrize("seeds_at_once", [0, 4])
def test_halted_run_steps_the_same_rows_and_is_bit_for_bit_the_same(
    tmp_path: Path, sizes: list[int], seeds_at_once: int
) -> None:
    run = spec(*AVERAGED, checkpoint_every=5, seeds_at_once=seeds_at_once)
    assert_halted_is_whole(run, tmp_path, halts=14)
    whole, halted = sizes[: len(sizes) // 2], sizes[len(sizes) // 2 :]
    assert whole == halted
    assert len(set(whole)) == (1 if seeds_at_once else 2)


def test_halted_runs_together_step_the_same_rows_again(tmp_path: Path, sizes: list[int]) -> None:
    """One saves often and the other seldom, so the first waits for the second.

    Rows that rest now did not rest at the steps that are done again.
    """
    runs = [
        spec(seeds=SEEDS[:4], checkpoint_every=5),
        spec(*AVERAGED, seeds=(5, 1), checkpoint_every=35, steps=105),
        spec(seeds=(0,), stop="never", checkpoint_every=50, steps=120),
    ]
    whole, parts = (create_all(runs, tmp_path / side) for side in ("whole", "parts"))
    assert train_runs(whole, CPU).ended
    assert len(set(sizes)) > 1
    for saves in (7, 4, 3, 5):
        halt(*parts, saves=saves)
    steps = [load_state(folder).step for folder in parts if (folder / CHECKPOINT).exists()]
    assert len(set(steps)) > 1
    assert train_runs(parts, CPU).ended
    for one, other in zip(whole, parts, strict=True):
        assert_same_run(one, other)


def test_waves_are_cut_anew_when_rows_rest(sizes: list[int]) -> None:
    together = InMemory(spec(seeds_at_once=4))
    together.trainer.choose_waves()
    assert len(together.trainer.stepper.waves) == 2
    together.steps(70)
    assert len(together.trainer.stepper.waves) == 1
    assert set(sizes) == {3}


def test_memory_short_with_rows_left_out_frees_the_old_waves_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seeds_module, "FEW", 2)
    whole, short = (InMemory(spec()) for _ in range(2))
    whole.steps(70)
    real, build = Stepper.run, WaveStepper._build
    held: list[tuple[int, BaseException | None]] = []

    def run_out(self: Stepper, *args: Any) -> torch.Tensor:
        if len(self.seeds) == 3:
            raise torch.OutOfMemoryError("a few bytes short")
        return real(self, *args)

    def look(self: WaveStepper, waves: Any) -> None:
        held.append((len(self.steppers), sys.exception()))
        build(self, waves)

    monkeypatch.setattr(Stepper, "run", run_out)
    monkeypatch.setattr(WaveStepper, "_build", look)
    short.steps(70)
    assert len(held) > 1
    assert set(held) == {(0, None)}, "new waves are built while the old ones hold their memory"
    assert successes(short.lines[0]) == successes(whole.lines[0])
    for seed in SEEDS:
        assert short.events(seed) == whole.events(seed)


def test_probe_is_of_the_stepped_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tested of a seed at rest; of the others the same is found as with all rows."""
    tested: list[int] = []
    among, real = InMemory(spec(*AVERAGED)), trainer_module.evaluate_stack

    def note(predict: Any, seeds: int, *args: Any, **options: Any) -> list[list[Any]]:
        tables, trainer = real(predict, seeds, *args, **options), among.trainer
        controls = [among.run.control(row) for row in range(len(SEEDS))]
        predict_all = trainer.seeds.model.predictor(controls, among.run.test_weights())
        everyone = real(predict_all, len(SEEDS), *args, **options)
        tested.append(seeds)
        assert tables == [everyone[row] for row in trainer.stepper.chosen]
        return tables

    monkeypatch.setattr(trainer_module, "evaluate_stack", note)
    among.steps(70)
    assert set(tested) == {6, 3}, "no row was left out: this shows nothing"
    stopped = successes(among.lines[0])
    for seed in SEEDS:
        steps = [line.step for line in probe_lines(among.lines[0]) if line.seed == seed]
        assert steps == list(range(5, stopped.get(seed, 70) + 1, 5))


def test_run_that_is_over_leaves_fewer_rows_to_step(tmp_path: Path, sizes: list[int]) -> None:
    runs = [spec(seeds=(0, 1, 2), stop="never", steps=25), spec(seeds=(0, 1), stop="never")]
    folders, recorder = create_all(runs, tmp_path), Recorder()
    assert train_runs(folders, CPU, recorder).ended
    assert sizes == [5] * 5 + [2] * 9
    assert all(progress.seconds_left >= 0 for progress in recorder.progress)
    assert [max(x.step for x in read_metrics(folder)) for folder in folders] == [25, 70]


def test_without_resting_rows_all_are_stepped_in_place() -> None:
    trainer = InMemory(spec(stop="never")).steps(20).trainer
    assert not trainer.stepper.compact
    (stepper,) = trainer.stepper.steppers
    assert stepper.seeds is trainer.seeds
