"""A run begins with the last weights of another one."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import outlast
from outlast.cli import MISTAKE, main
from outlast.errors import OutlastError, RunFolderError, TrainingError
from outlast.methods import Event, Method
from outlast.registry import Entry, methods
from outlast.reporting.load import load_run
from outlast.reporting.run_facts import run_facts, train_command
from outlast.runs.checkpoint import AVERAGE, WEIGHTS, load_checkpoint, load_state
from outlast.runs.folder import CHECKPOINT, COPYING, RUN
from outlast.runs.records import read_run
from outlast.runs.spec import RunSpec
from outlast.workflow import start as start_module
from outlast.workflow.create import canonical
from outlast.workflow.start import read_start
from outlast.workflow.subset import take_seeds
from tiny_runs import (
    MODEL,
    TASK,
    assert_same_run,
    break_rows,
    create,
    halt,
    in_threes,
    killed_at_write,
    resume,
    train_until,
    trained,
)

SEEDS = (3, 0, 7)
OTHER_KEYS = TASK.replace("keys=32", "keys=33")
RETRY = "dat(switch=below(0.000001), latest=3, otherwise=retry)"


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, with an average of its weights beside them."""
    run = in_threes("dat(switch=3)", "ema(0.9)", seeds=SEEDS, steps=9)
    return trained(run, tmp_path_factory.mktemp("home") / "a")


def started(origin: Path, *methods: str, seeds: tuple[int, ...] = (7, 3)) -> RunSpec:
    run = in_threes(*methods, seeds=seeds, steps=12)
    return replace(run, start_from=read_start(origin, seeds))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(folder, lambda name: name.startswith(WEIGHTS))[0]


def test_seeds_begin_with_the_last_weights_and_nothing_else(origin: Path, tmp_path: Path) -> None:
    folder = create(started(origin, "ema(0.5)"), tmp_path / "b")
    tensors, state = load_checkpoint(folder)
    rows = [SEEDS.index(seed) for seed in (7, 3)]
    for name, table in weights(origin).items():
        assert torch.equal(tensors.pop(name), table[rows]), name
    assert AVERAGE in tensors
    assert not any(tensor.any() for tensor in tensors.values()), "optimiser and average are fresh"
    assert (state.step, state.averaged, state.probe) == (0, [0, 0], [{}, {}])
    record = read_run(folder)
    assert record.start_from is not None
    assert (record.start_from.run, record.start_from.step) == (str(origin), 9)
    assert record.start_from.seeds == (7, 3)
    assert record.start_from.checksums == read_start(origin, (3, 0, 7)).checksums[::-2]
    assert not (folder / COPYING).exists()

    trained_on = tmp_path / "c"
    plain = trained(replace(record.spec, start_from=None), tmp_path / "plain")
    assert resume(create(record.spec, trained_on))
    assert any(not torch.equal(a, weights(plain)[n]) for n, a in weights(trained_on).items())


@pytest.mark.parametrize("method", ["state_passing", "dat(switch=6)"])
def test_resumed_run_is_the_run_that_was_not_stopped(
    origin: Path, tmp_path: Path, method: str
) -> None:
    run = started(origin, method)
    whole, halted = trained(run, tmp_path / "whole"), create(run, tmp_path / "halted")
    home = tmp_path / "moved"
    shutil.copytree(origin, home)
    gone = create(replace(run, start_from=read_start(home, run.seeds)), tmp_path / "gone")
    shutil.rmtree(home)  # nothing is needed of it any more
    halt(halted)
    halt(halted)
    assert resume(halted)
    assert_same_run(whole, halted)
    assert resume(gone)
    assert all(torch.equal(table, weights(gone)[n]) for n, table in weights(whole).items())


def test_seeds_taken_out_of_it_go_on(origin: Path, tmp_path: Path) -> None:
    run = started(origin, seeds=(0, 3))
    whole = create(run, tmp_path / "whole")
    take_seeds(whole, (0, 3), tmp_path / "all")
    take_seeds(whole, (3,), tmp_path / "some")
    assert resume(whole)
    assert resume(tmp_path / "all")
    assert_same_run(whole, tmp_path / "all")
    assert resume(tmp_path / "some")


