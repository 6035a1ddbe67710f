"""Dropout and drawn positions in training: a seed's own, the same again on resume, off in tests."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from outlast.errors import OutlastError, SpecError
from outlast.mixers.chance import fixed_positions
from outlast.registry import tasks
from outlast.train.plan import Plan
from outlast.train.seeds import StackedModel
from outlast.workflow.evaluate import evaluate_run
from outlast.workflow.load import load, open_run
from tiny_runs import (
    CPU,
    TASK,
    InMemory,
    assert_same_run,
    assert_seed_is,
    create,
    resume,
    tiny,
    trained,
)

SEEDS = (3, 0, 7)
DRAWN = "random_positions(range=64)"
ROPE = "lstm > attention(rope, heads=2) > mlp @ 16, head=2"
DROPS = (
    "attention(tra, heads=2, dropout=0.1) > glu(dropout=0.1) > mlp(dropout=0.2) @ 16, dropout=0.1"
)
#: methods and a model for each way in which chance enters
CASES: dict[str, tuple[tuple[str, ...], str]] = {
    "rope": ((DRAWN,), ROPE),
    "alibi": ((DRAWN, "curriculum(from=2, by=loss, level=0.85)"), ROPE.replace("rope", "alibi")),
    "t5 and learned": (
        (DRAWN,),
        "attention(t5, heads=2) > attention(learned(ceiling=64), heads=2) @ 16",
    ),
    "xpos and sinusoidal": (
        (DRAWN,),
        "attention(xpos, heads=2) > attention(sinusoidal, heads=2) @ 16",
    ),
    "dropout": ((), DROPS),
    "both, attention late": (
        (DRAWN, "dat(switch=9)"),
        "lstm > attention(kerple, heads=2, dropout=0.1) > mlp(dropout=0.1) @ 16",
    ),
}
every = pytest.mark.parametrize(("specs", "model"), CASES.values(), ids=CASES.keys())


def in_memory(*specs: str, seeds: tuple[int, ...], model: str) -> InMemory:
    run = tiny(
        *specs, seeds=seeds, model=model, steps_per_block=3, probe_every=0, checkpoint_every=3
    )
    return InMemory(run)


@every
def test_a_seed_among_others_is_the_seed_alone(specs: tuple[str, ...], model: str) -> None:
    among = in_memory(*specs, seeds=SEEDS, model=model).steps(18)
    for seed in SEEDS:
        alone = in_memory(*specs, seeds=(seed,), model=model).steps(18)
        assert_seed_is(among, alone, seed)


@every
def test_killed_and_resumed_is_the_run_that_was_not(
    specs: tuple[str, ...], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny(*specs, model=model, steps=24, steps_per_block=3, probe_every=6, checkpoint_every=6)
    whole = trained(run, tmp_path / "whole")
    create(run, tmp_path / "killed")
    with monkeypatch.context() as patch:
        from outlast.train.trainer import Trainer

        blocks, real = [], Trainer.block

        def block(fleet: Trainer) -> Any:
            if len(blocks) == 5:
                raise KeyboardInterrupt
            blocks.append(1)
            return real(fleet)

        patch.setattr(Trainer, "block", block)
        with pytest.raises(KeyboardInterrupt):
            resume(tmp_path / "killed")
    assert resume(tmp_path / "killed")
    assert_same_run(whole, tmp_path / "killed")


def test_what_chance_does_is_done() -> None:
    """Else the cases above would show nothing."""
    plain = in_memory(seeds=(0,), model=ROPE).steps(10)
    drawn = in_memory(DRAWN, seeds=(0,), model=ROPE).steps(10)
    assert plain.losses(0) != drawn.losses(0)
    still = in_memory(seeds=(0,), model=DROPS.replace("=0.1", "=0").replace("=0.2", "=0")).steps(10)
    assert still.losses(0) != in_memory(seeds=(0,), model=DROPS).steps(10).losses(0)


def test_positions_are_new_for_each_seed_and_step_and_do_not_hang_on_lengths() -> None:
    trainer = in_memory(DRAWN, seeds=SEEDS, model=ROPE).trainer
    plan = trainer.conductor.plan(0, 5)
    tokens = trainer.task.tokens(trainer.task.lengths[1])
    assert plan.positions.shape == (5, 3, tokens)
    assert len(plan.positions.flatten(0, 1).unique(dim=0)) == 15
    assert (plan.positions.diff(dim=-1) > 0).all()
    assert plan.positions.max() < 64
    shorter = in_memory(DRAWN, "curriculum(from=2)", seeds=SEEDS, model=ROPE).trainer
    assert torch.equal(shorter.conductor.plan(0, 5).positions, plan.positions)
    later = trainer.conductor.plan(2, 5)
    assert torch.equal(later.positions, plan.positions[2:])  # whatever the block


def test_runs_with_and_without_train_as_one() -> None:
    runs = [
        tiny(*specs, seeds=seeds, model=ROPE, steps_per_block=3, probe_every=0, checkpoint_every=3)
        for specs, seeds in (((DRAWN,), (0, 1)), ((), (0, 1)), (("random_positions",), (2,)))
    ]
    together = InMemory(*runs).steps(12)
    for index, run in enumerate(runs):
        alone = InMemory(run).steps(12)
        for seed in run.seeds:
            assert_seed_is(together, alone, seed, index)


def test_without_the_method_no_positions_travel() -> None:
    trainer = in_memory(seeds=SEEDS, model=ROPE).trainer
    assert trainer.conductor.plan(0, 5).positions.shape == (5, 3, 0)
    both = Plan.join([trainer.conductor.plan(0, 5)] * 2)
    assert both.positions.shape == (5, 6, 0)


def test_a_test_has_fixed_positions_and_drops_nothing(tmp_path: Path) -> None:
    model = ROPE.replace("heads=2", "heads=2, dropout=0.2")
    folder = trained(tiny(DRAWN, model=model, steps=20), tmp_path / "run")
    rows = evaluate_run(folder, (1, 3), 64)
    assert rows == evaluate_run(folder, (1, 3), 64)
    task = tasks.build(TASK)
    inputs = task.sample(4, 8, torch.Generator().manual_seed(0)).inputs
    with torch.no_grad():
        together = open_run(folder, CPU).tester()(inputs)
        for row, seed in enumerate((0, 1)):
            one = load(folder, seed)
            assert one.span == 64
            torch.testing.assert_close(one(inputs)[0], together[row], rtol=1e-5, atol=1e-5)
            positions = fixed_positions(inputs.shape[1], 64, CPU)
            torch.testing.assert_close(one(inputs, positions=positions)[0], one(inputs)[0])
            one.span = 0
            assert not torch.allclose(one(inputs)[0], together[row], atol=1e-4)
        model = load(folder, 0)
        _, state = model(inputs)
        with pytest.raises(OutlastError, match="give positions= to go on"):
            model(inputs, state)


def test_a_range_too_short_for_training_or_too_long_for_the_model(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="range=3: expected at least the 11 tokens trained on"):
        begin(tiny("random_positions(range=3)", model=ROPE), tmp_path / "short", CPU)
    model = "attention(learned(ceiling=32), heads=2) @ 16"
    with pytest.raises(SpecError, match=r"range=64: expected at most 32, .*raise its ceiling"):
        create(tiny(DRAWN, model=model), tmp_path / "long")


def test_a_model_that_asks_for_no_position_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        create(tiny(DRAWN, model=ROPE), tmp_path / "rope")
        assert not caplog.records
        create(tiny(DRAWN), tmp_path / "nope")
    assert "random_positions: nothing in this model asks where a token stands" in caplog.text


@pytest.mark.gpu
def test_a_gpu_draws_what_the_cpu_draws() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    task = tasks.build(TASK)
    model = ROPE.replace("heads=2", "heads=2, dropout=0.2") + ", dropout=0.2"
    tokens = task.sample(4, 8, torch.Generator().manual_seed(0)).inputs.repeat(2, 1, 1)
    found = []
    for device in (CPU, torch.device("cuda")):
        keys = torch.tensor([5, 6], device=device)
        positions = torch.stack([fixed_positions(tokens.shape[-1], n, device) for n in (64, 100)])
        stack = StackedModel(model, task, (0, 1), device)
        found.append(stack.run(tokens.to(device), positions=positions, keys=keys).cpu())
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)
