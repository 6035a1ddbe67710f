"""More seeds than fit are stepped in waves, and no seed can tell."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

import outlast.train.waves as memory
from outlast.cli import main
from outlast.errors import TrainingError
from outlast.machine import memory_left
from outlast.tasks.parity import Parity
from outlast.train.step import Stepper
from outlast.train.waves import even, free_memory
from outlast.workflow.train import train_runs
from tiny_runs import CPU, InMemory, assert_same_run, assert_seed_is, create, resume, tiny

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
    waves = even(rows, most)
    assert sorted(w.stop - w.start for w in waves) == sorted(sizes)
    assert [r for w in waves for r in range(rows)[w]] == list(range(rows))


@functools.cache
def alone(methods: tuple[str, ...], seed: int, lr: float) -> InMemory:
    """Trained once, whatever it is held against."""
    run = tiny(*methods, seeds=(seed,), lr=lr, steps_per_block=3, probe_every=0, checkpoint_every=3)
    return InMemory(run).steps(18)


@pytest.mark.parametrize("together", [1, 2, 3])
def test_a_seed_in_a_wave_is_the_seed_alone(together: int) -> None:
    """Waves cut across the runs as well."""
    first = tiny(
        *METHODS,
        seeds=(3, 0, 7),
        steps_per_block=3,
        probe_every=0,
        checkpoint_every=3,
        seeds_at_once=together,
    )
    second = tiny(seeds=(0, 1), lr=4e-3, steps_per_block=3, probe_every=0, checkpoint_every=3)
    among = InMemory(first, second)
    words = among.trainer.fit()
    assert len(among.trainer.waves) == -(-5 // together)
    assert words == f"5 seeds in {-(-5 // together)} waves of {together} at most (as told)"
    among.steps(18)
    for index, run in enumerate((first, second)):
        for seed in run.seeds:
            assert_seed_is(among, alone(run.methods, seed, run.settings.lr), seed, index)


def test_a_dry_step_changes_nothing_and_grows_with_the_seeds() -> None:
    used = {}
    for seeds in (1, 2, 4):
        run = InMemory(tiny(seeds=tuple(range(seeds))))
        before = run.trainer.rows.copy()
        data = run.trainer.data(0, run.trainer.conductor.plan(0, 1))
        step = data.map(lambda page: page[0])
        used[seeds] = memory.dry_step(run.trainer.rows, step, 3, False)
        for one, other in zip(run.trainer.rows.copy(), before, strict=True):
            assert torch.equal(one, other)
    assert used[1] > 1000
    assert used[2] == pytest.approx(2 * used[1], rel=0.05)
    assert used[4] == pytest.approx(4 * used[1], rel=0.05)


def test_longer_sequences_and_larger_batches_take_more() -> None:
    def used(**other: Any) -> float:
        run = InMemory(tiny(seeds=(0,), **other))
        data = run.trainer.data(0, run.trainer.conductor.plan(0, 1))
        step = data.map(lambda page: page[0])
        return memory.dry_step(run.trainer.rows, step, len(run.trainer.task.parts), False)

    assert used(batch_size=16) > 1.5 * used(batch_size=8)
    longer = "composite(modulus=2, keys=32, queries=2, length=16)"
    assert used(task=longer) > 1.3 * used()


def test_where_memory_is_short_it_is_waves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tiny(*METHODS, seeds=(0, 1, 2, 3, 4), steps=20, probe_every=0)
    said: list[str] = []
    create(run, tmp_path / "much")
    assert train_runs([tmp_path / "much"], CPU, say=said.append)[0]
    assert said[0].startswith("5 seeds at once (about ")
    assert "MiB a seed, " in said[0]
    # eight gigabytes, of which half may be used, and a gigabyte and a bit for each of five seeds
    monkeypatch.setattr(memory, "free_memory", lambda _: 8 * memory.GIB)
    monkeypatch.setattr(memory, "dry_step", lambda *_: 5 * 1.3 * memory.GIB)
    create(run, tmp_path / "little")
    assert train_runs([tmp_path / "little"], CPU, say=said.append)[0]
    assert said[1] == "5 seeds in 2 waves of 3 at most (about 1.3 GiB a seed, 4 GiB to use)"
    train_runs([tmp_path / "little"], CPU, say=said.append)
    assert len(said) == 2  # nothing left to train, nothing to say

    out = tmp_path / "cli"
    create(run, out)
    assert main(["resume", str(out), "--device", "cpu"]) == 0
    assert "5 seeds in 2 waves of 3 at most" in capsys.readouterr().out

    command = ["train", "--task", "parity(length=4)", "--model", "lstm @ 8", "--seeds", "0-4"]
    command += ["--steps", "20", "--batch-size", "4", "--out", str(tmp_path / "train")]
    assert main([*command, "--device", "cpu"]) == 0
    lines = [x for x in capsys.readouterr().out.splitlines() if " at most (" in x]
    assert lines == ["5 seeds in 2 waves of 3 at most (about 1.3 GiB a seed, 4 GiB to use)"]


def test_tables_that_cannot_fit_are_an_error_before_any_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At what is free and not at what would be used, and before a dry step."""
    run = tiny(*METHODS, seeds=(0, 1, 2, 3, 4), steps=20, probe_every=0, steps_per_block=10)
    fleet = InMemory(run).trainer
    settings, task = run.settings, fleet.task
    tokens = settings.block * 5 * settings.batch * task.tokens(task.lengths[1])
    copy, data = sum(table.nbytes for table in fleet.rows.tables()), (8 + 8 + 1) * tokens
    just = copy + data
    monkeypatch.setattr(memory, "free_memory", lambda _: just)
    assert fleet.fit().startswith("5 seeds in 5 waves of 1 at most (about ")
    assert fleet.fit(share=0.01).startswith("5 seeds in 5 waves of 1 at most (about ")

    monkeypatch.setattr(memory, "free_memory", lambda _: just / 2)
    monkeypatch.setattr(memory, "dry_step", lambda *_: pytest.fail("it is not needed"))
    with pytest.raises(TrainingError) as refused:
        fleet.fit()
    needed, copied, made, there = (f"{n / memory.GIB:.3g}" for n in (just, copy, data, just / 2))
    assert str(refused.value) == (
        f"5 seeds in one run take {needed} GiB beside their weights and moments: {copied} for a "
        f"copy of these, {made} for the data of a block. cpu has {there} GiB free. Train fewer "
        f"seeds in one run, or with a smaller batch or block; seeds_at_once=1 tries all the same."
    )
    monkeypatch.setattr(memory, "free_memory", lambda _: just - 1)
    with pytest.raises(TrainingError, match="Train fewer seeds"):
        fleet.fit()

    out = tmp_path / "refused"
    create(run, out)
    assert main(["resume", str(out), "--device", "cpu"]) == 2
    assert "error: 5 seeds in one run take" in capsys.readouterr().err


