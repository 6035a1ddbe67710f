"""One rendered demo for all tests that only look at it."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_folders import write_demo

from outlast.reporting.page import report


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo study's report."""
    base = tmp_path_factory.mktemp("demo")
    return report([write_demo(base / "study")], base / "out").parent
