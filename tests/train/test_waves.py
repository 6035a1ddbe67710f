"""More seeds than fit in memory are stepped in waves, and no seed can tell."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import outlast.train.seeds as seeds_module
import outlast.train.waves as waves_module
from outlast.cli import main
from outlast.errors import TrainingError
from outlast.tasks.parity import Parity
from outlast.train.step import Stepper
from outlast.train.trainer import Trainer
from outlast.train.waves import GIB, dry_step, split_evenly
from outlast.workflow.create import canonical
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


@pytest.fixture
def set_free(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets how much memory is free, in bytes."""
    return lambda size: monkeypatch.setattr(waves_module, "free_memory", lambda _: size)


def dry_step_bytes(trainer: Trainer) -> float:
    """Of a step of the first run's own data."""
    run = trainer.runs[0]
    data = run.data(0, run.methods.plan(0, 1))
    return dry_step(trainer.seeds, data.map(lambda page: page[0]), False)


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
    assert among.trainer.fit() == words
    assert len(among.trainer.stepper.waves) == count
    among.steps(18)
    for index, run in enumerate((first, second)):
        for seed in run.seeds:
            assert_seed_is(among, alone(run.methods, seed, run.settings.lr), seed, index)


def test_dry_step_changes_nothing_and_grows_with_the_seeds() -> None:
    sizes = {}
    for seeds in (1, 2, 4):
        trainer = InMemory(tiny(seeds=tuple(range(seeds)))).trainer
        before = trainer.seeds.read()
        sizes[seeds] = dry_step_bytes(trainer)
        for table, values in zip(trainer.seeds.read(), before, strict=True):
            assert torch.equal(table, values)
    assert sizes[1] > 1000
    assert sizes[2] == pytest.approx(2 * sizes[1], rel=0.05)
    assert sizes[4] == pytest.approx(4 * sizes[1], rel=0.05)


def test_dry_step_grows_with_the_length_and_the_batch() -> None:
    def size(**changed: Any) -> float:
        return dry_step_bytes(InMemory(tiny(seeds=(0,), **changed)).trainer)

    assert size(batch_size=16) > 1.5 * size(batch_size=8)
    assert size(task="composite(modulus=2, keys=32, queries=2, length=16)") > 1.3 * size()


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
    monkeypatch.setattr(waves_module, "dry_step", lambda *_: 5 * 1.3 * GIB)
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


