"""What the page is told about runs: which there are, their curves, their failures."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import OutlastError, RunFolderError
from outlast.runs.analyses import AnalysisTable, Row, write_analysis
from outlast.runs.folder import write_json
from outlast.runs.records import MetricLine, append_metrics, read_results
from outlast.view.anatomy import read_anatomy
from outlast.view.catalogue import find_entries
from outlast.view.curves import POINTS, read_curves
from outlast.view.library import Library
from outlast.view.router import Router
from tiny_runs import create, tiny
from view_runs import library_of


def answer(library: Library, path: str) -> tuple[int, Any]:
    reply = Router(library)(path)
    return reply.status, json.loads(reply.body)


def test_runs_of_studies_and_loose_ones_are_found_below_a_folder(library: Library) -> None:
    runs = {run["id"]: run for run in library.runs()["runs"]}
    assert list(runs) == ["lstm", "new", "old", "study--dat", "study--tra"]
    assert runs["study--dat"]["study"] == "Two hybrids"
    assert runs["study--dat"]["label"] == "hybrid, DAT"
    assert runs["study--dat"]["seeds"] == (0, 1)
    assert (runs["lstm"]["trained"], runs["new"]["trained"]) == (True, False)


def test_run_of_another_version_is_listed_with_its_problem(library: Library) -> None:
    (old,) = [run for run in library.runs()["runs"] if run["id"] == "old"]
    assert "its format is 99" in old["problem"]
    status, values = answer(library, "data/sequence/old/0/draw-4-0.json")
    assert status == 422
    assert "its format is 99" in values["error"]


def test_folder_of_another_version_alone_is_refused(runs: Path) -> None:
    with pytest.raises(RunFolderError, match="its format is 99; this version of outlast reads"):
        find_entries([runs / "old"])


def test_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"there is no run \(run.json\) and no study"):
        find_entries([tmp_path])
    with pytest.raises(RunFolderError, match="cannot look into"):
        find_entries([tmp_path / "missing"])


def test_runs_of_the_same_name_get_ids_and_labels_of_their_own(runs: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(runs / "new", tmp_path / name / "new")
    folders = [tmp_path / "a" / "new", tmp_path / "b" / "new"]
    entries = find_entries(folders)
    assert [entry.id for entry in entries] == ["a--new", "b--new"]
    assert len({entry.label for entry in entries}) == 2
    assert [entry.id for entry in find_entries(folders[::-1])] == ["b--new", "a--new"]
    assert [entry.id for entry in find_entries(folders[1:])] == ["new"]


def test_run_that_is_given_several_ways_is_listed_once(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "new", tmp_path / "a/new")
    (tmp_path / "a/above").symlink_to(tmp_path, target_is_directory=True)
    entries = find_entries([tmp_path, tmp_path / "a/new", tmp_path / "a/../a"])
    assert [entry.id for entry in entries] == ["new"]


def test_runs_with_numbers_stand_in_the_order_of_the_numbers(runs: Path, tmp_path: Path) -> None:
    names = ["r-b", "r1", "r01", "r2", "r10", "r10-x2", "r10-x10", "r100", "ra", "r\u00b2"]
    for name in names:
        shutil.copytree(runs / "new", tmp_path / name)
    found = [entry.folder.name for entry in find_entries([tmp_path])]
    assert found == ["r-b", "r01", "r1", *names[3:]]


def test_signs_that_addresses_do_not_take_make_no_two_ids_alike(runs: Path, tmp_path: Path) -> None:
    names = ("new run", "new+run")
    folders = [Path(shutil.copytree(runs / "new", tmp_path / name)) for name in names]
    ids = {entry.folder: entry.id for entry in find_entries(folders)}
    assert len(set(ids.values())) == 2
    assert {entry.folder: entry.id for entry in find_entries(folders[::-1])} == ids


def test_curves_have_every_row_of_the_results(library: Library, runs: Path) -> None:
    curves = library.curves("study--dat")
    rows = read_results(runs / "study/dat/results.json").rows
    assert [(r["seed"], r["multiple"], r["exact"]) for r in curves["rows"]] == [
        (r["seed"], r["multiple"], r["exact"]) for r in rows
    ]
    assert set(curves["losses"]) == {"state", "recall", "running"}
    assert set(curves["losses"]["state"]) == {"0", "1"}
    assert curves["losses"]["state"]["0"][0] == [5, 10, 15, 20, 25, 30]
    assert {(e["event"], e["step"]) for e in curves["events"]} == {("switch", 10)}
    assert curves["status"] == ""
    assert library.curves("new")["status"] == "not tested yet; at step 0 of 30"


def test_curves_are_read_anew_when_the_files_change(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dat"
    shutil.copytree(runs / "study/dat", folder)
    library = library_of(folder)
    assert library.curves("dat") is library.curves("dat")
    append_metrics(folder, [MetricLine(35, 0, {"state": 0.5})])
    assert library.curves("dat")["losses"]["state"]["0"][0][-1] == 35


def test_page_of_many_runs_reads_each_once(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [run["id"] for run in library.runs()["runs"] if not run["problem"]]
    curves = {name: library.curves(name) for name in names}
    assert all(library.curves(name) is curves[name] for name in names)


def test_seeds_of_different_lengths_are_thinned_at_the_same_steps(
    runs: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(runs / "new", tmp_path / "run"))
    ends = (800, 400)
    append_metrics(
        folder,
        [
            MetricLine(step, seed, {"state": 1 / step})
            for seed, end in enumerate(ends)
            for step in range(1, end + 1)
        ],
    )
    curves = read_curves(folder)["losses"]["state"]
    (long, _), (short, _) = curves["0"], curves["1"]
    assert short == [step for step in long if step <= 400]
    assert (long[-1], short[-1]) == ends
    assert len(long) <= POINTS + len(ends)


def test_long_curves_are_thinned_and_numbers_that_are_not_finite_are_left_out(
    runs: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs / "new", folder)
    losses = [math.nan, *(1 / step for step in range(1, 1000))]
    append_metrics(folder, [MetricLine(i, 0, {"state": loss}) for i, loss in enumerate(losses, 1)])
    steps, values = read_curves(folder)["losses"]["state"]["0"]
    assert len(steps) == len(values) <= POINTS + 1
    assert (steps[-1], values[-1]) == (1000, pytest.approx(1 / 999))
    json.dumps(read_curves(folder), allow_nan=False)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("data/run/nothing.json", "run=nothing: expected a run of this page: lstm"),
        ("data/sequence/study--dat/7/draw-4-0.json", "seed=7: expected one of 0, 1"),
        ("data/sequence/new/0/draw-4-0.json", "nothing was saved there yet"),
        ("data/sequence/study--dat/0/draw-99-0.json", "length=99: expected lengths from 1 to 32"),
        ("data/sequence/lstm/0/draw-99999-0.json", "the page steps through 20,000 at most"),
        ("data/sequence/lstm/0/draw-4-256.json", "number=256: expected a number below 256"),
        ("data/sequence/lstm/0/own-1 2.json", "sequence=2: expected words of parity"),
        ("data/sequence/lstm/0/own- .json", "expected words with a space between, such as"),
        ("data/sequence/lstm/0/something.json", "sequence=something: expected draw-LENGTH-NUMBER"),
        ("data/attention/study--dat/0/draw-4-0/9.json", "attention=9: expected a number below 1"),
        ("data/sequence/lstm/0/draw-4-1-of-257.json", "of=257: expected 1 to 256 sequences"),
        ("data/examples/lstm/0/99999999.json", "the page steps through 20,000 at most"),
        ("data/map/study--dat/0/draw-4-0/0-2.json", "head=2: expected a number below 2"),
        ("data/map/lstm/0/draw-4-0/0-0.json", "layer=0: expected a number below 0"),
    ],
)
def test_bad_wish_gets_a_message_that_names_it(library: Library, path: str, words: str) -> None:
    status, values = answer(library, path)
    assert status == 422
    assert words in values["error"]


def test_lengths_of_a_run_are_known_without_a_model(library: Library) -> None:
    status, values = answer(library, "data/lengths/new.json")
    assert (status, values["trained"]) == (200, 4)
    assert (values["lengths"][0], values["lengths"][-1]) == (1, 32)
    assert "its format is 99" in answer(library, "data/lengths/old.json")[1]["error"]


def test_memory_that_does_not_suffice_is_a_message(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(library, "sequence", fail)
    status, values = answer(library, "data/sequence/lstm/0/draw-4-0.json")
    assert status == 507
    assert "memory does not suffice" in values["error"]


def test_unexpected_error_is_a_short_message(
    library: Library, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("step")

    monkeypatch.setattr(library, "anatomy", fail)
    status, values = answer(library, "data/anatomy/lstm.json")
    assert status == 500
    assert values["error"] == "this went wrong in outlast itself: KeyError: 'step'"
    assert values["error"] in caplog.text


def test_number_of_very_many_digits_is_no_path(library: Library) -> None:
    path = f"data/map/study--dat/0/draw-4-0/0-{'9' * 5000}.json"
    assert answer(library, path)[0] == 404


def test_failure_anatomy_has_the_rows_of_the_last_step(library: Library) -> None:
    table = library.anatomy("study--dat")
    assert len(table["rows"]) == 2 * 2 * 3  # seeds, lengths, causes
    assert table["rows"][0] == {
        "seed": 0, "length": 4, "part": "recall", "cause": "right", "share": 0.5,
    }  # fmt: skip
    assert table["note"] == "The models of the last checkpoint."
    assert not table["wanting"]
    assert library.anatomy("lstm") == {
        "rows": [], "message": "No failure anatomy yet.", "wanting": True,
    }  # fmt: skip


def test_run_that_cannot_be_analysed_says_why(library: Library, tmp_path: Path) -> None:
    words = "No failure anatomy: this run has no checkpoint yet."
    assert library.anatomy("new") == {"rows": [], "message": words, "wanting": False}
    (tmp_path / "words.txt").write_text("\n\n".join(f"{i} " * 300 for i in range(9)))
    text = f'text("{tmp_path / "words.txt"}", length=8)'
    folder = create(tiny(task=text, model="lstm > mlp @ 16"), tmp_path / "run")
    (folder / "checkpoint.safetensors").touch()
    words = "No failure anatomy: its answers are not right or wrong."
    assert read_anatomy(folder) == {"rows": [], "message": words, "wanting": False}


def test_tested_run_without_its_checkpoint_says_that_it_is_missing(
    runs: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(runs / "study/dat", tmp_path / "dat"))
    (folder / "checkpoint.safetensors").unlink()
    shutil.rmtree(folder / "analysis")
    library = library_of(folder)
    assert library.anatomy("dat")["message"] == "No failure anatomy: this run has no checkpoint."
    words = "has no checkpoint.safetensors: the file is missing, as the run was tested"
    assert words in answer(library, "data/sequence/dat/0/draw-4-0.json")[1]["error"]


def test_command_that_analyses_a_run_has_its_path_as_it_was_given(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(runs / "new", tmp_path / "my runs/new")
    monkeypatch.chdir(tmp_path)
    (run,) = library_of(Path("my runs")).runs()["runs"]
    assert run["analyse"] == "outlast analyse 'my runs/new' --only anatomy"


def test_anatomy_from_before_further_training_says_so(runs: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs / "lstm", tmp_path / "lstm"))
    row: Row = {"seed": 0, "step": None, "multiple": 1.0, "length": 4, "part": "parity"}
    write_analysis(
        folder, AnalysisTable(analysis="anatomy", rows=[row | {"cause": "right", "share": 1.0}])
    )
    path = folder / "analysis/anatomy.json"
    write_json(path, json.loads(path.read_text()) | {"trained": 3})
    old = read_anatomy(folder)
    assert old["note"] == "The anatomy is of step 3, the run is at step 5."
    assert old["wanting"]


def test_damaged_anatomy_names_its_file_and_row(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dat"
    shutil.copytree(runs / "study/dat", folder)
    path = folder / "analysis/anatomy.json"
    table = json.loads(path.read_text())
    del table["rows"][1]["share"]
    path.write_text(json.dumps(table))
    with pytest.raises(OutlastError, match=r"anatomy.json: rows\[1\] has no share"):
        library_of(folder).anatomy("dat")


def test_listing_runs_reads_no_metrics_and_no_results(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("the list of runs has read more than run.json")

    monkeypatch.setattr("outlast.view.curves.load_run", fail)
    monkeypatch.setattr("outlast.view.live.load", fail)
    assert len(library_of(runs).runs()["runs"]) == 5
