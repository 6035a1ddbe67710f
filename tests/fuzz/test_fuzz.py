"""A fixed set of inputs of each kind: no traceback, no hang, nothing left, no nonsense accepted.

``make fuzz`` runs others for as long as one likes.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from kinds import KINDS, run_case
from oracle import Case, Nonsense, judge

from outlast.errors import OutlastError

SEED = 20
#: inputs of each kind; about half a minute on a slow core
COUNTS = {"specs": 800, "flags": 50, "folders": 90, "checkpoints": 120}
#: numbers of cases are dealt out to this many tests of a kind, for them to run side by side
PARTS = 2


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", list(KINDS))
def test_no_input_breaks_or_misleads(kind: str, part: int) -> None:
    counts: Counter[str] = Counter()
    outcomes = [run_case(kind, SEED, n, counts) for n in range(part, COUNTS[kind], PARTS)]
    failures = [str(failure) for failure in outcomes if failure is not None]
    assert not failures, "\n\n".join(failures)
    # an oracle that refuses everything, or accepts everything, would see nothing
    assert min(counts[f"{kind}: accepted"], counts[f"{kind}: refused"]) > 0
    assert counts.total() == COUNTS[kind] // PARTS


def leaves_a_file(home: Path) -> None:
    (home / "file").touch()
    raise OutlastError("refused")


def changes_a_file(home: Path) -> None:
    (home / "old").write_text("new")
    raise OutlastError("refused")


def is_nonsense(home: Path) -> None:
    raise Nonsense("1 is 2")


def hangs(home: Path) -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("action", "problem"),
    [
        (lambda home: 1 / 0, "traceback: "),
        (leaves_a_file, "leftovers, though it was refused: file"),
        (changes_a_file, "leftovers, though it was refused: old"),
        (is_nonsense, "nonsense accepted: 1 is 2"),
        (hangs, "hang: over "),
    ],
)
def test_oracle_sees_what_is_wrong(action, problem, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("oracle.time_limit.__wrapped__.__defaults__", (1,))
    case = Case("a line", action, lambda home: (home / "old").write_text("old"))
    assert (judge(case, tmp_path)[1] or "").startswith(problem)


def test_case_is_the_same_whenever_it_is_made() -> None:
    counts: Counter[str] = Counter()
    for kind in KINDS:
        assert run_case(kind, 3, 5, counts) == run_case(kind, 3, 5, counts)
    assert all(count == 2 for count in counts.values())