def test_tables_that_cannot_fit_are_an_error_before_any_training(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    set_free: Callable[[float], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """At what is free and not at what would be used, and before a dry step."""
    run = tiny(*METHODS, seeds=(0, 1, 2, 3, 4), steps=20, probe_every=0, steps_per_block=10)
    trainer = InMemory(run).trainer
    sequences = run.settings.steps_per_block * 5 * run.settings.batch_size
    copy = sum(table.nbytes for table in trainer.seeds.tables())
    data = (8 + 8 + 1) * sequences * trainer.task.tokens(trainer.task.lengths[1])
    needed = copy + data
    set_free(needed)
    for share in (1.0, 0.01):
        assert trainer.fit(share).startswith("5 seeds in 5 waves of 1 at most (about ")

    monkeypatch.setattr(waves_module, "dry_step", lambda *_: pytest.fail("it is not needed"))
    for free in (needed / 2, needed - 1):
        set_free(free)
        with pytest.raises(TrainingError) as refused:
            trainer.fit()
        sizes = [f"{size / GIB:.3g}" for size in (needed, copy, data, free)]
        assert str(refused.value) == (
            f"5 seeds in one run take {sizes[0]} GiB beside their weights and moments: {sizes[1]} "
            f"for a copy of these, {sizes[2]} for the data of a block. cpu has {sizes[3]} GiB "
            "free. Train fewer seeds in one run, or with a smaller batch_size or steps_per_block; "
            "seeds_at_once=1 tries all the same."
        )

    assert main(["resume", str(create(run, tmp_path / "run")), "--device", "cpu"]) == 2
    assert "error: 5 seeds in one run take" in capsys.readouterr().err


def test_data_that_cannot_fit_are_an_error_before_any_are_drawn(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    set_free: Callable[[float], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A new run has no folder by then; one that came from elsewhere stays as it is."""
    sample = Parity.sample

    def sample_little(self: Parity, length: Any, batch: int, generator: Any) -> Any:
        assert batch < 1000, "nothing is to be drawn but for the levels of chance"
        return sample(self, length, batch, generator)

    monkeypatch.setattr(Parity, "sample", sample_little)
    set_free(16.0 * GIB)
    command = ["train", "--task", "parity(length=4)", "--model", "lstm @ 8", "--device", "cpu"]
    command += ["--seeds", "0-2", "--steps-per-block", "50", "--batch-size", "99999999", "--out"]
    assert main([*command, str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "error: batch_size=99999999: expected one whose data fit into the 16 GiB that" in error
    assert "a block of 50 steps of 3 seeds takes 1.19e+03 GiB" in error
    assert not list(tmp_path.iterdir())

    set_free(1e15)
    folder = create(tiny(task="parity(length=4)", batch_size=10**8), tmp_path / "from elsewhere")
    set_free(16.0 * GIB)
    with pytest.raises(TrainingError, match=r"for the data of a block. cpu has 16 GiB free"):
        resume(folder)


def test_seeds_at_once_is_obeyed_whatever_is_free(set_free: Callable[[float], None]) -> None:
    set_free(0.0)
    trainer = InMemory(tiny(seeds=(0, 1, 2), seeds_at_once=2)).trainer
    assert trainer.fit() == "3 seeds in 2 waves of 2 at most (as set)"


def test_dry_step_that_does_not_fit_is_made_of_fewer_seeds(
    monkeypatch: pytest.MonkeyPatch, set_free: Callable[[float], None]
) -> None:
    """Of one if it must be; where that does not fit either, no wave would."""
    trainer = InMemory(tiny(seeds=tuple(range(12)), probe_every=0)).trainer
    tried: list[tuple[int, int]] = []
    most = 3

    def measure(seeds: Any, data: Any, *_: Any) -> float:
        tried.append((len(seeds), len(data.inputs)))
        if len(seeds) > most:
            raise torch.OutOfMemoryError("Tried to allocate 7.00 GiB.")
        return len(seeds) * 2.0 * GIB

    monkeypatch.setattr(waves_module, "dry_step", measure)
    set_free(13.0 * GIB)
    assert trainer.fit() == "12 seeds in 4 waves of 3 at most (about 2 GiB a seed, 6.5 GiB to use)"
    assert tried == [(8, 8), (4, 4), (2, 2)]
    most = 0
    with pytest.raises(
        TrainingError, match=r"one seed .* smaller batch.*Tried to allocate 7\S+ GiB"
    ):
        trainer.fit()


def test_measured_bytes_and_share_decide_the_waves(
    monkeypatch: pytest.MonkeyPatch, set_free: Callable[[float], None]
) -> None:
    """The dry step has some of the seeds, at the longest length."""
    trainer = InMemory(tiny(seeds=tuple(range(12)), probe_every=0)).trainer
    shapes: list[tuple[int, ...]] = []

    def measure(seeds: Any, data: Any, *_: Any) -> float:
        shapes.append((len(seeds), *data.inputs.shape))
        return 8 * 1.0 * GIB

    monkeypatch.setattr(waves_module, "dry_step", measure)
    set_free(13.0 * GIB)
    for share, words in ((1.0, "2 waves of 6"), (0.5, "4 waves of 3")):
        room = f"(about 1 GiB a seed, {6.5 * share} GiB to use)"
        assert trainer.fit(share) == f"12 seeds in {words} at most {room}"
    assert shapes == [(8, 8, 8, trainer.task.tokens(4))] * 2


def test_weights_that_cannot_be_allocated_are_a_clear_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = torch.OutOfMemoryError("Tried to allocate 70.00 GiB.")
    monkeypatch.setattr(seeds_module, "AdamW", fails(seeds_module.AdamW, 1, short))
    with pytest.raises(TrainingError, match=r"of 3 seeds in one run do not fit .* 70\S+ GiB"):
        InMemory(tiny(seeds=(0, 1, 2)))


def test_waves_are_halved_when_memory_turns_out_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a block: what the first waves did is taken back and done again."""
    run = tiny(*METHODS, seeds=(0, 1, 2, 3, 4), probe_every=0, seeds_at_once=3)
    whole, short = (InMemory(run) for _ in range(2))
    whole.trainer.stepper.set_waves(split_evenly(5, 1))
    whole.steps(20)
    short.trainer.fit()
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


# ---- on a GPU ----------------------------------------------------------------------------------


def test_gpu_memory_of_a_step_is_the_allocators_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a step, and not of what is allocated but once before the first."""
    used, peak, works = 10, 10, 0

    def reset(_: torch.device) -> None:
        nonlocal peak
        peak = used

    def work() -> None:
        """Takes 30 bytes for a while; the first time 5 that stay, such as a library's, and more."""
        nonlocal used, peak, works
        works += 1
        used += 5 * (works == 1)
        peak = max(peak, used + (500 if works == 1 else 30))

    for name, value in (
        ("synchronize", lambda _: None),
        ("memory_allocated", lambda _: used),
        ("max_memory_allocated", lambda _: peak),
        ("reset_peak_memory_stats", reset),
    ):
        monkeypatch.setattr(torch.cuda, name, value)
    assert waves_module._peak(work, torch.device("cuda")) == 30
    assert works == 2


@pytest.mark.gpu
def test_dry_step_on_a_gpu_measures_bytes() -> None:
    sizes = {}
    for seeds in (2, 8):
        run = canonical(tiny(seeds=tuple(range(seeds)), batch_size=64))
        trainer = Trainer([(run, Path("nowhere"))], torch.device("cuda"))
        assert trainer.fit().startswith(f"{seeds} seeds at once (about ")
        sizes[seeds] = dry_step_bytes(trainer)
    assert sizes[2] > 10_000
    assert 2 * sizes[2] < sizes[8] < 8 * sizes[2]