def test_without_its_first_checkpoint_it_is_not_begun_anew(origin: Path, tmp_path: Path) -> None:
    folder = create(started(origin), tmp_path / "b")
    (folder / CHECKPOINT).unlink()
    with pytest.raises(RunFolderError, match=r"has no checkpoint.* it starts from: put it back"):
        resume(folder)


def test_checkpoint_of_another_start_is_refused(origin: Path, tmp_path: Path) -> None:
    folders = [create(started(origin), tmp_path / "b")]
    folders.append(create(replace(started(origin), start_from=None), tmp_path / "plain"))
    shutil.copy(folders[0] / CHECKPOINT, folders[1])
    with pytest.raises(RunFolderError, match="is of another run: its start_from is"):
        resume(folders[1])


@pytest.mark.parametrize("write", [1, 2, 3])
def test_killed_creation_leaves_no_run(origin: Path, tmp_path: Path, write: int) -> None:
    """Killed before each of its files: the mark, the checkpoint, the record."""
    run, folder = started(origin), tmp_path / "b"
    create(replace(run, start_from=None), folder)  # one that is to be overwritten
    assert killed_at_write(write, lambda: create(run, folder, overwrite=True))
    assert not (folder / RUN).exists()
    create(run, folder)
    assert_same_run_at_start(folder, create(run, tmp_path / "expected"))


