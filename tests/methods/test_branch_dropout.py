"""Sequences that go without attention in training."""

from __future__ import annotations

import pytest
import torch

from outlast.errors import OutlastError
from outlast.methods import Control, Setup
from outlast.methods.base import PATHWAYS, SUBLAYER_CONTROLS
from outlast.mixers.randomness import draw_true
from outlast.registry import methods, tasks
from outlast.train.seeds import StackedModel
from tiny_runs import CPU, TASK, InMemory, create, in_threes, tiny

SETUP = Setup(steps=100, parts=("state",), lengths=(2, 6))
MODEL = "2 x (lstm | attention(heads=2) > mlp) @ 16"
ROWS = 64
KEYS = torch.tensor([5, 6])


@pytest.fixture(scope="module")
def stacked() -> StackedModel:
    return StackedModel(MODEL, tasks.build(TASK), (0, 1), CPU)


def logits(stacked: StackedModel, keys: torch.Tensor | None = KEYS, **attention: list[float]):
    """Of both seeds, (seeds, rows, tokens, outputs), with these controls of attention."""
    tables = {name: torch.ones(2, len(PATHWAYS)) for name in SUBLAYER_CONTROLS}
    for name, values in attention.items():
        tables[name][:, PATHWAYS.index("attention")] = torch.tensor(values)
    stacked.set_modes(tables)
    tokens = torch.randint(30, (1, ROWS, 6), generator=torch.Generator().manual_seed(0))
    return stacked.run(tokens, controls=tables, keys=keys).detach()


def test_sequence_has_all_of_attention_or_none_of_it(stacked):
    with_it, without = logits(stacked), logits(stacked, gate=[0.0, 0.0])
    some = logits(stacked, keep=[0.5, 1.0])
    kept = torch.isclose(some[0], with_it[0], atol=1e-5).all(-1).all(-1)
    left_out = torch.isclose(some[0], without[0], atol=1e-5).all(-1).all(-1)
    assert torch.equal(kept, ~left_out)
    assert 0.3 < kept.float().mean() < 0.7
    torch.testing.assert_close(some[1], with_it[1], msg="the seed beside it keeps everything")


def test_other_steps_and_seeds_leave_out_other_sequences(stacked):
    both = logits(stacked, keep=[0.5, 0.5])
    other = logits(stacked, KEYS + 1, keep=[0.5, 0.5])
    changed = (both != other).any(-1).any(-1)
    assert 0.2 < changed.float().mean() < 0.8
    assert torch.equal(both, logits(stacked, keep=[0.5, 0.5]))


def test_pass_without_a_key_leaves_nothing_out(stacked):
    torch.testing.assert_close(logits(stacked, None, keep=[0.5, 0.5]), logits(stacked))


def test_draw_is_true_as_often_as_its_share_and_always_at_one():
    key = torch.tensor(3)
    assert draw_true(key, 1.0, 100_000).all()
    assert not draw_true(key, 0.0, 100_000).any()
    assert draw_true(key, 0.9, 100_000).float().mean().item() == pytest.approx(0.9, abs=0.005)


@pytest.mark.parametrize("pathway", ["attention", "recurrent"])
def test_method_keeps_the_other_sequences_of_its_pathway(pathway):
    method, control = (
        methods.build(f"branch_dropout(p=0.25, pathway={pathway})"),
        Control.plain(SETUP),
    )
    method.control(3, method.begin(SETUP), control)
    assert control.keep == dict.fromkeys(PATHWAYS, 1.0) | {pathway: 0.75}


def test_training_leaves_sequences_out_and_a_test_does_not():
    plain = InMemory(in_threes(seeds=(0,)))
    dropping = InMemory(in_threes("branch_dropout(p=0.9)", seeds=(0,)))
    tokens = torch.ones(4, 6, dtype=torch.long)
    before = [each.trainer._predictor()(tokens) for each in (plain, dropping)]
    assert torch.equal(*before)
    assert plain.steps(3).losses(0) != dropping.steps(3).losses(0)


def test_model_without_the_pathway_is_refused(tmp_path):
    run = tiny("branch_dropout", model="lstm > mlp @ 16")
    with pytest.raises(OutlastError, match="no sublayer on the attention pathway to leave out"):
        create(run, tmp_path / "run")
