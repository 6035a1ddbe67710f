"""What `outlast analyse` refuses, and in which words; too few sequences for one analysis."""

from __future__ import annotations

from pathlib import Path

import pytest
from shell import Shell

import outlast
from outlast.analysis.runs import ANALYSES

ONE = ("--sequences", "1", "--lengths", "1")
WORDS = "--sequences 1: covariance needs 2 or more"


@pytest.fixture
def hybrid(here: Path) -> Path:
    task = "composite(modulus=2, keys=12, queries=2, length=3)"
    layout = "lstm > attention(heads=2) > mlp @ 16"
    outlast.fit(task, layout, here / "hybrid", seeds="0", steps=2, batch_size=4)
    return here / "hybrid"


def tables(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("analysis/*.json")}


def test_analysis_that_is_named_is_refused_before_any_table_is_written(
    hybrid: Path, run: Shell
) -> None:
    result = run("analyse", hybrid, "--only", "sharpness", "covariance", *ONE)
    assert result.code == 2
    assert result.err == f"error: {WORDS}\n"
    assert tables(hybrid) == set()


def test_analysis_that_is_not_named_is_left_out_and_the_others_are_made(
    hybrid: Path, shown: Shell
) -> None:
    result = shown("analyse", hybrid, *ONE)
    assert f"\ncovariance: left out, {WORDS}\n" in result.out
    assert result.err == ""
    assert tables(hybrid) == set(ANALYSES) - {"covariance"}


def test_two_sequences_are_enough(hybrid: Path, shown: Shell) -> None:
    shown("analyse", hybrid, "--only", "covariance", "--sequences", "2", "--lengths", "1")
    assert tables(hybrid) == {"covariance"}


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--sequences", "sequences=0: expected a whole number >= 1"),
        ("--lengths", "lengths=0.0: expected multiples of the training length"),
    ],
)
def test_number_out_of_range_is_named_without_a_type(
    here: Path, run: Shell, flag: str, words: str
) -> None:
    assert words in run("analyse", here, flag, "0").err


def test_tested_run_without_its_checkpoint_says_that_it_is_missing(
    hybrid: Path, run: Shell
) -> None:
    (hybrid / "checkpoint.safetensors").unlink()
    said = " ".join(run("analyse", hybrid, "--only", "sharpness").err.split())
    assert "no checkpoint.safetensors: the file is missing, as the run was tested" in said