def assert_same_run_at_start(one: Path, other: Path) -> None:
    assert load_state(one) == load_state(other)
    assert {p.name for p in one.iterdir()} == {p.name for p in other.iterdir()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "lstm > mlp @ 16, head=2"}, r"model=lstm > mlp.*: its model is .*attention"),
        ({"task": OTHER_KEYS}, r"keys=33.*: its task is .*keys=32.*tokens here are \d+ there"),
        ({"methods": (RETRY,)}, r"=retry\) cannot .* start_from=.*: a retry draws fresh weights"),
    ],
)
def test_what_does_not_fit_is_refused(
    origin: Path, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    with pytest.raises(OutlastError, match=message):
        create(replace(started(origin), **change), tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_other_length_of_the_same_task_fits(origin: Path, tmp_path: Path) -> None:
    run = replace(started(origin), task=TASK.replace("length=4", "length=8"))
    assert resume(create(run, tmp_path / "b"))


def test_words_of_tokens_must_be_the_same() -> None:
    one, other = (outlast.task(f"composite(group={g}, keys=32, length=4)") for g in ("S3", "S3"))
    assert start_module._other_tokens(one, other) == ""
    other.word = lambda token: "x"  # type: ignore[method-assign, assignment]
    assert "here and 'x' there" in start_module._other_tokens(one, other)


def test_run_that_is_not_at_its_end_is_refused(tmp_path: Path) -> None:
    folder = create(in_threes(steps=9), tmp_path / "a")
    with pytest.raises(RunFolderError, match=r"a has no checkpoint.safetensors: there are no weig"):
        read_start(folder, (0,))
    train_until(3, folder)
    with pytest.raises(RunFolderError, match=r"is at step 3 of 9: finish it by 'outlast resume"):
        read_start(folder, (0,))
    with pytest.raises(OutlastError, match=r"start_from=.*none: expected .*; it has no run.json"):
        read_start(tmp_path / "none", (0,))


def test_seeds_that_are_missing_or_diverged_are_refused(
    origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OutlastError, match=r"seeds=0, 1: .*of .*a that it has: 3, 0, 7"):
        read_start(origin, (0, 1))
    with monkeypatch.context() as patch:
        break_rows(patch, {1: 5})
        half = trained(in_threes(seeds=SEEDS, steps=9), tmp_path / "half")
    with pytest.raises(OutlastError, match=r"seeds=3, 0: .*that have not diverged there: 3, 7"):
        read_start(half, (3, 0))
    create(started(half), tmp_path / "b")


def test_its_own_folder_is_not_overwritten(tmp_path: Path) -> None:
    folder = trained(in_threes(steps=3), tmp_path / "a")
    run = started(folder, seeds=(0, 1))
    with pytest.raises(OutlastError, match="holds a run already"):
        create(run, folder)
    with pytest.raises(OutlastError, match=r"out=.*expected another folder than that of the run"):
        create(run, tmp_path / "x" / ".." / "a", overwrite=True)
    assert load_state(folder).step == 3


def test_method_that_asks_for_fresh_weights_unannounced_is_an_error(
    origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fresh(Method):
        """Asks for fresh weights, and does not say so beforehand."""

        def observe(self, *_: object) -> list[Event]:
            return [Event("restart", {"attempt": 1})]

    monkeypatch.setitem(methods._entries, "fresh", Entry("fresh", Fresh, "a test"))
    with pytest.raises(TrainingError, match="fresh weights for seed 7, and the run starts"):
        resume(create(started(origin, "fresh"), tmp_path / "b"))


def test_older_record_and_identity_are_as_they_were(origin: Path) -> None:
    values = json.loads((origin / RUN).read_text())
    assert values.pop("start_from") is None
    (origin / RUN).write_text(json.dumps(values))
    assert read_run(origin).start_from is None
    assert "start_from" not in read_run(origin).spec.identity


def test_command_takes_what_is_not_given_from_the_run(
    origin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--steps", "2", "--steps-per-block", "2", "--probe-every", "0"]
    few += ["--checkpoint-every", "2", "--batch-size", "4", "--device", "cpu"]
    words = ["train", "--start-from", str(origin), *few]
    assert main([*words, "--method", "state_passing", "--out", str(tmp_path / "b")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "starts from the weights of step 9 of" in said
    record = read_run(tmp_path / "b")
    assert (record.short.task, record.short.model, record.seeds) == (TASK, MODEL, SEEDS)
    assert record.short.methods == ("state_passing",)
    assert record.settings.steps == 2
    run = load_run(tmp_path / "b")
    assert f"--start-from {origin} " in train_command(run)
    assert dict(run_facts(run))["starts from"] == f"step 9 of {origin}"

    # the same in Python, and by the seeds that are wanted alone
    rows = outlast.fit(
        start_from=origin, out=tmp_path / "c", methods="state_passing", seeds=SEEDS, device="cpu",
        steps=2, steps_per_block=2, probe_every=0, checkpoint_every=2, batch_size=4,
    )  # fmt: skip
    assert_same_run(tmp_path / "b", tmp_path / "c")
    assert {row["seed"] for row in rows} == set(SEEDS)
    assert main([*words, "--seeds", "7", "--grid", "lr=0.1,0.2", "--out", str(tmp_path / "g")]) == 0
    for name in ("lr=0.1", "lr=0.2"):
        assert read_run(tmp_path / "g" / name).seeds == (7,)
        assert load_state(tmp_path / "g" / name).step == 2


def test_preset_beside_it_is_refused(
    origin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "b"
    words = ["train", "--preset", "reach", "--start-from", str(origin), "--out", str(out)]
    assert main(words) == MISTAKE
    assert "--preset reach cannot be combined with --start-from" in capsys.readouterr().err
    with pytest.raises(OutlastError, match="preset=reach cannot be combined with start_from="):
        outlast.fit(preset="reach", start_from=origin, out=out)
    assert not out.exists()


def test_precision_is_that_of_the_run(tmp_path: Path) -> None:
    folder = trained(in_threes(steps=3, precision="bf16"), tmp_path / "a")
    outlast.fit(start_from=folder, out=tmp_path / "b", device="cpu", steps=1, probe_every=0)
    assert read_run(tmp_path / "b").settings.precision == "bf16"
    assert read_run(tmp_path / "b").seeds == (0, 1)
    assert canonical(read_run(tmp_path / "b").spec).start_from is not None
