"""A finished run, and a copy of it for each test that changes something."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from run_folders import RUN_SPEC

from outlast.runs.folder import LOCK
from tiny_runs import trained


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run that is finished and not tested; not to be changed."""
    return trained(RUN_SPEC, tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def folder(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return shutil.copytree(finished_run, tmp_path / "run", ignore=shutil.ignore_patterns(LOCK))
