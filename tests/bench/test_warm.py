"""Compiling before anything is timed: nothing of it goes on when the timing begins."""

import multiprocessing
import time
from pathlib import Path

import pytest

from outlast.bench.warm import side_by_side


@pytest.fixture(autouse=True)
def _two_workers(monkeypatch):
    monkeypatch.setattr("outlast.bench.warm.cores", lambda: 2)


def test_what_is_done_in_time_is_done(tmp_path):
    files = [tmp_path / name for name in "abc"]
    side_by_side(Path.touch, [(file,) for file in files], 120)
    assert all(file.exists() for file in files)
    assert not multiprocessing.active_children()


def test_what_takes_longer_is_ended_and_others_are_left_alone():
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    other.start()
    try:
        begun = time.monotonic()
        side_by_side(time.sleep, [(600,)] * 4, 1)
        assert time.monotonic() - begun < 60
        assert multiprocessing.active_children() == [other]
    finally:
        other.kill()
        other.join()
