"""Testing a run folder: every seed at every length, and larger tests are not lost."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import outlast.evaluation.ladder as ladder_module
from outlast.errors import RunFolderError, SpecError
from outlast.evaluation.ladder import evaluate_stack
from outlast.runs.folder import PREVIOUS_RESULTS, RESULTS, write_json
from outlast.runs.spec import LADDER, SEQUENCES
from outlast.workflow.evaluate import Evaluation, evaluate_run
from tiny_runs import tiny, trained


def measure(folder: Path, ladder: Sequence[float], sequences: int, **options: Any) -> list[Any]:
    return evaluate_run(folder, Evaluation(ladder, sequences), **options)


def sequences_in(path: Path) -> int:
    return json.loads(path.read_text())["sequences"]


def say_step(path: Path, step: int) -> None:
    """Make results those of another step."""
    write_json(path, json.loads(path.read_text()) | {"step": step})


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is trained and not tested."""
    return trained(tiny(steps=5, probe_every=0), tmp_path_factory.mktemp("once") / "run")


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    """A copy of it, to be tested."""
    return shutil.copytree(trained_run, tmp_path / "run")


def test_defaults_are_the_ladder_and_thousands_of_sequences() -> None:
    assert Evaluation() == Evaluation(LADDER, None, "fp32")
    assert SEQUENCES >= 2000
    assert {1, 3, 10} <= set(LADDER)


