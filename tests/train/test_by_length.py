"""Steps whose sequences are about as long as each other: the same sequences, less padding."""

import pytest
import torch

from outlast.registry import tasks
from outlast.runs.spec import RunSpec, Settings
from outlast.train.data import fresh
from outlast.train.step import Block
from outlast.train.trainer import Trainer

TASK = "composite(modulus=2, keys=16, queries=2, length=8)"
SHAPE = (6, 8)


def drawn(seeds, begin=0, by_length=True, task=TASK):
    made = tasks.build(task)
    lengths = [made.lengths] * len(seeds)
    return fresh(made, seeds, lengths, begin, SHAPE, torch.device("cpu"), by_length=by_length)


def rows(batch, seed):
    """The sequences of a seed, in no order."""
    pages = torch.cat([page[:, seed].flatten(0, 1) for page in (batch.inputs, batch.targets)], 1)
    return sorted(map(tuple, pages.tolist()))


def test_every_sequence_is_there_once():
    plain, sorted_ = drawn([0, 5], by_length=False), drawn([0, 5])
    for seed in range(2):
        assert rows(plain, seed) == rows(sorted_, seed)
    assert not torch.equal(plain.inputs, sorted_.inputs)


def test_sequences_of_a_step_are_about_as_long_as_each_other():
    def spread(batch):
        places = torch.arange(1, batch.part.shape[-1] + 1)
        needed = ((batch.part >= 0) * places).amax(-1).float()
        return needed.std(-1).mean()

    assert spread(drawn([0, 1])) < 0.4 * spread(drawn([0, 1], by_length=False))


def test_a_seed_alone_has_what_it_has_among_others():
    together, alone = drawn([3, 7, 4]), drawn([7])
    wide = alone.inputs.shape[-1]
    assert torch.equal(together.inputs[:, 1, :, :wide], alone.inputs[:, 0])
    assert torch.equal(together.part[:, 1, :, :wide], alone.part[:, 0])


def test_short_steps_come_at_the_same_time_and_in_another_order_every_block():
    def widths(batch):
        places = torch.arange(1, batch.part.shape[-1] + 1)
        return ((batch.part >= 0) * places).amax(-1).float().mean(2)  # steps, seeds

    first, second = widths(drawn([0, 1])), widths(drawn([0, 1], begin=6))
    assert torch.equal(first[:, 0].argsort(), first[:, 1].argsort())
    assert not torch.equal(first[:, 0].argsort(), second[:, 0].argsort())


def trained(tmp_path, seeds, **changes):
    settings = Settings(
        steps=30,
        batch_size=8,
        steps_per_block=6,
        probe_every=0,
        checkpoint_every=30,
        lr=1e-3,
        warmup=5,
        **changes,
    )
    run = RunSpec(TASK, "lstm > attention(heads=2) > mlp @ 16", (), seeds, settings)
    fleet = Trainer([(run, tmp_path)], torch.device("cpu"))
    asked = []
    step = fleet.steppers[0]._step
    fleet.steppers[0]._step = lambda block, metrics, width: (
        asked.append(width),
        step(block, metrics, width),
    )
    fleet.train()
    return fleet.seeds.model.table, asked


def test_a_step_has_no_more_tokens_than_it_needs_and_learns_the_same(tmp_path, monkeypatch):
    found, asked = trained(tmp_path / "a", (0, 1), by_length=True)
    monkeypatch.setattr(Block, "cut", lambda self, width: self)
    whole, _ = trained(tmp_path / "b", (0, 1), by_length=True)
    torch.testing.assert_close(found, whole, rtol=0, atol=2e-6)
    longest = tasks.build(TASK).tokens(8)
    assert max(asked) <= longest
    assert sum(asked) < 0.8 * longest * len(asked)


def test_alone_and_among_others(tmp_path):
    together, _ = trained(tmp_path / "a", (0, 1, 2), by_length=True)
    alone, _ = trained(tmp_path / "b", (1,), by_length=True)
    torch.testing.assert_close(together[1], alone[0], rtol=0, atol=1e-5)


def test_off_every_step_is_as_wide_as_the_block(tmp_path):
    _, asked = trained(tmp_path, (0,))
    assert len(set(asked)) <= 5  # one width a block


def test_a_block_without_data_is_one_token_wide():
    blank = torch.full((2, 3, 4, 5), -1, dtype=torch.int8)
    block = Block(*[blank] * 11)
    assert block.widths() == [1, 1]


@pytest.mark.parametrize("task", ["flipflop(length=16)", "copy(length=6)", "parity(length=9)"])
def test_other_tasks_are_dealt_out_too(task):
    plain, dealt = drawn([2], by_length=False, task=task), drawn([2], task=task)
    assert rows(plain, 0) == rows(dealt, 0)
