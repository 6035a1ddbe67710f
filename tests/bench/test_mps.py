"""Processes under MPS: they begin together, every failure is told, and the service always ends.

The service itself is played by a script that notes what it is asked.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from outlast.bench.seeds import mps, sections
from outlast.bench.timing import Row
from tiny_runs import is_alive, wait_until

SERVICE = """#!/bin/sh
pipe=$CUDA_MPS_PIPE_DIRECTORY
if [ "$1" = -d ]; then
    echo "start ${CUDA_VISIBLE_DEVICES-all}" >>"$NOTES"
    [ -z "$REFUSE" ] || { echo "no such luck"; exit 1; }
    sleep 300 &
    echo $! >"$pipe/nvidia-cuda-mps-control.pid"
    echo $! >>"$NOTES.pid"
    exit 0
fi
while read asked; do
    echo "$asked" >>"$NOTES"
    case $asked in
    get_server_list) echo 4711 ;;
    quit) [ -n "$STUBBORN" ] || kill "$(cat "$pipe/nvidia-cuda-mps-control.pid")" ;;
    esac
done
"""


@pytest.fixture
def notes(tmp_path, monkeypatch):
    """Where the script that plays the service writes what it was asked."""
    script = tmp_path / mps.CONTROL
    script.write_text(SERVICE)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    return tmp_path / "notes"


def is_over(notes: Path) -> bool:
    return not is_alive(int(Path(f"{notes}.pid").read_text()))


def idle():
    """Makes a step that takes a millisecond."""
    return lambda: time.sleep(1e-3)


def broken():
    raise ValueError("no room\nfor this")


def dead():
    os._exit(3)


def step_if_served():
    """Makes a step, if the service can be found."""
    assert Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]).is_dir()
    return idle()


def test_rate_of_processes_and_whether_they_were_served(notes):
    rate, served = mps.shared_rate(2, step_if_served, 0.1, 300)
    assert 0 < rate < 2000
    assert served
    assert notes.read_text().split("\n") == ["start all", "get_server_list", "quit", ""]
    assert is_over(notes)


@pytest.mark.parametrize(
    ("make", "patience", "message"),
    [
        (broken, 300, "^no room$"),
        (dead, 300, "ended with exit code 3"),
        (idle, 1e-3, "0 of 1 processes in 0 s"),
    ],
    ids=["error", "end", "late"],
)
def test_failing_process_is_an_error_and_the_service_ends(notes, make, patience, message):
    with pytest.raises(RuntimeError, match=message):
        mps.shared_rate(1, make, 0.1, patience)
    assert notes.read_text().split("\n")[-2] == "quit"
    assert is_over(notes)


def test_service_that_ignores_quit_is_killed(notes, monkeypatch):
    monkeypatch.setenv("STUBBORN", "yes")
    monkeypatch.setattr(mps, "TIMEOUT", 0.5)
    with mps.service():
        assert not is_over(notes)
    wait_until(lambda: is_over(notes))


def test_service_that_does_not_start_says_why(notes, monkeypatch):
    monkeypatch.setenv("REFUSE", "yes")
    with pytest.raises(RuntimeError, match="no such luck"), mps.service():
        pytest.fail("it is not there")


def test_sigterm_ends_the_service(notes):
    code = """
import time
from outlast.bench.seeds import mps
with mps.service():
    print("there", flush=True)
    time.sleep(60)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "there\n"
    assert not is_over(notes)
    child.send_signal(signal.SIGTERM)
    assert child.wait(30) == 128 + signal.SIGTERM
    child.stdout.close()
    assert is_over(notes)


@pytest.mark.parametrize("served", [True, False])
def test_row_compares_with_ours(bench, monkeypatch, served):
    monkeypatch.setattr(sections, "shared_rate", lambda *_: (1600.0, served))
    bench.rows.append(Row("peers", "32 seeds", "outlast", 8.0))
    sections.mps(bench)
    row = bench.rows[-1]
    assert (row.section, row.what, row.side, row.ms) == ("mps", "16 seeds", "mps", 10.0)
    assert row.note.startswith("1600 seed-steps/s, ")
    assert "; outlast with 32: 2.5 x" in row.note
    assert row.note.endswith("no MPS server was seen") is not served


def test_missing_service_is_a_row(bench, monkeypatch):
    monkeypatch.setenv("PATH", "")
    sections.mps(bench)
    (row,) = bench.rows
    assert row.ms is None
    assert row.note == "n/a: nvidia-cuda-mps-control is not there"
