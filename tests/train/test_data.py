"""The data of a block: made for all seeds at once, and what each would have alone."""

from __future__ import annotations

import pytest
import torch

import outlast.train.data as data
from outlast.registry import tasks
from outlast.streams import stream
from outlast.tasks import IGNORE
from tiny_runs import CPU, TASK

SEEDS = (4, 0, 7, 2)
LENGTHS = [(2, 4), (2, 3), (2, 4), (1, 3)]


def assert_row_is(made: data.Batch, row: int, lengths: tuple[int, int], begin: int) -> None:
    """Seed by seed, as the task draws from its stream; blank to the right of it."""
    alone = tasks.build(TASK).sample(lengths, 15, stream(CPU, "data", SEEDS[row], begin))
    for name, blank in (("inputs", 0), ("targets", IGNORE), ("part", -1)):
        own, found = getattr(alone, name), getattr(made, name)[:, row]
        assert found.shape[:2] == (5, 3)
        assert torch.equal(found.flatten(0, 1)[:, : own.shape[1]], own)
        assert (found[:, :, own.shape[1] :] == blank).all()


@pytest.mark.parametrize("most", [2**16, 40, 1])
@pytest.mark.parametrize("lengths", [[(2, 4)] * 4, LENGTHS], ids=["one length", "several"])
def test_each_seed_has_what_it_has_alone(
    monkeypatch: pytest.MonkeyPatch, most: int, lengths: list[tuple[int, int]]
) -> None:
    """Also where lengths differ, and where not all seeds are made in one call."""
    monkeypatch.setattr(data, "MOST", most)
    made = data.fresh(tasks.build(TASK), SEEDS, lengths, 10, (5, 3), CPU)
    assert made.inputs.shape[:3] == (5, 4, 3)
    for row in range(4):
        assert_row_is(made, row, lengths[row], 10)


def test_a_seed_at_rest_has_nothing_and_the_others_what_they_had() -> None:
    made = data.fresh(tasks.build(TASK), SEEDS, LENGTHS, 0, (5, 3), CPU, idle=[0, 3])
    for row in (1, 2):
        assert_row_is(made, row, LENGTHS[row], 0)
    for row in (0, 3):
        assert (made.inputs[:, row] == 0).all()
        assert (made.targets[:, row] == IGNORE).all()
        assert (made.part[:, row] == -1).all()


def test_joined_data_keep_their_kinds() -> None:
    made = data.fresh(tasks.build(TASK), SEEDS, LENGTHS, 0, (5, 3), CPU)
    both = data.join([made, data.nothing(2, 3, CPU)])
    assert both.inputs.shape == (5, 6, 3, made.inputs.shape[-1])
    assert torch.equal(both.inputs[:, :4], made.inputs)
    assert torch.equal(both.part[:, :4], made.part)
    assert (both.targets[:, 4:] == IGNORE).all()
    assert (both.part[:, 4:] == -1).all()
    assert (both.part.dtype, both.targets.dtype) == (made.part.dtype, made.targets.dtype)
