"""What a step takes of memory: measured by a dry step, refused before training if it cannot fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import outlast.train.memory as memory
import outlast.train.seeds as seeds_module
from outlast.cli import main
from outlast.errors import TrainingError
from outlast.tasks.parity import Parity
from outlast.train.memory import GIB, dry_step
from outlast.train.trainer import Trainer
from outlast.workflow.create import canonical
from tiny_runs import InMemory, create, fails, resume, tiny


def dry_step_bytes(trainer: Trainer) -> float:
    """Of a step of the first run's own data."""
    run = trainer.runs[0]
    data = run.data(0, run.methods.plan(0, 1))
    return dry_step(trainer.seeds, data.map(lambda page: page[0]), False)


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


def test_tables_that_cannot_fit_are_an_error_before_any_training(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    set_free: Callable[[float], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """At what is free and not at what would be used, and before a dry step."""
    run = tiny("ema(0.9)", seeds=(0, 1, 2, 3, 4), steps=20, probe_every=0, steps_per_block=10)
    trainer = InMemory(run).trainer
    sequences = run.settings.steps_per_block * 5 * run.settings.batch_size
    copy = sum(table.nbytes for table in trainer.seeds.tables())
    data = (8 + 8 + 1) * sequences * trainer.task.tokens(trainer.task.lengths[1])
    needed = copy + data
    set_free(needed)
    for share in (1.0, 0.01):
        assert trainer.choose_waves(share).startswith("5 seeds in 5 waves of 1 at most (about ")

    monkeypatch.setattr(memory, "dry_step", lambda *_: pytest.fail("it is not needed"))
    for free in (needed / 2, needed - 1):
        set_free(free)
        with pytest.raises(TrainingError) as refused:
            trainer.choose_waves()
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

    monkeypatch.setattr(memory, "dry_step", measure)
    set_free(13.0 * GIB)
    assert (
        trainer.choose_waves()
        == "12 seeds in 4 waves of 3 at most (about 2 GiB a seed, 6.5 GiB to use)"
    )
    assert tried == [(8, 8), (4, 4), (2, 2)]
    most = 0
    with pytest.raises(
        TrainingError, match=r"one seed .* smaller batch.*Tried to allocate 7\S+ GiB"
    ):
        trainer.choose_waves()


def test_weights_that_cannot_be_allocated_are_a_clear_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = torch.OutOfMemoryError("Tried to allocate 70.00 GiB.")
    monkeypatch.setattr(seeds_module, "AdamW", fails(seeds_module.AdamW, 1, short))
    with pytest.raises(TrainingError, match=r"of 3 seeds in one run do not fit .* 70\S+ GiB"):
        InMemory(tiny(seeds=(0, 1, 2)))


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
    assert memory._peak(work, torch.device("cuda")) == 30
    assert works == 2


@pytest.mark.gpu
def test_dry_step_on_a_gpu_measures_bytes() -> None:
    sizes = {}
    for seeds in (2, 8):
        run = canonical(tiny(seeds=tuple(range(seeds)), batch_size=64))
        trainer = Trainer([(run, Path("nowhere"))], torch.device("cuda"))
        assert trainer.choose_waves().startswith(f"{seeds} seeds at once (about ")
        sizes[seeds] = dry_step_bytes(trainer)
    assert sizes[2] > 10_000
    assert 2 * sizes[2] < sizes[8] < 8 * sizes[2]


# ---- a card that others use too ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "total", "reserved", "others"),
    [(2, 80, 20, "58"), (0, 80, 0, "80"), (1, 141, 100, "40")],
)
def test_error_names_what_other_processes_hold(
    free: int, total: int, reserved: int, others: str
) -> None:
    text = memory.shared_card(free * GIB, total * GIB, reserved * GIB)
    assert text.startswith(f" Other processes hold {others} of the {total} GiB of this card, and")
    assert f"this one {reserved}: wait for them, or take another card" in text


@pytest.mark.parametrize(("free", "total", "reserved"), [(79.7, 80, 0), (2, 80, 77.7), (6.2, 8, 1)])
def test_card_that_is_ours_alone_is_not_called_shared(
    free: float, total: float, reserved: float
) -> None:
    """A context of CUDA, a part of a GiB, is ours too."""
    assert memory.shared_card(*(int(size * GIB) for size in (free, total, reserved))) == ""


def test_errors_of_memory_say_that_the_card_is_shared(
    set_free: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "other_processes", lambda _: " Others hold it.")
    set_free(1.0)
    with pytest.raises(TrainingError, match=r"tries all the same\. Others hold it\.$"):
        InMemory(tiny()).trainer.choose_waves()
