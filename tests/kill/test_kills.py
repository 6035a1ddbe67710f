"""A small part of `make kill`, with fixed moments: commands that are killed and given again.

The program is run as others run it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from kill_cases import CASES
from kill_compare import differences, differing_bits

from outlast.registry import methods
from outlast.specs import parse

KILLED = (
    "dat(switch=12, rewarm=6)", "processes", "a grid", "seeds of a run", "tests", "a study",
)  # fmt: skip


def test_commands_killed_and_given_again_leave_the_same_files(tmp_path: Path) -> None:
    """One test: its program is run once, also where tests are dealt out to several processes."""
    file, least = tmp_path / "tallies.json", 10
    program = [sys.executable, str(Path(__file__).parent), "--kills", str(least)]
    result = subprocess.run(
        [*program, "--json", str(file), "--cases", *KILLED],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    tallies = json.loads(file.read_text())
    assert set(tallies) == set(KILLED)
    for name, tally in tallies.items():
        assert tally["faults"] == [], name
        assert tally["bits"] == 0, name
    kills = [tally["kills"] for tally in tallies.values()]
    assert sum(kills) >= least
    assert sum(map(bool, kills)) >= len(KILLED) // 2, "most cases were not killed"


def test_every_method_is_killed() -> None:
    """Also one that another package has registered."""
    words = [word for case in CASES for command in case.commands for word in command]
    killed = {parse(word).name for flag, word in pairwise(words) if flag == "--method"}
    assert killed == set(methods.names())


def test_comparison_counts_bits_and_finds_files_left_over(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, text in ((one, b"ab"), (other, b"cb")):
        folder.mkdir()
        (folder / "file").write_bytes(text)
    (one / ".file.tmp").touch()
    (other / "missing").touch()
    (one / ".lock").touch()
    bits, faults = differences(one, other)
    assert bits == 1
    assert faults == ["left over: .file.tmp", "missing: missing", "file differs in 1 bits"]
    assert differing_bits({"": b"ab"}, {"": b"abc"}) == 8
    assert differing_bits({"x": b"a"}, {"y": b"a"}) == 16