def test_data_that_cannot_fit_are_an_error_before_any_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new run has no folder by then; one that came from elsewhere stays as it is."""
    sample = Parity.sample

    def little(self: Parity, length: Any, batch: int, generator: Any) -> Any:
        assert batch < 1000, "nothing is to be drawn but for the levels of chance"
        return sample(self, length, batch, generator)

    monkeypatch.setattr(Parity, "sample", little)
    monkeypatch.setattr(memory, "free_memory", lambda _: 16.0 * memory.GIB)
    command = ["train", "--task", "parity(length=4)", "--model", "lstm @ 8", "--device", "cpu"]
    command += ["--seeds", "0-2", "--steps-per-block", "50", "--batch-size", "99999999", "--out"]
    assert main([*command, str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err
    assert (
        "error: batch_size=99999999: expected one whose data fit into the 16 GiB that cpu" in told
    )
    assert "a block of 50 steps of 3 seeds takes 1.19e+03 GiB" in told
    assert not list(tmp_path.iterdir())

    run = tiny(task="parity(length=4)", batch_size=10**8)
    with monkeypatch.context() as patch:
        patch.setattr(memory, "free_memory", lambda _: 1e15)
        create(run, tmp_path / "there")
    with pytest.raises(TrainingError, match=r"for the data of a block. cpu has 16 GiB free"):
        resume(tmp_path / "there")


def test_who_says_how_many_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda _: 0.0)
    fleet = InMemory(tiny(seeds=(0, 1, 2), seeds_at_once=2)).trainer
    assert fleet.fit() == "3 seeds in 2 waves of 2 at most (as told)"


def test_a_dry_step_that_does_not_fit_is_made_of_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one if it must be; where that does not fit either, no wave would."""
    fleet = InMemory(tiny(seeds=tuple(range(12)), probe_every=0)).trainer
    tried: list[tuple[int, int]] = []
    fits = 3

    def measured(rows: Any, data: Any, *_: Any) -> float:
        tried.append((len(rows), len(data.inputs)))
        if len(rows) > fits:
            raise torch.OutOfMemoryError("Tried to allocate 7.00 GiB.")
        return len(rows) * 2.0 * memory.GIB

    monkeypatch.setattr(memory, "dry_step", measured)
    monkeypatch.setattr(memory, "free_memory", lambda _: 13.0 * memory.GIB)
    assert fleet.fit() == "12 seeds in 4 waves of 3 at most (about 2 GiB a seed, 6.5 GiB to use)"
    assert tried == [(8, 8), (4, 4), (2, 2)]
    fits = 0
    with pytest.raises(
        TrainingError, match=r"one seed .* smaller batch.*Tried to allocate 7\S+ GiB"
    ):
        fleet.fit()


