"""Compiling before anything is timed: nothing of it goes on when the timing begins."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from outlast.bench import precompile as module
from outlast.bench.precompile import precompile
from outlast.processes import Child


@pytest.fixture
def started(monkeypatch):
    """The children that are started, two at a time."""
    children = []

    class Noted(Child):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            children.append(self)

    monkeypatch.setattr(module, "cores", lambda: 2)
    monkeypatch.setattr(module, "Child", Noted)
    return children


def test_every_job_is_done_and_failures_are_left_for_later(tmp_path, started):
    files = [tmp_path / name for name in ("a", "no/such/folder", "c")]
    precompile(Path.touch, [(file,) for file in files], 120)
    assert [file.exists() for file in files] == [True, False, True]
    assert len(started) == 3
    assert all(child.process.returncode is not None for child in started)


def test_late_jobs_are_ended_and_other_processes_left_alone(started):
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        begun = time.monotonic()
        precompile(time.sleep, [(600,)] * 4, 1)
        assert time.monotonic() - begun < 60
        assert [child.process.returncode for child in started] == [-9, -9]
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
