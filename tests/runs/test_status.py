"""What a run has come to, as its folder says: finished, tested, diverged, and how well tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.runs import status
from outlast.runs.checkpoint import TrainingState, save_checkpoint
from outlast.runs.folder import RESULTS
from outlast.runs.records import ResultRow, Results, write_results
from outlast.runs.status import Coverage, covers, diverged, finished
from tiny_runs import create, tiny

Steps = list[int | None]
NONE: Steps = [None, None]


def save(folder: Path, step: int, parked: Steps = NONE, succeeded: Steps = NONE) -> Path:
    """A run of 30 steps and two seeds that has come to this."""
    blank: list[list[dict[str, float]]] = [[], []]
    state = TrainingState(step, [0, 0], blank, [{}, {}], parked, succeeded, [0, 0])
    save_checkpoint(create(tiny(steps=30), folder, overwrite=True), {}, state)
    return folder


def save_results(folder: Path, step: int | None = 30, sequences: int | None = 64) -> None:
    """Results with multiples 1 and 3; the second could not be tested."""
    right = {"joint": 1.0}
    rows: list[ResultRow] = [
        {"seed": 0, "variant": None, "length": 4, "multiple": 1, "exact": right},
        {"seed": 0, "variant": None, "length": 12, "multiple": 3, "exact": None},
    ]
    results = Results(step=step, sequences=sequences, rows=tuple(rows))
    write_results(folder / RESULTS, results)


@pytest.mark.parametrize(
    ("step", "parked", "succeeded", "at_its_end"),
    [
        (20, NONE, NONE, False),
        (30, NONE, NONE, True),
        (20, [10, None], NONE, False),
        (20, [10, None], [None, 20], True),
        (20, NONE, [10, 20], True),
        (20, [10, 10], NONE, True),
    ],
)
def test_run_is_finished_when_no_step_or_no_seed_is_left(
    tmp_path: Path, step: int, parked: Steps, succeeded: Steps, at_its_end: bool
) -> None:
    assert finished(save(tmp_path / "run", step, parked, succeeded)) == at_its_end


def test_new_run_is_neither_finished_nor_tested(tmp_path: Path) -> None:
    folder = create(tiny(), tmp_path / "run")
    assert not finished(folder)
    assert not status.tested(folder)
    assert not covers(folder, (1,), 1)


def test_results_of_another_step_do_not_count_as_tested(tmp_path: Path) -> None:
    folder = save(tmp_path / "run", 30)
    assert not status.tested(folder)
    for step, counts in ((20, False), (None, False), (30, True)):
        save_results(folder, step)
        assert status.tested(folder) == counts


def test_only_a_run_without_a_sound_seed_has_diverged(tmp_path: Path) -> None:
    assert diverged(save(tmp_path / "run", 20, [10, None])) is None
    error = diverged(save(tmp_path / "run", 30, [10, 20]))
    assert str(error).startswith(
        "seed 1: the loss or a weight is not finite between steps 20 and 30 (the other 1 were "
        f"parked before); the last good weights are kept in {tmp_path / 'run'}. No seed is left"
    )


@pytest.mark.parametrize(
    ("ladder", "sequences", "answer"),
    [((1,), 64, True), ((1, 3), 8, True), ((1, 2), 8, False), ((1,), 65, False)],
)
def test_results_cover_the_lengths_and_sequences_they_have(
    tmp_path: Path, ladder: tuple[float, ...], sequences: int, answer: bool
) -> None:
    save_results(tmp_path)
    assert covers(tmp_path, ladder, sequences) == answer


def test_coverage_names_only_lengths_that_could_be_tested(tmp_path: Path) -> None:
    save_results(tmp_path)
    assert str(Coverage.read(tmp_path / RESULTS)) == "lengths 1, 64 sequences each"
    save_results(tmp_path, sequences=None)  # as written by hand
    assert not covers(tmp_path, (1,), 1)
    (tmp_path / RESULTS).write_text("damaged")
    assert Coverage.read(tmp_path / RESULTS) is None
