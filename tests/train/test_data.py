"""The data of a block: what each seed would have alone, made for all at once, sorted or not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import outlast.train.data as data
from outlast.registry import tasks
from outlast.streams import stream
from outlast.tasks import IGNORE, Batch
from tiny_runs import CPU, TASK, InMemory, in_threes

SEEDS = (4, 0, 7, 2)
LENGTHS = [(2, 4), (2, 3), (2, 4), (1, 3)]


def assert_row_is(block: Batch, row: int, lengths: tuple[int, int], begin: int) -> None:
    """Seed by seed, as the task draws from its stream; blank to the right of it."""
    alone = tasks.build(TASK).sample(lengths, 15, stream(CPU, "data", SEEDS[row], begin))
    for name, blank in data.BLANK.items():
        page, row_page = getattr(alone, name), getattr(block, name)[:, row]
        assert row_page.shape[:2] == (5, 3)
        assert torch.equal(row_page.flatten(0, 1)[:, : page.shape[1]], page)
        assert (row_page[:, :, page.shape[1] :] == blank).all()


@pytest.mark.parametrize("most", [2**16, 40, 1])
@pytest.mark.parametrize("lengths", [[(2, 4)] * 4, LENGTHS], ids=["one length", "several"])
def test_each_seed_has_the_data_it_has_alone(
    monkeypatch: pytest.MonkeyPatch, most: int, lengths: list[tuple[int, int]]
) -> None:
    """Also where lengths differ, and where not all seeds are made in one call."""
    monkeypatch.setattr(data, "MOST", most)
    block = data.sample_block(tasks.build(TASK), SEEDS, lengths, 10, (5, 3), CPU)
    assert block.inputs.shape[:3] == (5, 4, 3)
    for row in range(4):
        assert_row_is(block, row, lengths[row], 10)


def test_lengths_that_the_task_does_not_have_are_rounded_down() -> None:
    task = tasks.build("regular(language=abab, length=12)")
    odd, even = (
        data.sample_block(task, SEEDS[:1], [(4, longest)], 0, (5, 3), CPU) for longest in (11, 8)
    )
    assert torch.equal(odd.inputs, even.inputs)


def test_seed_at_rest_has_no_data_and_the_others_keep_theirs() -> None:
    block = data.sample_block(tasks.build(TASK), SEEDS, LENGTHS, 0, (5, 3), CPU, idle=[0, 3])
    for row in (1, 2):
        assert_row_is(block, row, LENGTHS[row], 0)
    for row in (0, 3):
        assert (block.inputs[:, row] == 0).all()
        assert (block.targets[:, row] == IGNORE).all()
        assert (block.part[:, row] == -1).all()


def test_joined_data_keep_their_values_and_types() -> None:
    block = data.sample_block(tasks.build(TASK), SEEDS, LENGTHS, 0, (5, 3), CPU)
    both = data.join([block, data.blank_step(2, 3, CPU)])
    assert both.inputs.shape == (5, 6, 3, block.inputs.shape[-1])
    assert torch.equal(both.inputs[:, :4], block.inputs)
    assert torch.equal(both.part[:, :4], block.part)
    assert (both.targets[:, 4:] == IGNORE).all()
    assert (both.part[:, 4:] == -1).all()
    assert (both.part.dtype, both.targets.dtype) == (block.part.dtype, block.targets.dtype)


# ---- the data of a run -------------------------------------------------------------------------


def run_data(begin: int, *methods: str, **changed: object) -> Batch:
    """The data of five steps of a run."""
    run = InMemory(in_threes(*methods, **changed)).run
    return run.data(begin, run.methods.plan(begin, begin + 5))


@pytest.mark.parametrize("begin", [0, 5, 25])
def test_data_of_a_seed_do_not_depend_on_the_other_seeds(begin: int) -> None:
    many, one = run_data(begin, seeds=(3, 0, 7)), run_data(begin, seeds=(7,))
    for name in data.BLANK:
        assert torch.equal(getattr(many, name)[:, 2], getattr(one, name)[:, 0])
    assert not torch.equal(many.inputs[:, 0], many.inputs[:, 1])
    assert not torch.equal(many.inputs[0], many.inputs[1])


def test_data_do_not_depend_on_the_model_or_the_methods() -> None:
    other = run_data(10, "ema(0.5)", seeds=(1,), model="gru @ 8")
    assert torch.equal(run_data(10, seeds=(1,)).inputs, other.inputs)


def test_data_are_fresh_in_every_block() -> None:
    first, second, third = (run_data(begin, seeds=(0,)).inputs for begin in (0, 5, 10))
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


# ---- sorted by length --------------------------------------------------------------------------

LONGER = "composite(modulus=2, keys=16, queries=2, length=8)"


def sampled(*seeds: int, begin: int = 0, by_length: bool = True, task: str = LONGER) -> Batch:
    built = tasks.build(task)
    lengths = [built.lengths] * len(seeds)
    return data.sample_block(built, seeds, lengths, begin, (6, 8), CPU, by_length=by_length)


def tokens_needed(batch: Batch) -> Tensor:
    """Of each sequence, as floats."""
    places = torch.arange(1, batch.part.shape[-1] + 1)
    return ((batch.part >= 0) * places).amax(-1).float()


@pytest.mark.parametrize(
    "task", [LONGER, "flipflop(length=16)", "copy(length=6)", "parity(length=9)"]
)
def test_sorting_by_length_keeps_every_sequence_once(task: str) -> None:
    def sequences(batch: Batch, row: int) -> list[tuple[int, ...]]:
        pages = [page[:, row].flatten(0, 1) for page in (batch.inputs, batch.targets)]
        return sorted(map(tuple, torch.cat(pages, 1).tolist()))

    plain, by_length = sampled(0, 5, by_length=False, task=task), sampled(0, 5, task=task)
    for row in range(2):
        assert sequences(plain, row) == sequences(by_length, row)
    assert not torch.equal(plain.inputs, by_length.inputs)


def test_sequences_of_a_step_are_about_as_long_as_each_other() -> None:
    by_length, plain = (tokens_needed(sampled(0, 1, by_length=b)) for b in (True, False))
    assert by_length.std(-1).mean() < 0.4 * plain.std(-1).mean()


def test_seed_sorted_by_length_has_the_data_it_has_alone() -> None:
    together, alone = sampled(3, 7, 4), sampled(7)
    width = alone.inputs.shape[-1]
    assert torch.equal(together.inputs[:, 1, :, :width], alone.inputs[:, 0])
    assert torch.equal(together.part[:, 1, :, :width], alone.part[:, 0])


def test_seeds_share_the_order_of_short_steps_and_blocks_do_not() -> None:
    first, second = (tokens_needed(sampled(0, 1, begin=b)).mean(2).argsort(0) for b in (0, 6))
    assert torch.equal(first[:, 0], first[:, 1])
    assert not torch.equal(first[:, 0], second[:, 0])
