"""Random numbers by a hash: uniform, and the same on any device, in blocks and among seeds."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap

from outlast.mixers.randomness import (
    draw_positions,
    drop,
    fixed_positions,
    fold_in,
    random_bits,
    within,
)

KEY = torch.tensor(1234567890123)
TOP = 2**31


def test_random_bits_are_uniform_and_uncorrelated():
    shares = random_bits(KEY, (64, 64, 256)).double() / TOP
    assert shares.min() >= 0
    assert shares.max() < 1
    assert abs(shares.mean() - 1 / 2) < 1e-3
    assert abs(shares.var() - 1 / 12) < 1e-3
    for axis in range(3):  # neighbours along each axis
        one, two = shares.narrow(axis, 0, 63), shares.narrow(axis, 1, 63)
        assert abs(torch.corrcoef(torch.stack([one.flatten(), two.flatten()]))[0, 1]) < 5e-3
    numbers = random_bits(KEY, (500, 500))
    per_bit = torch.stack([(numbers >> b & 1).double().mean() for b in range(31)])
    assert (per_bit - 0.5).abs().max() < 5e-3


def test_neighbouring_keys_give_uncorrelated_numbers():
    keys = [KEY, KEY + 1, *(fold_in(KEY, n) for n in (0, 1, -1)), fold_in(fold_in(KEY, 0), 0)]
    numbers = torch.stack([random_bits(k, (100, 100)).flatten().double() for k in keys])
    assert torch.corrcoef(numbers).fill_diagonal_(0).abs().max() < 0.05


def test_numbers_of_a_key_never_change():
    """On any device and in any later version: a run goes on with the numbers it began with."""
    assert random_bits(torch.tensor(7), (2, 3)).tolist() == PINNED
    assert draw_positions(torch.tensor(7), 5, 100).tolist() == PINNED_POSITIONS


PINNED = [[1535139114, 584535064, 707151088], [1542041330, 2016995618, 434507360]]
PINNED_POSITIONS = [3, 47, 49, 61, 65]


@pytest.mark.gpu
def test_gpu_draws_the_same_numbers():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    on_cpu, on_gpu = random_bits(KEY, (7, 130, 65)), random_bits(KEY.cuda(), (7, 130, 65))
    assert torch.equal(on_cpu, on_gpu.cpu())


def test_blocks_of_rows_equal_the_whole_table():
    whole = random_bits(KEY, (3, 4, 10, 6))
    parts = [random_bits(KEY, (3, 4, n, 6), first) for first, n in ((0, 3), (3, 1), (4, 6))]
    assert torch.equal(torch.cat(parts, 2), whole)


def test_vmapped_keys_equal_single_keys():
    keys = torch.tensor([3, 7, 11])
    together = vmap(lambda key: random_bits(fold_in(key, 2), (4, 5)))(keys)
    for row, key in enumerate(keys):
        assert torch.equal(together[row], random_bits(fold_in(key, 2), (4, 5)))


def test_drop_zeroes_a_share_and_scales_the_rest():
    x = torch.full((200, 300), 3.0, requires_grad=True)
    y = drop(x, 0.25, KEY)
    dropped = y == 0
    assert abs(dropped.double().mean() - 0.25) < 0.01
    assert torch.equal(y[~dropped].unique(), torch.tensor([4.0]))
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, torch.where(dropped, 0.0, 1 / 0.75))
    assert drop(x, 0.25, None) is x
    assert drop(x, 0.0, KEY) is x


def test_drawn_positions_are_uniform_increasing_subsets():
    positions = draw_positions(torch.arange(20_000), 3, 6)
    assert positions.min() == 0
    assert positions.max() == 5
    assert (positions.diff(dim=-1) > 0).all()
    subsets = (positions * torch.tensor([36, 6, 1])).sum(-1).unique(return_counts=True)[1]
    assert len(subsets) == 20  # all of them
    assert (subsets - 1000).abs().max() < 5 * 1000**0.5


def test_positions_are_counted_if_the_span_is_too_small():
    for span in (0, 4, 5):
        assert draw_positions(torch.arange(2), 5, span).tolist() == [[0, 1, 2, 3, 4]] * 2


def test_fixed_positions_depend_on_the_length_alone():
    cpu = torch.device("cpu")
    assert torch.equal(fixed_positions(9, 50, cpu), fixed_positions(9, 50, cpu))
    assert not torch.equal(fixed_positions(9, 50, cpu), fixed_positions(10, 50, cpu)[:9])
    assert torch.equal(fixed_positions(9, 8, cpu), torch.arange(9))


def test_share_of_one_has_all_bits_and_share_of_zero_none():
    bits = torch.tensor([0, 2**30, 2**31 - 1], dtype=torch.int32)
    assert within(bits, torch.tensor(1.0)).all(), "2^31 - 1 as a float32 would be 2^31"
    assert not within(bits, torch.tensor(0.0)).any()
    assert within(bits, torch.tensor(0.5)).tolist() == [True, False, False]
