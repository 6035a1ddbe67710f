"""Two attempts at one pack: one is recorded, and a kill at any moment loses nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from outlast.errors import RunFolderError
from outlast.runs.checkpoint import load_state
from outlast.runs.folder import LOCK, RUN
from outlast.sweep import attempts
from outlast.sweep.attempts import CLAIM, PackFolder
from tiny_runs import assert_same_run, create, fails, halt, resume, tiny, trained


def pack(out: Path, *names: str) -> PackFolder:
    return PackFolder(out, "pack", names or ("a", "b"))


def finished(folder: Path, text: str) -> Path:
    """An attempt at its end, with runs that say whose they are."""
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / RUN).write_text(text)
    return folder


def test_one_of_two_attempts_is_recorded(tmp_path: Path) -> None:
    here = pack(tmp_path)
    first, second = finished(here.begin(), "first"), finished(here.begin(), "second")
    assert first != second
    assert here.finish(first)
    assert not here.finish(second)
    assert not second.exists()
    here.record()
    assert [(tmp_path / name / RUN).read_text() for name in "ab"] == ["first", "first"]


def test_attempt_that_ends_after_another_was_recorded_is_dropped(tmp_path: Path) -> None:
    here = pack(tmp_path)
    first, late = finished(here.begin(), "first"), here.begin()
    assert here.finish(first)
    here.record()
    late.mkdir(parents=True)  # a worker that was thought dead goes on writing
    finished(late, "late")
    assert not here.finish(late)
    assert (tmp_path / "a" / RUN).read_text() == "first"
    assert [path.name for path in here.claim.iterdir()] == [CLAIM]


def test_record_that_was_killed_half_way_goes_on(tmp_path: Path) -> None:
    here = pack(tmp_path)
    assert here.finish(finished(here.begin(), "it"))
    (here.claim / "a").rename(tmp_path / "a")
    here.record()
    here.record()  # and again, as after a kill just before the end
    assert [(tmp_path / name / RUN).read_text() for name in "ab"] == ["it", "it"]


def test_recorded_run_that_was_deleted_is_named(tmp_path: Path) -> None:
    here = pack(tmp_path)
    assert here.finish(finished(here.begin(), "it"))
    here.record()
    (tmp_path / "b").rename(tmp_path / "c")
    with pytest.raises(RunFolderError, match="b was trained by this sweep and is gone"):
        here.record()


def test_folder_in_the_place_of_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with pytest.raises(RunFolderError, match="b is there already"):
        pack(tmp_path).require_free()


def test_attempt_goes_on_from_the_checkpoint_of_the_one_before(tmp_path: Path) -> None:
    run = tiny(keep_checkpoints="every=5", steps=20)
    here = pack(tmp_path, "a")
    lost = here.begin()
    halt(create(run, lost / "a"))
    assert load_state(lost / "a").step == 10
    behind = here.begin()
    assert load_state(behind / "a").step == 10
    assert resume(behind / "a")
    whole = trained(run, tmp_path / "whole")
    assert_same_run(whole, behind / "a")
    kept = [sorted(p.name for p in (f / "checkpoints").iterdir()) for f in (whole, behind / "a")]
    assert kept[0] == kept[1]
    assert load_state(lost / "a").step == 10  # whoever wrote it may still be at work


def test_copy_that_was_killed_half_way_is_never_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = pack(tmp_path, "a")
    begun = here.begin()
    halt(create(tiny(keep_checkpoints="every=5", steps=20), begun / "a"))
    lost = begun.rename(begun.with_name("~lost"))  # the last by its name

    def files(folder: Path) -> dict[str, bytes]:
        paths = [path for path in folder.rglob("*") if path.is_file() and path.name != LOCK]
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

    for number in range(1, len(files(lost)) + 1):
        with monkeypatch.context() as patch:
            copy = fails(shutil.copyfile, number, KeyboardInterrupt())
            patch.setattr(attempts.shutil, "copyfile", copy)
            with pytest.raises(KeyboardInterrupt):
                here.begin()
        whole = here.begin()
        assert files(whole) == files(lost)
        shutil.rmtree(whole)


def test_attempt_without_a_checkpoint_is_begun_anew(tmp_path: Path) -> None:
    here = pack(tmp_path, "a")
    create(tiny(), here.begin() / "a")
    assert list(here.begin().iterdir()) == []
