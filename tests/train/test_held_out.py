"""Losses of held-out sequences: what they are, who is shown them, and when they end."""

from __future__ import annotations

import math

import pytest
import torch

from outlast.errors import SpecError
from outlast.kernels.loss import part_losses
from outlast.methods.base import WORST_LOSS
from outlast.methods.triggers import Converged
from outlast.registry import tasks
from outlast.streams import stream
from outlast.tasks import IGNORE
from outlast.train import held_out
from outlast.train.held_out import SEQUENCES, held_out_losses
from tiny_runs import CPU, TASK, InMemory, create, in_threes, tiny

CONVERGED = "dat(switch=converged(patience=3), latest=12)"


def predict(tokens: torch.Tensor) -> torch.Tensor:
    """Logits of two seeds: a guess that depends on the token, and one that is never finite."""
    guess = torch.nn.functional.one_hot(tokens % 7, 64).float()
    return torch.stack([guess, guess / 0])


def test_held_out_loss_is_the_mean_over_all_sequences_in_pieces_too(monkeypatch):
    task = tasks.build(TASK)
    batch = task.sample(8, SEQUENCES, stream(CPU, "held out", 8))
    tables = (predict(batch.inputs)[:1], batch.targets[None], batch.part[None])
    losses = part_losses(*tables, len(task.parts), IGNORE)[0][0]
    wanted = dict(zip(task.parts, losses.tolist(), strict=True))
    assert min(wanted.values()) > 0
    for tokens in (2**17, 500):
        monkeypatch.setattr(held_out, "TOKENS", {"cpu": tokens})
        first, second = held_out_losses(predict, 2, task, (1.0, 2.0), CPU)
        assert set(first) == {1.0, 2.0}
        assert first[2.0] == pytest.approx(wanted, rel=1e-5)
        assert set(second[2.0].values()) == {WORST_LOSS}


def test_method_is_shown_held_out_losses_after_each_block_until_it_switches(monkeypatch):
    looks: list[tuple[int, float, float]] = []
    monkeypatch.setattr(
        Converged, "look", lambda self, step, losses, state: looks.append((step, *losses.values()))
    )
    InMemory(in_threes(CONVERGED, seeds=(0,))).steps(21)
    assert [step for step, *_ in looks] == [3, 6, 9], "the switch is at step 12"
    assert all(0.1 < loss < 5 for _, *losses in looks for loss in losses)
    assert len({losses[0] for _, *losses in looks}) == 3, "the weights change, and so do losses"


def test_runs_without_such_a_method_measure_nothing(monkeypatch):
    monkeypatch.setattr("outlast.train.trainer.held_out_losses", None)
    InMemory(in_threes("dat(switch=6)", seeds=(0,))).steps(9)


def test_held_out_losses_change_no_weights():
    plain = InMemory(in_threes("dat(switch=12)")).steps(18)
    shown = InMemory(in_threes(CONVERGED)).steps(18)
    assert torch.equal(plain.run.seeds.model.table, shown.run.seeds.model.table)


@pytest.mark.parametrize(
    ("task", "model", "says"),
    [
        ("composite(modulus=2, keys=6, queries=2, length=4)", None, "the task is past its limit"),
        (TASK, "lstm > attention(learned(ceiling=16), heads=2) @ 16", "the model is past its"),
    ],
)
def test_converged_is_refused_where_no_sequence_is_twice_as_long(task, model, says, tmp_path):
    changed = {} if model is None else {"model": model}
    with pytest.raises(SpecError, match=f"switch=converged: expected another trigger.*{says}"):
        create(tiny("dat(switch=converged)", task=task, **changed), tmp_path / "run")


def test_method_knows_the_loss_of_a_guess_at_each_part():
    run = InMemory(in_threes(CONVERGED, seeds=(0,))).run
    (method,) = run.methods.methods
    assert method.trigger.guess == pytest.approx(-math.log(tasks.build(TASK).chance_level("state")))
