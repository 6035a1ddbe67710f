"""Numbers drawn without repetition: both ways are uniform over the ordered samples."""

from collections import Counter
from itertools import permutations
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outlast.tasks import sampling

WAYS = [sampling.by_rank, sampling.by_swaps]
ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


def generator(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def shuffled(drawn: list[int], choices: int) -> list[int]:
    """The swaps one by one, on the whole row."""
    row = list(range(choices))
    for step, place in enumerate(drawn):
        row[step], row[place] = row[place], row[step]
    return row[: len(drawn)]


@given(choices=st.integers(1, 40), share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_vectorised_swaps_equal_swaps_one_by_one(choices, share, seed):
    count = max(1, round(share * choices))
    at_once = sampling.by_swaps(5, choices, count, generator(seed))
    step = torch.arange(count)
    drawn = step + sampling.randint_below((choices - step).expand(5, -1), generator(seed))
    assert at_once.tolist() == [shuffled(row, choices) for row in drawn.tolist()]


@given(choices=st.integers(1, 40), share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_swaps_found_by_sort_equal_those_of_the_table(choices, share, seed):
    count = max(1, round(share * choices))
    by_table = sampling.by_swaps(5, choices, count, generator(seed))
    with patch.object(sampling, "FEW", 0):
        assert torch.equal(sampling.by_swaps(5, choices, count, generator(seed)), by_table)


@ways
@given(choices=st.integers(1, 40), share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_numbers_are_distinct_and_in_range(way, choices, share, seed):
    count = max(1, round(share * choices))
    numbers = way(4, choices, count, generator(seed))
    assert numbers.shape == (4, count)
    assert numbers.dtype == torch.int64
    assert all(len(set(row)) == count for row in numbers.tolist())
    assert numbers.min() >= 0
    assert numbers.max() < choices


@ways
@pytest.mark.parametrize(("choices", "count"), [(4, 2), (4, 4), (5, 3), (3, 1)])
def test_every_ordered_sample_is_equally_likely(way, choices, count):
    rows = 24_000
    seen = Counter(map(tuple, way(rows, choices, count, generator()).tolist()))
    samples = list(permutations(range(choices), count))
    expected = rows / len(samples)
    squares = sum((seen[s] - expected) ** 2 / expected for s in samples)
    freedom = len(samples) - 1
    assert squares < freedom + 5 * (2 * freedom) ** 0.5


@ways
def test_nearly_all_choices_are_distinct(way):
    numbers = way(3, 1024, 1000, generator())
    assert all(len(set(row)) == 1000 for row in numbers.tolist())


def test_draws_on_a_cpu_never_change():
    scores = torch.rand(7, 100, generator=generator(3), dtype=torch.float64)
    assert torch.equal(sampling.distinct(7, 100, 5, generator(3)), scores.topk(5, dim=1).indices)


@pytest.mark.gpu
def test_draws_on_a_gpu_are_deterministic_and_do_not_wait():
    sampling.distinct(9, 1024, 25, generator(3, "cuda"))  # loads what it needs
    torch.cuda.set_sync_debug_mode("error")
    try:
        one, two = (sampling.distinct(6400, 1024, 25, generator(3, "cuda")) for _ in range(2))
        other = sampling.distinct(6400, 1024, 25, generator(4, "cuda"))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert (one.sort(1).values.diff() > 0).all()
    assert one.min() == 0
    assert one.max() == 1023
