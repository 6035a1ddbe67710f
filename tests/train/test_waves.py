"""More seeds than fit in memory are stepped in waves, and no seed can tell."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import outlast.train.memory as memory
from outlast.cli import main
from outlast.errors import TrainingError
from outlast.train.memory import GIB
from outlast.train.step import Stepper
from outlast.train.waves import split_evenly
from tiny_runs import (
    InMemory,
    Recorder,
    assert_same_run,
    assert_seed_is,
    create,
    fails,
    in_threes,
    resume,
    tiny,
    train_until,
    trained,
)

METHODS = ("dat(switch=below(0.82))", "ema(0.9)")


@pytest.mark.parametrize(
    ("rows", "most", "sizes"),
    [
        (1, 1, [1]),
        (8, 8, [8]),
        (8, 100, [8]),
        (8, 7, [4, 4]),
        (10, 4, [3, 4, 3]),
        (3, 0, [1, 1, 1]),
    ],
)
def test_waves_are_few_and_even(rows: int, most: int, sizes: list[int]) -> None:
    waves = split_evenly(rows, most)
    assert sorted(w.stop - w.start for w in waves) == sorted(sizes)
    assert [r for w in waves for r in range(rows)[w]] == list(range(rows))


@functools.cache
def alone(methods: tuple[str, ...], seed: int, lr: float) -> InMemory:
    """Trained once, whatever it is held against."""
    return InMemory(in_threes(*methods, seeds=(seed,), lr=lr)).steps(18)


@pytest.mark.parametrize("seeds_at_once", [1, 2, 3])
def test_seed_in_a_wave_is_the_seed_alone(seeds_at_once: int) -> None:
    """Waves cut across the runs as well."""
    first = in_threes(*METHODS, seeds=(3, 0, 7), seeds_at_once=seeds_at_once)
    second = in_threes(seeds=(0, 1), lr=4e-3)
    among, count = InMemory(first, second), -(-5 // seeds_at_once)
    words = f"5 seeds in {count} waves of {seeds_at_once} at most (as set)"
    assert among.trainer.choose_waves() == words
    assert len(among.trainer.stepper.waves) == count
    among.steps(18)
    for index, run in enumerate((first, second)):
        for seed in run.seeds:
            assert_seed_is(among, alone(run.methods, seed, run.settings.lr), seed, index)


def test_seeds_are_trained_in_waves_where_memory_is_short(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    set_free: Callable[[float], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, recorder = tiny(*METHODS, seeds=(0, 1, 2, 3, 4), steps=20, probe_every=0), Recorder()
    assert resume(create(run, tmp_path / "much"), recorder)
    assert recorder.words[0].startswith("5 seeds at once (about ")
    assert "MiB a seed, " in recorder.words[0]
    # eight gigabytes, of which half may be used, and a gigabyte and a bit for each of five seeds
    set_free(8 * GIB)
    monkeypatch.setattr(memory, "dry_step", lambda *_: 5 * 1.3 * GIB)
    words = "5 seeds in 2 waves of 3 at most (about 1.3 GiB a seed, 4 GiB to use)"
    assert resume(create(run, tmp_path / "little"), recorder)
    assert resume(tmp_path / "little", recorder)  # nothing left to train, nothing to say
    assert recorder.words[1:] == [words]

    out = create(run, tmp_path / "resumed")
    assert main(["resume", str(out), "--device", "cpu"]) == 0
    assert words in capsys.readouterr().out

    command = ["train", "--task", "parity(length=4)", "--model", "lstm @ 8", "--seeds", "0-4"]
    command += ["--steps", "20", "--batch-size", "4", "--out", str(tmp_path / "train")]
    assert main([*command, "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if " at most (" in line] == [words]


def test_seeds_at_once_is_obeyed_whatever_is_free(set_free: Callable[[float], None]) -> None:
    set_free(0.0)
    trainer = InMemory(tiny(seeds=(0, 1, 2), seeds_at_once=2)).trainer
    assert trainer.choose_waves() == "3 seeds in 2 waves of 2 at most (as set)"


def test_measured_bytes_and_share_decide_the_waves(
    monkeypatch: pytest.MonkeyPatch, set_free: Callable[[float], None]
) -> None:
    """The dry step has some of the seeds, at the longest length."""
    trainer = InMemory(tiny(seeds=tuple(range(12)), probe_every=0)).trainer
    shapes: list[tuple[int, ...]] = []

    def measure(seeds: Any, data: Any, *_: Any) -> float:
        shapes.append((len(seeds), *data.inputs.shape))
        return 8 * 1.0 * GIB

    monkeypatch.setattr(memory, "dry_step", measure)
    set_free(13.0 * GIB)
    for share, words in ((1.0, "2 waves of 6"), (0.5, "4 waves of 3")):
        room = f"(about 1 GiB a seed, {6.5 * share} GiB to use)"
        assert trainer.choose_waves(share) == f"12 seeds in {words} at most {room}"
    assert shapes == [(8, 8, 8, trainer.task.tokens(4))] * 2


def test_waves_are_halved_when_memory_turns_out_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a block: what the first waves did is taken back and done again."""
    run = tiny(*METHODS, seeds=(0, 1, 2, 3, 4), probe_every=0, seeds_at_once=3)
    whole, short = (InMemory(run) for _ in range(2))
    whole.trainer.stepper.set_waves(split_evenly(5, 1))
    whole.steps(20)
    short.trainer.choose_waves()
    assert len(short.trainer.stepper.waves) == 2
    real = Stepper.run

    def run_out(self: Stepper, *args: Any) -> torch.Tensor:
        if len(self.seeds) > 2 and self.seeds.model.seeds[0] > 0:
            raise torch.OutOfMemoryError("a few bytes short")
        return real(self, *args)

    monkeypatch.setattr(Stepper, "run", run_out)
    short.steps(20)
    assert len(short.trainer.stepper.waves) == 5
    for table, values in zip(short.trainer.seeds.read(), whole.trainer.seeds.read(), strict=True):
        assert torch.equal(table, values)

    monkeypatch.setattr(Stepper, "run", fails(real, 1, torch.OutOfMemoryError("far short")))
    with pytest.raises(TrainingError, match=r"even for one seed at a time.*\(far short\)"):
        short.steps(30)


def test_run_in_waves_resumes_bit_for_bit(tmp_path: Path) -> None:
    run = tiny(*METHODS, seeds=(0, 1, 2), seeds_at_once=2, steps=40)
    whole, stopped = trained(run, tmp_path / "whole"), create(run, tmp_path / "stopped")
    train_until(20, stopped)
    assert resume(stopped)
    assert_same_run(whole, stopped)
