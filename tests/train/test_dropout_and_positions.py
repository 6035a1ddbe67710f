"""Dropout and drawn positions: each seed's own, the same again on resume, off in evaluation."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from outlast.errors import OutlastError, SpecError
from outlast.mixers.randomness import fixed_positions
from outlast.registry import tasks
from outlast.train.plan import Plan
from outlast.train.seeds import StackedModel
from outlast.train.trainer import Trainer
from outlast.workflow.evaluate import Evaluation, evaluate_run
from outlast.workflow.load import load, open_run
from tiny_runs import (
    CPU,
    TASK,
    InMemory,
    Killed,
    assert_each_seed_is_alone,
    assert_same_run,
    assert_seed_is,
    create,
    fails,
    in_threes,
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


@every
def test_seed_among_others_is_the_seed_alone(specs: tuple[str, ...], model: str) -> None:
    assert_each_seed_is_alone(in_threes(*specs, seeds=SEEDS, model=model))


@every
def test_killed_run_resumes_bit_for_bit(
    specs: tuple[str, ...], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between two checkpoints: some blocks are done again."""
    run = in_threes(*specs, model=model, steps=24, probe_every=6, checkpoint_every=6)
    whole, killed = trained(run, tmp_path / "whole"), create(run, tmp_path / "killed")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "next_block", fails(Trainer.next_block, 6, Killed()))
        with pytest.raises(Killed):
            resume(killed)
    assert resume(killed)
    assert_same_run(whole, killed)


def test_chance_changes_what_is_learned() -> None:
    """Else the cases above would show nothing."""
    no_drops = DROPS.replace("=0.1", "=0").replace("=0.2", "=0")
    for without, methods, model in ((ROPE, (DRAWN,), ROPE), (no_drops, (), DROPS)):
        plain = InMemory(in_threes(seeds=(0,), model=without)).steps(10)
        changed = InMemory(in_threes(*methods, seeds=(0,), model=model)).steps(10)
        assert plain.losses(0) != changed.losses(0)


def plan(*methods: str, begin: int = 0) -> Plan:
    """The plan of a run up to its fifth step."""
    return InMemory(in_threes(*methods, seeds=SEEDS, model=ROPE)).run.methods.plan(begin, 5)


def test_positions_are_new_for_each_seed_and_step() -> None:
    task, positions = tasks.build(TASK), plan(DRAWN).tables["positions"]
    assert positions.shape == (5, 3, task.tokens(task.lengths[1]))
    assert len(positions.flatten(0, 1).unique(dim=0)) == 15
    assert (positions.diff(dim=-1) > 0).all()
    assert positions.max() < 64


def test_positions_do_not_depend_on_lengths_or_blocks() -> None:
    positions = plan(DRAWN).tables["positions"]
    assert torch.equal(plan(DRAWN, "curriculum(from=2)").tables["positions"], positions)
    assert torch.equal(plan(DRAWN, begin=2).tables["positions"], positions[2:])


def test_plan_without_drawn_positions_has_an_empty_table() -> None:
    assert plan().tables["positions"].shape == (5, 3, 0)
    assert Plan.join([plan(), plan()]).tables["positions"].shape == (5, 6, 0)


def test_runs_with_and_without_drawn_positions_train_together() -> None:
    runs = [
        in_threes(*specs, seeds=seeds, model=ROPE)
        for specs, seeds in (((DRAWN,), (0, 1)), ((), (0, 1)), (("random_positions",), (2,)))
    ]
    together = InMemory(*runs).steps(12)
    for index, run in enumerate(runs):
        alone = InMemory(run).steps(12)
        for seed in run.seeds:
            assert_seed_is(together, alone, seed, index)


def test_evaluation_has_fixed_positions_and_drops_nothing(tmp_path: Path) -> None:
    model = ROPE.replace("heads=2", "heads=2, dropout=0.2")
    folder = trained(tiny(DRAWN, model=model, steps=20), tmp_path / "run")
    evaluation = Evaluation((1, 3), 64)
    assert evaluate_run(folder, evaluation) == evaluate_run(folder, evaluation)
    inputs = tasks.build(TASK).sample(4, 8, torch.Generator().manual_seed(0)).inputs
    with torch.no_grad():
        together = open_run(folder, CPU).predictor()(inputs)
        for row, seed in enumerate((0, 1)):
            one = load(folder, seed)
            assert one.span == 64
            torch.testing.assert_close(one(inputs)[0], together[row], rtol=1e-5, atol=1e-5)
            positions = fixed_positions(inputs.shape[1], 64, CPU)
            torch.testing.assert_close(one(inputs, positions=positions)[0], one(inputs)[0])
            _, state = one(inputs)
            with pytest.raises(OutlastError, match="give positions= with every chunk"):
                one(inputs, state)
            one.span = 0
            assert not torch.allclose(one(inputs)[0], together[row], atol=1e-4)


@pytest.mark.parametrize(
    ("method", "model", "message"),
    [
        (
            "random_positions(range=3)",
            ROPE,
            "range=3: expected at least 11, the tokens of a training",
        ),
        (
            DRAWN,
            "attention(learned(ceiling=32), heads=2) @ 16",
            r"range=64: expected at most 32, .*raise its ceiling",
        ),
    ],
    ids=["too short for training", "too long for the model"],
)
def test_create_refuses_a_range_of_positions(
    method: str, model: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=message):
        create(tiny(method, model=model), tmp_path / "run")


def test_create_warns_of_a_model_that_asks_for_no_position(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        create(tiny(DRAWN, model=ROPE), tmp_path / "rope")
        assert not caplog.records
        create(tiny(DRAWN), tmp_path / "nope")
    assert "random_positions: nothing in this model asks where a token stands" in caplog.text


@pytest.mark.gpu
def test_gpu_draws_what_the_cpu_draws() -> None:
    task = tasks.build(TASK)
    model = ROPE.replace("heads=2", "heads=2, dropout=0.2") + ", dropout=0.2"
    tokens = task.sample(4, 8, torch.Generator().manual_seed(0)).inputs.repeat(2, 1, 1)
    logits = []
    for device in (CPU, torch.device("cuda")):
        keys = torch.tensor([5, 6], device=device)
        positions = torch.stack([fixed_positions(tokens.shape[-1], n, device) for n in (64, 100)])
        stacked = StackedModel(model, task, (0, 1), device)
        logits.append(stacked.run(tokens.to(device), positions=positions, keys=keys).cpu())
    torch.testing.assert_close(*logits, rtol=1e-3, atol=1e-3)