def test_nan_logits_of_a_seed_are_warned_of_and_stored(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def last_seed_is_nan(model: Callable[[Tensor], Tensor], *options: Any, **more: Any) -> Any:
        def spoiled(tokens: Tensor) -> Tensor:
            logits = model(tokens)
            logits[-1, : len(tokens) // 4] = torch.nan
            return logits

        return evaluate_stack(spoiled, *options, **more)

    measure(run, (1,), 8)
    assert not caplog.messages
    monkeypatch.setattr("outlast.workflow.evaluate.evaluate_stack", last_seed_is_nan)
    rows = measure(run, (1,), 8)
    assert ["nan" in row for row in rows] == [row["seed"] == rows[-1]["seed"] for row in rows]
    (message,) = caplog.messages
    share = f"{100 * rows[-1]['nan']:.3g} % of the answers are NaN or all -inf"
    assert message.startswith(
        f"run: length {rows[-1]['length']}: the logits of {share} (seed {rows[-1]['seed']})"
    )
    assert json.loads((run / RESULTS).read_text())["rows"][-1]["nan"] == rows[-1]["nan"]


def test_unknown_precision_is_refused() -> None:
    with pytest.raises(SpecError, match=r"precision=fp8: expected fp32 \| tf32 \| bf16"):
        Evaluation(precision="fp8")


def test_results_have_every_seed_at_every_length(tmp_path: Path) -> None:
    run = tiny(
        model="attention(learned(ceiling=16), heads=2) > lstm @ 8",
        seeds=(5, 2),
        steps=10,
        probe_every=0,
    )
    folder = trained(run, tmp_path / "run")
    rows = measure(folder, (1, 3, 10), 16)
    results = json.loads((folder / RESULTS).read_text())
    assert results["rows"] == rows
    assert (results["format"], results["step"], results["sequences"]) == (2, 10, 16)
    places = [(row["seed"], row["multiple"]) for row in rows]
    assert places == [(seed, multiple) for seed in (5, 2) for multiple in (1, 3, 10)]
    assert [row["exact"] is None for row in rows] == [False, True, True] * 2
    assert rows[1]["reason"].startswith("the model ends at 16 tokens")
    assert rows[2]["reason"].startswith("the task ends at length 32: ")
    assert measure(folder, (1, 3, 10), 16) == rows

    # a test of no length at all is an error, and leaves the results
    before = (folder / RESULTS).read_bytes()
    message = r"^lengths=3 100: expected at least one .*\(length 12: the model .*; length 400: the"
    with pytest.raises(SpecError, match=message):
        measure(folder, (3, 100), 8)
    assert (folder / RESULTS).read_bytes() == before


@pytest.mark.parametrize(("ladder", "sequences"), [((1,), 8), ((1, 2, 3), 4), ((1, 4), 16)])
def test_results_that_covered_more_are_kept(
    ladder: tuple[float, ...], sequences: int, run: Path
) -> None:
    messages: list[str] = []
    measure(run, (1, 2), 8, say=messages.append)
    before = (run / RESULTS).read_bytes()
    assert messages == []
    measure(run, ladder, sequences, say=messages.append)
    assert (run / PREVIOUS_RESULTS).read_bytes() == before
    assert sequences_in(run / RESULTS) == sequences
    assert messages == [
        "results.json is replaced; the one before (lengths 1 2, 8 sequences each) is kept as "
        f"{run / PREVIOUS_RESULTS}"
    ]


def test_results_that_covered_no_more_are_replaced_silently(run: Path) -> None:
    messages: list[str] = []
    measure(run, (1, 2), 8, say=messages.append)
    for ladder, sequences in (((1, 2), 8), ((1, 2, 3), 16)):
        measure(run, ladder, sequences, say=messages.append)
    measure(run, (1,), 4, out=run.parent / "other.json", say=messages.append)
    say_step(run / RESULTS, 3)
    measure(run, (1,), 4, say=messages.append)  # those were of other weights
    (run / RESULTS).write_text("damaged")
    measure(run, (1,), 4, say=messages.append)
    assert messages == []
    assert not (run / PREVIOUS_RESULTS).exists()


def test_largest_results_are_the_ones_kept(run: Path) -> None:
    messages: list[str] = []
    measure(run, (1, 2), 8, say=messages.append)
    before = (run / RESULTS).read_bytes()
    for ladder in ((1,), (2,), (3,)):  # each has a length that the next has not
        measure(run, ladder, 4, say=messages.append)
        assert (run / PREVIOUS_RESULTS).read_bytes() == before
    assert "has a larger test (lengths 1 2, 8 sequences each)" in messages[-1]
    measure(run, (1, 2, 3), 16)
    measure(run, (1,), 4)
    assert sequences_in(run / PREVIOUS_RESULTS) == 16
    say_step(run / PREVIOUS_RESULTS, 3)  # one of other weights is not worth keeping
    measure(run, (2,), 4)
    assert sequences_in(run / PREVIOUS_RESULTS) == 4


def test_folder_without_a_run_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="not a run folder"):
        evaluate_run(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


def test_test_does_not_log_which_kernel_would_be_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A test is in fp32 whatever training was in, so the remark is of no use there."""
    folder = trained(tiny(steps=10, probe_every=0), tmp_path / "run")
    logger = logging.getLogger("outlast.kernels.lstm.op")
    whole = ladder_module._measure_in_portions

    def remark(*arguments: Any) -> Any:
        logger.info("a narrower LSTM would stay on chip")
        logger.warning("this one is slow")
        return whole(*arguments)

    monkeypatch.setattr(ladder_module, "_measure_in_portions", remark)
    with caplog.at_level(logging.INFO):
        evaluate_run(folder, Evaluation((1,), 8))
        logger.info("said in training")
    assert [record.message for record in caplog.records if record.name == logger.name] == [
        "this one is slow", "said in training"
    ]  # fmt: skip


def test_length_that_does_not_fit_in_memory_is_not_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = trained(tiny(steps=10, probe_every=0), tmp_path / "run")
    whole = ladder_module._measure_in_portions

    def short(model: Any, seeds: int, task: Any, batch: Any, chunk: int | None) -> Any:
        if batch.inputs.shape[1] > 20:
            raise MemoryError
        return whole(model, seeds, task, batch, chunk)

    monkeypatch.setattr(ladder_module, "_measure_in_portions", short)
    rows = evaluate_run(folder, Evaluation((1, 5), 8))
    assert [row["exact"] is None for row in rows] == [False, True] * 2
    (reason,) = {row["reason"] for row in rows if row["exact"] is None}
    assert reason == "the memory of cpu does not suffice for one sequence of 43 tokens"
