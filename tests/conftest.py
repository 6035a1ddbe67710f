"""What holds for every test: one thread; no GPU, no GPU tests; Triton kernels interpreted."""

from __future__ import annotations

import os

# the models of the tests are tiny, and threads that wait in a spin fight for the cores;
# read when torch is first imported, here and in the processes that tests start
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("outlast", deadline=None)  # a slow machine is no error
settings.load_profile("outlast")
torch.set_num_threads(1)  # the tests are many and small

if not torch.cuda.is_available():
    # read when triton is first imported, so it is set before any test file is
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True)
def _the_same_chance_every_time() -> None:
    torch.manual_seed(0)
