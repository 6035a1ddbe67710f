"""Numbers by a hash: spread as chance is, the same wherever and however they are asked for."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap

from outlast.mixers.chance import bits, draw_positions, drop, fixed_positions, fold

KEY = torch.tensor(1234567890123)
TOP = 2**31


def test_they_are_spread_evenly_and_do_not_hang_together():
    shares = bits(KEY, (64, 64, 256)).double() / TOP
    assert shares.min() >= 0
    assert shares.max() < 1
    assert abs(shares.mean() - 1 / 2) < 1e-3
    assert abs(shares.var() - 1 / 12) < 1e-3
    for axis in range(3):  # neighbours along each axis
        one, two = shares.narrow(axis, 0, 63), shares.narrow(axis, 1, 63)
        assert abs(torch.corrcoef(torch.stack([one.flatten(), two.flatten()]))[0, 1]) < 5e-3
    per_bit = torch.stack([(bits(KEY, (500, 500)) >> b & 1).double().mean() for b in range(31)])
    assert (per_bit - 0.5).abs().max() < 5e-3


def test_keys_next_to_each_other_have_nothing_in_common():
    keys = [KEY, KEY + 1, fold(KEY, 0), fold(KEY, 1), fold(KEY, -1), fold(fold(KEY, 0), 0)]
    made = torch.stack([bits(k, (100, 100)).flatten().double() for k in keys])
    assert torch.corrcoef(made).fill_diagonal_(0).abs().max() < 0.05


def test_the_numbers_of_a_key_are_these():
    """On any device and in any later version: a run goes on with the numbers it began with."""
    assert bits(torch.tensor(7), (2, 3)).tolist() == PINNED
    assert draw_positions(torch.tensor(7), 5, 100).tolist() == PINNED_POSITIONS


PINNED = [[1535139114, 584535064, 707151088], [1542041330, 2016995618, 434507360]]
PINNED_POSITIONS = [3, 47, 49, 61, 65]


@pytest.mark.gpu
def test_a_gpu_has_the_same_numbers():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    here, there = bits(KEY, (7, 130, 65)), bits(KEY.cuda(), (7, 130, 65))
    assert torch.equal(here, there.cpu())


def test_rows_in_blocks_are_the_rows_of_the_whole():
    whole = bits(KEY, (3, 4, 10, 6))
    parts = [bits(KEY, (3, 4, n, 6), first) for first, n in ((0, 3), (3, 1), (4, 6))]
    assert torch.equal(torch.cat(parts, 2), whole)


def test_a_key_among_others_has_the_numbers_it_has_alone():
    keys = torch.tensor([3, 7, 11])
    together = vmap(lambda key: bits(fold(key, 2), (4, 5)))(keys)
    for row, key in enumerate(keys):
        assert torch.equal(together[row], bits(fold(key, 2), (4, 5)))


def test_a_share_is_dropped_and_the_rest_is_louder():
    x = torch.full((200, 300), 3.0, requires_grad=True)
    y = drop(x, 0.25, KEY)
    dropped = y == 0
    assert abs(dropped.double().mean() - 0.25) < 0.01
    assert torch.equal(y[~dropped].unique(), torch.tensor([4.0]))
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, torch.where(dropped, 0.0, 1 / 0.75))
    assert drop(x, 0.25, None) is x
    assert drop(x, 0.0, KEY) is x


def test_positions_are_a_subset_in_order_and_every_one_is_as_likely():
    found = draw_positions(torch.arange(20_000), 3, 6)
    assert found.min() == 0
    assert found.max() == 5
    assert (found.diff(dim=-1) > 0).all()
    subsets = (found * torch.tensor([36, 6, 1])).sum(-1).unique(return_counts=True)[1]
    assert len(subsets) == 20  # all of them
    assert (subsets - 1000).abs().max() < 5 * 1000**0.5


def test_where_there_is_nothing_to_choose_positions_are_counted():
    for span in (0, 4, 5):
        assert draw_positions(torch.arange(2), 5, span).tolist() == [[0, 1, 2, 3, 4]] * 2


def test_a_test_has_the_same_positions_every_time():
    cpu = torch.device("cpu")
    assert torch.equal(fixed_positions(9, 50, cpu), fixed_positions(9, 50, cpu))
    assert not torch.equal(fixed_positions(9, 50, cpu), fixed_positions(10, 50, cpu)[:9])
    assert torch.equal(fixed_positions(9, 8, cpu), torch.arange(9))
