"""What every test of a benchmark may ask for."""

import pytest

from outlast.bench.timing import Bench
from tiny_runs import CPU


@pytest.fixture
def bench() -> Bench:
    """One turn of each side, on the CPU."""
    return Bench(CPU, seconds=60, repeats=1)


@pytest.fixture
def spent() -> Bench:
    """The same with no time left."""
    return Bench(CPU, seconds=1e-9, repeats=1)
