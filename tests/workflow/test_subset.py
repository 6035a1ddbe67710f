"""Some seeds of a run go on as a run of their own."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from outlast.cli import MISTAKE, main
from outlast.errors import OutlastError, RunFolderError
from outlast.runs.checkpoint import load_checkpoint, load_state, save_checkpoint
from outlast.runs.folder import CHECKPOINT, COPYING, METRICS, RESULTS, RUN
from outlast.runs.grids import packs_of, run_folders
from outlast.runs.records import read_metrics, read_results, read_run, write_run
from outlast.runs.spec import RunSpec
from outlast.workflow.create import create_runs
from outlast.workflow.subset import take_seeds
from tiny_runs import (
    CPU,
    assert_same_run,
    break_rows,
    create,
    fails,
    in_threes,
    killed_at_write,
    resume,
    train_until,
)

SEEDS = (3, 0, 7, 5)
METHODS: list[tuple[str, ...]] = [
    (),
    ("dat(switch=below(0.82), rewarm=3)", "ema(0.9)"),
    ("dat(switch=below(0.000001), latest=6, otherwise=retry)",),
    ("curriculum(from=2, by=loss, level=0.85)",),
]


def spec(*methods: str, seeds: tuple[int, ...] = SEEDS) -> RunSpec:
    return in_threes(*methods, seeds=seeds, steps=24, probe_every=6, checkpoint_every=12)


def stopped(folder: Path, *methods: str) -> Path:
    """A run that was asked to leave half way."""
    train_until(12, create(spec(*methods), folder))
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


@pytest.mark.parametrize("methods", METHODS, ids=" + ".join)
def test_seeds_taken_out_are_what_they_would_have_been(
    tmp_path: Path, methods: tuple[str, ...]
) -> None:
    """Up to rounding: matmuls over fewer seeds may be summed in another order."""
    whole, some = stopped(tmp_path / "whole", *methods), tmp_path / "some"
    before, chosen = files(whole), (7, 3)
    take_seeds(whole, chosen, some)
    assert files(whole) == before
    assert resume(whole)
    assert resume(some)
    assert read_run(some).seeds == chosen

    (tensors, state), (some_tensors, some_state) = map(load_checkpoint, (whole, some))
    rows = [SEEDS.index(seed) for seed in chosen]
    for name, table in some_tensors.items():
        torch.testing.assert_close(table, tensors[name][rows], rtol=0, atol=5e-4, msg=name)
    assert some_state.averaged == [state.averaged[row] for row in rows]
    lines, some_lines = read_metrics(whole), read_metrics(some)
    for seed in chosen:
        one, other = ([x for x in each if x.seed == seed] for each in (lines, some_lines))
        assert [x for x in one if x.step <= 12] == [x for x in other if x.step <= 12]
        kinds = [[(x.step, getattr(x, "event", None)) for x in each] for each in (one, other)]
        assert kinds[0] == kinds[1]
    assert {line.seed for line in some_lines} == set(chosen)


@pytest.mark.parametrize("methods", METHODS[1:3], ids=" + ".join)
def test_all_seeds_taken_out_are_the_run_bit_for_bit(
    tmp_path: Path, methods: tuple[str, ...]
) -> None:
    whole = stopped(tmp_path / "whole", *methods)
    take_seeds(whole, SEEDS, tmp_path / "all")
    assert resume(whole)
    assert resume(tmp_path / "all")
    assert_same_run(whole, tmp_path / "all")


def test_lines_past_the_checkpoint_are_not_taken(tmp_path: Path) -> None:
    whole = stopped(tmp_path / "whole")
    with (whole / METRICS).open("a") as file:
        file.write('{"step": 15, "seed": 3, "loss": {}}\n')
    take_seeds(whole, (3,), tmp_path / "some")
    assert max(line.step for line in read_metrics(tmp_path / "some")) == 12


def test_seeds_are_not_taken_before_the_first_checkpoint(tmp_path: Path) -> None:
    message = r"has no checkpoint.* start from the beginning.*--seeds 0,3'"
    with pytest.raises(RunFolderError, match=message):
        take_seeds(create(spec(), tmp_path / "whole"), (0, 3), tmp_path / "some")
    assert not (tmp_path / "some").exists()


def test_advice_is_not_to_resume_a_run_that_cannot_be_resumed(tmp_path: Path) -> None:
    whole = create(spec(), tmp_path / "whole")
    (whole / RESULTS).write_text("{}")
    with pytest.raises(RunFolderError) as refused:
        take_seeds(whole, (0, 3), tmp_path / "some")
    assert "has results but no checkpoint.safetensors" in str(refused.value)
    assert "Resume it" not in str(refused.value)
    with pytest.raises(RunFolderError, match="has results but no"):
        resume(whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": (0, 3, 5, 7)}, r"its seeds is \[0, 3, 5, 7\], this run's is \[3, 0, 7, 5\]"),
        ({"seeds": (3,)}, r"its seeds is \[3\]"),
        ({"settings": replace(spec().settings, lr=0.5)}, "its lr is 0.5, this run's is 0.002"),
    ],
)
def test_seeds_are_not_taken_from_a_checkpoint_of_another_run(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    other = create(replace(spec(), **change), tmp_path / "other")
    train_until(3, other)
    whole = create(spec(), tmp_path / "whole")
    shutil.copy(other / CHECKPOINT, whole)
    with pytest.raises(RunFolderError, match=f"is of another run: {message}"):
        take_seeds(whole, (7,), tmp_path / "some")
    assert not (tmp_path / "some").exists()


@pytest.mark.parametrize("write", [1, 2, 3, 4])
def test_seeds_taken_by_a_killed_command_are_taken_again(tmp_path: Path, write: int) -> None:
    """Killed before each of its files: the mark, the metrics, the checkpoint, the record."""
    whole, some = stopped(tmp_path / "whole"), tmp_path / "some"
    take_seeds(whole, (7, 3), tmp_path / "expected")
    assert killed_at_write(write, lambda: take_seeds(whole, (7, 3), some))
    assert RUN not in files(some)
    with pytest.raises(RunFolderError, match=r"some has no run.json: it is not a run folder"):
        run_folders(some)
    take_seeds(whole, (7, 3), some)
    assert_same_run(tmp_path / "expected", some)
    assert files(some).keys() == {RUN, METRICS, CHECKPOINT}


def test_new_run_is_created_over_seeds_that_were_half_taken(tmp_path: Path) -> None:
    half = tmp_path / "half"
    half.mkdir()
    for name in (COPYING, METRICS, CHECKPOINT):
        (half / name).write_text("")
    create(spec(), half)
    assert files(half).keys() == {RUN}


def test_full_disk_leaves_no_half_of_the_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = stopped(tmp_path / "whole")
    error = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        sync = fails(os.fsync, 3, error)
        patch.setattr(os, "fsync", lambda fd: sync(fd))
        with pytest.raises(RunFolderError, match=r"cannot write .*checkpoint.*No space left"):
            take_seeds(whole, (7,), tmp_path / "new" / "some")
    assert not (tmp_path / "new").exists()


def test_parked_seed_stays_parked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        break_rows(patch, {1: 5})
        whole = stopped(tmp_path / "whole")
    take_seeds(whole, (7, 0), tmp_path / "some")
    assert resume(tmp_path / "some")
    assert load_state(tmp_path / "some").parked == [None, 3]
    with pytest.raises(OutlastError, match=r"seeds=0: expected at least one that is not parked"):
        take_seeds(whole, (0,), tmp_path / "none")


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ((3, 4), r"seeds=3,4: expected some of those that .*whole has: 3, 0, 7, 5"),
        ((), "seeds=: expected at least one"),
        ((3, 3), r"seeds=\[3, 3\]: expected different"),
    ],
)
def test_error_names_seeds_that_are_not_there(
    tmp_path: Path, seeds: tuple[int, ...], message: str
) -> None:
    whole = create(spec(), tmp_path / "whole")
    with pytest.raises(OutlastError, match=message):
        take_seeds(whole, seeds, tmp_path / "some")
    assert not (tmp_path / "some").exists()


def test_seeds_are_taken_from_an_old_checkpoint_that_does_not_name_its_run(tmp_path: Path) -> None:
    whole = stopped(tmp_path / "whole")
    tensors, state = load_checkpoint(whole)
    state.run.clear()
    save_checkpoint(whole, tensors, state)
    take_seeds(whole, (7, 3), tmp_path / "some")
    assert load_state(tmp_path / "some").run == {"seeds": [7, 3]}
    assert resume(tmp_path / "some")


def test_seeds_taken_out_of_a_grid_are_a_run_of_their_own(tmp_path: Path) -> None:
    names = ("b", "a")
    create_runs([(spec(), tmp_path / name) for name in names], CPU, pack=names)
    train_until(3, tmp_path / "a")
    for out in ("some", "others"):
        take_seeds(tmp_path / "a", (3,), tmp_path / out)
    packs = [[tmp_path / name for name in names], [tmp_path / "others"], [tmp_path / "some"]]
    assert packs_of(run_folders(tmp_path)) == packs
    for out in ("some", "others"):  # as they were made before: with the record of the whole run
        record = read_run(tmp_path / out)
        write_run(tmp_path / out, msgspec.structs.replace(record, pack=names))
    assert packs_of(run_folders(tmp_path)) == packs


def test_seeds_are_not_taken_into_the_folder_of_a_run(tmp_path: Path) -> None:
    whole, other = (create(spec(), tmp_path / name) for name in ("whole", "other"))
    before = files(other)
    for out in (other, whole):
        with pytest.raises(OutlastError, match="holds a run already"):
            take_seeds(whole, (3,), out)
    assert files(other) == before


def test_resume_command_takes_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, other = (str(stopped(tmp_path / name)) for name in ("whole", "other"))
    some = tmp_path / "some"
    for words, fault in (
        (
            ["--seeds", "0"],
            "out=none: expected a new folder for the run of --seeds 0, such as --out ",
        ),
        (["--out", str(some)], f"seeds=none: expected those that are to go on in --out {some}"),
        ([whole, "--seeds", "0", "--out", str(some)], f"folder={whole} {whole}: expected diff"),
        (
            [other, "--seeds", "0", "--out", str(some)],
            f"--seeds and --out cannot be combined with several runs ({whole} {other})",
        ),
        (
            [other, "--seeds", "0"],
            f"--seeds and --out cannot be combined with several runs ({whole} {other})",
        ),
    ):
        assert main(["resume", whole, *words]) == MISTAKE
        assert capsys.readouterr().err.startswith(f"error: {fault}")
    assert not some.exists()
    assert main(["resume", whole, "--seeds", "0", "--out", other]) == MISTAKE
    error = capsys.readouterr().err
    assert f"go on with 'outlast resume {other}' or choose another --out" in error
    assert "--overwrite" not in error
    assert main(["resume", whole, "--seeds", "0,5", "--out", str(some), "--device", "cpu"]) == 0
    assert "seeds 0, 5" in capsys.readouterr().out
    assert {row["seed"] for row in read_results(some / RESULTS).rows} == {0, 5}


def test_record_with_parts_of_another_task_is_refused_before_a_folder_is_made(
    tmp_path: Path,
) -> None:
    folder = stopped(tmp_path / "run")
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"parts": ["running"]}))
    with pytest.raises(RunFolderError, match=r"parts=\('running',\): expected those of its task"):
        take_seeds(folder, [3], tmp_path / "new")
    assert not (tmp_path / "new").exists()