def test_tables_that_cannot_be_made_are_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise torch.OutOfMemoryError("Tried to allocate 70.00 GiB.")

    monkeypatch.setattr("outlast.train.rows.AdamW", never)
    with pytest.raises(TrainingError, match=r"of 3 seeds in one run do not fit .* 70\S+ GiB"):
        InMemory(tiny(seeds=(0, 1, 2)))


def test_memory_that_turns_out_short_halves_the_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a block: what the first waves did is taken back and done again."""
    run = tiny(*METHODS, seeds=(0, 1, 2, 3, 4), probe_every=0, seeds_at_once=3)
    whole, short = (InMemory(run) for _ in range(2))
    whole.trainer.set_waves(memory.even(5, 1))
    whole.steps(20)
    short.trainer.fit()
    assert len(short.trainer.waves) == 2
    real = Stepper.run

    def run_out(self: Stepper, *args: Any) -> torch.Tensor:
        if len(self.rows) > 2 and self.seeds.model.seeds[0] > 0:
            raise torch.OutOfMemoryError("a few bytes short")
        return real(self, *args)

    monkeypatch.setattr(Stepper, "run", run_out)
    short.steps(20)
    assert len(short.trainer.waves) == 5
    for one, other in zip(short.trainer.rows.copy(), whole.trainer.rows.copy(), strict=True):
        assert torch.equal(one, other)

    def never(*_: Any) -> None:
        raise torch.OutOfMemoryError("far short")

    monkeypatch.setattr(Stepper, "run", never)
    with pytest.raises(torch.OutOfMemoryError, match="far short"):
        short.steps(30)


def test_waves_stopped_and_gone_on_are_bit_for_bit(tmp_path: Path) -> None:
    from outlast.train.session import canonical

    from outlast.train.trainer import Trainer

    run = tiny(*METHODS, seeds=(0, 1, 2), seeds_at_once=2, steps=40)
    for name in ("whole", "parts"):
        create(run, tmp_path / name)
    assert resume(tmp_path / "whole")
    fleet = Trainer([(canonical(run), tmp_path / "parts")], CPU)
    fleet.fit()
    assert not fleet.train(stop=lambda: fleet.trainers[0].step >= 20)
    assert resume(tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


# ---- on a GPU ----------------------------------------------------------------------------------


class Card:
    """What torch tells of a card's memory, of which 10 bytes are in use and as many idle."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used, self.peak, self.works = 10, 10, 0
        for name, value in (
            ("synchronize", lambda _: None),
            ("memory_allocated", lambda _: self.used),
            ("memory_reserved", lambda _: self.used + 10),
            ("max_memory_allocated", lambda _: self.peak),
            ("reset_peak_memory_stats", lambda _: setattr(self, "peak", self.used)),
            ("mem_get_info", lambda _: (70, 100)),
        ):
            monkeypatch.setattr(torch.cuda, name, value)

    def work(self) -> None:
        """Takes 30 bytes for a while; the first time 5 that stay, such as a library's, and more."""
        self.works += 1
        self.used += 5 * (self.works == 1)
        self.peak = max(self.peak, self.used + (500 if self.works == 1 else 30))


