"""The page as files, and the command line."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from outlast.cli import main
from outlast.errors import RunFolderError, SpecError
from outlast.view import shipped
from outlast.view.bundle import write_bundle
from outlast.view.catalogue import find_entries
from outlast.view.library import Library
from outlast.view.router import Router


@pytest.fixture(scope="module")
def bundle(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "page"
    left_out = write_bundle(library, folder, (1, 20), 2, lambda _: None)
    tasks = [library.sequence(f"study--{arm}", 0, "draw-4-0")["task"] for arm in ("dat", "tra")]
    for words, label, task in zip(left_out, ("DAT", "<b>TRA</b>"), tasks, strict=True):
        assert re.fullmatch(
            rf"hybrid,? {label}, sequences of length 80: .* from 1 to 32 for .*", words
        )
        assert task in words
    return folder


def test_files_of_a_bundle_are_the_answers_of_the_server(bundle: Path, library: Library) -> None:
    answer, compared = Router(library), 0
    for path in bundle.rglob("*"):
        name = path.relative_to(bundle).as_posix()
        if path.is_file() and name != "data/runs.json":
            reply = answer("" if name == "index.html" else name)
            assert (reply.status, reply.body) == (200, path.read_bytes()), name
            compared += 1
    assert compared > 30


def test_bundle_says_which_sequences_it_has_and_where_nothing_lies(
    bundle: Path, runs: Path
) -> None:
    about = json.loads((bundle / "data/runs.json").read_text())
    assert about["live"] is False
    assert about["sequences"]["study--dat"] == ["draw-4-0", "draw-4-1"]
    assert about["sequences"]["lstm"] == ["draw-4-0", "draw-4-1", "draw-80-0", "draw-80-1"]
    assert about["sequences"]["new"] == []
    assert (bundle / "data/sequence/study--dat/0/draw-4-0.json").is_file()
    assert (bundle / "data/map/study--dat/0/draw-4-0/0-1.json").is_file()
    assert [run["id"] for run in about["runs"]] == ["lstm", "new", "study--dat", "study--tra"]
    answers = (bundle / "data").rglob("*.json")
    assert not any(str(runs) in path.read_text() for path in answers)


def test_bundle_has_examples_of_the_anatomy_of_the_first_seed(bundle: Path) -> None:
    about = json.loads((bundle / "data/runs.json").read_text())
    assert about["seeds"] == {"lstm": [0], "study--dat": [0], "study--tra": [0]}
    (run,) = about["examples"]
    examples = about["examples"][run]
    assert (run, examples["lengths"]) == ("study--dat", [4, 8])
    cells: dict[tuple[int, str, str], int] = {}
    for length in (4, 8):
        found = json.loads((bundle / f"data/examples/{run}/0/{length}.json").read_text())
        for row in found["examples"]:
            name = f"draw-{length}-{row['row']}-of-{found['sequences']}"
            cell = (length, row["part"], row["cause"])
            cells[cell] = cells.get(cell, 0) + (name in examples["sequences"])
    assert cells
    assert all(cells.values())  # an example of each cause can be opened
    assert len(examples["sequences"]) <= 2 * len(cells)  # two of each were asked for
    for name in examples["sequences"]:
        assert (bundle / f"data/sequence/{run}/0/{name}.json").is_file()
        assert (bundle / f"data/attention/{run}/0/{name}/0.json").is_file()


def test_examples_of_a_bundle_are_bounded_in_size(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(find_entries([runs / "study/dat"]))
    monkeypatch.setattr("outlast.view.bundle.MOST_BYTES", 0)
    (words,) = write_bundle(library, tmp_path / "page", (1,), 1, _unheard)
    assert re.fullmatch(r".*, \d+ sequences of the failure anatomy: a bundle takes .*", words)
    about = json.loads((tmp_path / "page/data/runs.json").read_text())
    assert len(about["examples"]["dat"]["sequences"]) == 1
    monkeypatch.setattr("outlast.view.bundle.MOST_TOKENS", 15)
    left_out = write_bundle(library, tmp_path / "page", (1,), 1, _unheard)
    assert "examples of length 8: it has 19 tokens, and a bundle takes 15" in " ".join(left_out)
    about = json.loads((tmp_path / "page/data/runs.json").read_text())
    assert about["examples"]["dat"]["lengths"] == [4]


def test_bundle_replaces_a_bundle_and_nothing_else(library: Library, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="is not empty and holds no bundle"):
        write_bundle(library, tmp_path, (1,), 0, lambda _: None)
    page = tmp_path / "page"
    for _ in range(2):
        assert write_bundle(library, page, (1,), 0, lambda _: None) == []
    with pytest.raises(SpecError, match="sequences=-1: expected"):
        write_bundle(library, page, (1,), -1, lambda _: None)


def test_bundle_has_nothing_of_the_one_it_replaces_and_leaves_other_files(
    runs: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page"
    for names in (("lstm", "new"), ("new",)):
        write_bundle(Library(find_entries([runs / n for n in names])), page, (1,), 0, _unheard)
        (page / "notes.txt").write_text("mine")
    assert {path.stem for path in (page / "data/run").iterdir()} == {"new"}
    assert (page / "notes.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["page"]


def test_bundle_that_was_interrupted_leaves_what_was_there(
    library: Library, tmp_path: Path
) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    page = tmp_path / "page"
    with pytest.raises(KeyboardInterrupt):
        write_bundle(library, page, (1,), 0, interrupt)
    assert list(tmp_path.iterdir()) == []
    write_bundle(library, page, (1,), 0, _unheard)
    before = (page / "data/runs.json").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        write_bundle(library, page, (1,), 0, interrupt)
    assert (page / "data/runs.json").read_bytes() == before


def test_what_cannot_be_answered_is_said_to_be_left_out(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "study/dat", tmp_path / "dat")
    (tmp_path / "dat/analysis/anatomy.json").write_text("{}")
    library = Library(find_entries([tmp_path / "dat"]))
    (words,) = write_bundle(library, tmp_path / "page", (1,), 0, _unheard)
    assert "anatomy.json: its format is None" in words


def test_bundle_inside_a_folder_is_no_run(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "new", tmp_path / "run")
    write_bundle(Library(find_entries([tmp_path])), tmp_path / "page", (1,), 0, _unheard)
    assert (tmp_path / "page/data/run/run.json").is_file()
    assert [entry.id for entry in find_entries([tmp_path])] == ["run"]
    with pytest.raises(RunFolderError, match="there is no run"):
        find_entries([tmp_path / "page"])


def _unheard(_: str) -> None:
    pass


def test_command_writes_a_bundle_and_names_what_it_left_out(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page"
    assert main(["view", str(runs), "--bundle", str(page), "--sequences", "0"]) == 0
    said = capsys.readouterr().out
    assert "left out: cannot read" in said
    assert "python3 -m http.server --bind 127.0.0.1" in said
    assert (page / "index.html").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("old",), "its format is 99; this version of outlast reads 1 and 2"),
        (("missing",), "cannot look into"),
        (("new", "--port", "70000"), "port=70000: expected a whole number from 0 to 65535"),
        (("new", "--bundle", ""), "expected the name of a folder"),
        (("new", "--bundle", "b", "--lengths", "0"), "lengths=0.0: expected multiples of the"),
        (("new", "--bundle", "b", "--lengths", "1", "1"), "lengths=1 1: expected each multiple"),
    ],
)
def test_command_refuses_what_it_cannot_show(
    runs: Path,
    words: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(runs)
    assert main(["view", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_command_serves_until_it_is_stopped(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)

    def stop(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("outlast.view.server.Server.serve_forever", stop)
    main(["view", str(runs / "lstm")])
    said = capsys.readouterr()
    assert opened
    assert f"the page: {opened[0]}" in said.out
    main(["view", str(runs / "lstm"), "--no-browser"])
    assert len(opened) == 1


def test_every_file_of_the_page_is_part_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["outlast"]
    for name in shipped.names():
        assert any(fnmatch(f"view/assets/{name}", pattern) for pattern in patterns), name
