"""One set of runs for all tests of the page, and a library of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.view.library import Library
from view_runs import library_of, write_runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runs(tmp_path_factory.mktemp("view"))


@pytest.fixture(scope="session")
def library(runs: Path) -> Library:
    return library_of(runs)