def test_a_step_on_a_gpu_takes_what_the_allocator_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a step, and not of what is made but once before the first."""
    card = Card(monkeypatch)
    assert memory._peak(card.work, torch.device("cuda")) == 30
    assert card.works == 2


def test_memory_that_torch_holds_idle_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    Card(monkeypatch)
    assert free_memory(torch.device("cuda")) == 80


def test_what_was_measured_decides_the_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dry step has some of the seeds, at the longest length; the share of others is theirs."""
    run = InMemory(tiny(seeds=tuple(range(12)), probe_every=0))
    seen: list[tuple[int, ...]] = []

    def measured(rows: Any, data: Any, *_: Any) -> float:
        seen.append((len(rows), *data.inputs.shape))
        return 8 * 1.0 * memory.GIB

    monkeypatch.setattr(memory, "dry_step", measured)
    monkeypatch.setattr(memory, "free_memory", lambda _: 13.0 * memory.GIB)
    assert (
        run.trainer.fit() == "12 seeds in 2 waves of 6 at most (about 1 GiB a seed, 6.5 GiB to use)"
    )
    assert seen == [(8, 8, 8, run.trainer.task.tokens(4))]
    words = run.trainer.fit(share=0.5)
    assert words == "12 seeds in 4 waves of 3 at most (about 1 GiB a seed, 3.25 GiB to use)"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_dry_step_on_a_gpu_measures_bytes() -> None:
    from outlast.train.session import canonical

    from outlast.train.trainer import Trainer

    used = {}
    for seeds in (2, 8):
        run = canonical(tiny(seeds=tuple(range(seeds)), batch_size=64))
        fleet = Trainer([(run, Path("nowhere"))], torch.device("cuda"))
        words = fleet.fit()
        assert words.startswith(f"{seeds} seeds at once (about ")
        data = fleet.trainers[0].data(0, fleet.trainers[0].conductor.plan(0, 1))
        step = data.map(lambda page: page[0])
        used[seeds] = memory.dry_step(fleet.rows, step, 3, False)
    assert used[2] > 10_000
    assert 2 * used[2] < used[8] < 8 * used[2]


def test_free_memory_is_a_sensible_number() -> None:
    assert 2**20 < free_memory(CPU) < 2**50


def test_on_linux_caches_are_free_and_a_container_has_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "SYSTEM", tmp_path)
    monkeypatch.setattr(memory, "CONTAINER", tmp_path)
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemFree: 10 kB\nMemAvailable: 600 kB\n")
    assert free_memory(CPU) == 600 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(CPU) == 600 * 1024
    (tmp_path / "memory.max").write_text("500000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    (tmp_path / "memory.stat").write_text("anon 300000\ninactive_file 60000\nactive_file 1\n")
    assert free_memory(CPU) == 160000
    (tmp_path / "meminfo").unlink()
    (tmp_path / "memory.max").unlink()
    assert 2**20 < free_memory(CPU) < 2**50


def test_every_group_that_a_process_is_in_has_its_limit(tmp_path: Path) -> None:
    """In both versions: its own, those above it, and no other."""
    system, container = tmp_path / "proc", tmp_path / "cgroup"

    def left(*lines: str) -> float | None:
        (system / "self").mkdir(parents=True, exist_ok=True)
        (system / "self" / "cgroup").write_text("\n".join(lines) + "\n")
        return memory_left(system, container)

    def group(path: str, names: str, *values: object) -> None:
        (container / path).mkdir(parents=True, exist_ok=True)
        for name, value in zip(names.split(), values, strict=True):
            (container / path / f"memory.{name}").write_text(f"{value}\n")

    assert memory_left(system, container) is None
    new, old = "max current stat", "limit_in_bytes usage_in_bytes stat"
    group("jobs", new, 9000, 5000, "anon 1\ninactive_file 500")
    group("jobs/one", new, "max", 100, "inactive_file 0")
    group("jobs/one/step", new, 8000, 100, "inactive_file 0")
    group("jobs/other", new, 10, 10, "inactive_file 0")
    group("jobsworth", new, 10, 10, "inactive_file 0")
    assert left("0::/jobs/one/step") == 4500
    assert left("1:name=systemd:/jobs/other", "0::/jobs/one") == 4500
    assert left("0::/elsewhere") is None  # a group that is not shown here
    assert left("nonsense") is None
    stat = "inactive_file 7\ntotal_inactive_file 300"
    group("memory", old, 2**63 - 4096, 0, "total_inactive_file 0")
    group("memory/box", old, 4000, 1000, stat)
    group("memory/box/in", old, 5000, 2500, stat)
    lines = ["4:cpu,memory:/box/in", "3:devices:/jobs"]
    assert left(*lines, "0::/") == 2800
    assert left(*lines, "0::/jobs") == 2800
    group("memory/box/in", old, 500, 2500, stat)
    assert left(*lines) == 0
