"""Weights that are kept along the way: which there are, what they hold, and how they are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from outlast.errors import OutlastError, RunFolderError, SpecError
from outlast.runs.checkpoint import WEIGHTS, load_checkpoint
from outlast.runs.folder import KEPT, kept_file
from outlast.runs.kept import kept_seeds, kept_steps, load_kept, save_kept
from outlast.runs.records import read_metrics, read_run
from outlast.runs.spec import RunSpec
from outlast.workflow.grid import expand_grid
from outlast.workflow.load import load, open_run
from outlast.workflow.subset import take_seeds
from tiny_runs import (
    CPU,
    InMemory,
    Recorder,
    assert_halted_is_whole,
    assert_same_run,
    create,
    events,
    in_threes,
    resume,
    train_until,
    trained,
)

#: seeds switch at steps of their own; weights are averaged
METHODS = ("dat(switch=below(0.69), latest=15, rewarm=0)", "ema(0.9)")


def keeping(*methods: str, **changed: Any) -> RunSpec:
    usual = {"steps": 24, "checkpoint_every": 12, "keep_checkpoints": "every=9", "lr": 0.01}
    return in_threes(*methods, seeds=(4, 0, 2), **(usual | changed))


def kept(folder: Path) -> dict[str, dict[str, Any]]:
    """Every tensor and every entry of the header, by file; their order in a file is free."""
    contents: dict[str, dict[str, Any]] = {}
    for path in sorted((folder / KEPT).iterdir()):
        with safe_open(path, framework="np") as file:
            tensors = {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
            contents[path.name] = {"header": file.metadata(), **tensors}
    return contents


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(keeping(*METHODS), tmp_path_factory.mktemp("kept") / "run")


def test_weights_are_kept_at_the_start_every_so_many_steps_and_at_each_switch(folder: Path) -> None:
    run, seeds_by_step = read_run(folder).spec, {0: {4, 0, 2}, 9: {4, 0, 2}, 18: {4, 0, 2}}
    switches = events(read_metrics(folder), "switch")
    assert len({line.step for line in switches} - {9, 18}) > 1, "all switch at once: nothing shown"
    for line in switches:
        seeds_by_step.setdefault(line.step, set()).add(line.seed)
    files = {step: set(kept_seeds(kept_file(folder, step), run)) for step in seeds_by_step}
    assert files == seeds_by_step
    assert kept_steps(folder) == [*sorted(seeds_by_step), 24]
    assert len(kept(folder)) == len(seeds_by_step), "the last step is in the checkpoint alone"


def test_kept_weights_are_those_of_the_step_without_the_optimiser(folder: Path) -> None:
    tensors, state = load_kept(folder, 9, read_run(folder).spec)
    assert {name for name in tensors if not name.startswith(WEIGHTS)} == {"average"}
    training = InMemory(keeping(*METHODS, keep_checkpoints="never")).steps(9).run
    assert state.step == training.step == 9
    assert state.methods == training.methods.states
    for name, weight in training.seeds.model.named(training.seeds.model.table).items():
        assert torch.equal(tensors[WEIGHTS + name], weight), name
    opened = open_run(folder, CPU, [2, 4], step=9)
    raw = open_run(folder, CPU, [2, 4], step=9, averaged=False)
    for name, weight in training.test_weights().items():
        assert torch.equal(opened.model.named(opened.model.table)[name], weight[[2, 0]]), name
        assert torch.equal(raw.model.named(raw.model.table)[name], tensors[WEIGHTS + name][[2, 0]])
    assert opened.run.seeds == (2, 4)
    assert opened.controls == [training.control(2), training.control(0)]
    assert torch.equal(dict(load(folder, 2, step=9).named_parameters())["head.weight"],
                       training.test_weights()["head.weight"][2])  # fmt: skip


def test_file_of_a_switch_opens_with_the_seeds_that_switched(folder: Path) -> None:
    line = next(e for e in events(read_metrics(folder), "switch") if e.step not in (9, 18))
    opened = open_run(folder, CPU, step=line.step)
    assert line.seed in opened.run.seeds
    assert {c.gate["attention"] for c in opened.controls} == {1.0}
    (absent, *_) = {4, 0, 2} - set(opened.run.seeds)
    with pytest.raises(RunFolderError, match=f"has no seed {absent}: it has those that switched"):
        load(folder, absent, step=line.step)


def test_last_step_is_that_of_the_checkpoint(folder: Path) -> None:
    last, also = open_run(folder, CPU), open_run(folder, CPU, step=24)
    assert torch.equal(last.model.table, also.model.table)


def test_step_that_was_not_kept_is_an_error_that_lists_the_others(folder: Path) -> None:
    with pytest.raises(RunFolderError, match=r"no weights of step 10: kept are those of 0, .*9, "):
        open_run(folder, CPU, step=10)
    with pytest.raises(OutlastError, match="the last checkpoint is of step 24"):
        load(folder, 0, step=25)
    with pytest.raises(SpecError, match="step"):
        load(folder, 0, step=-1)


def test_run_is_bit_for_bit_the_run_that_keeps_nothing(folder: Path, tmp_path: Path) -> None:
    plain = trained(keeping(*METHODS, keep_checkpoints="never"), tmp_path / "plain")
    assert not (plain / KEPT).exists()
    assert_same_run(folder, plain)


def test_killed_and_resumed_run_has_the_same_files(folder: Path, tmp_path: Path) -> None:
    whole, halted = assert_halted_is_whole(keeping(*METHODS), tmp_path, halts=1)
    assert kept(whole) == kept(halted) == kept(folder)


def test_what_was_kept_of_later_steps_is_taken_back(tmp_path: Path) -> None:
    run = create(keeping("dat(switch=15)"), tmp_path / "run")
    train_until(12, run)
    tensors, state = load_checkpoint(run)
    for stale in (13, 18):  # as if the run had been killed at step 20, on another machine
        object.__setattr__(state, "step", stale)
        save_kept(run, tensors, state, [4])
    (run / KEPT / ".00000009.safetensors.12345678.tmp").write_bytes(b"cut short")
    assert resume(run)
    assert list(kept(run)) == [f"{step:08d}.safetensors" for step in (0, 9, 15, 18)]
    assert kept_seeds(kept_file(run, 18), read_run(run).spec) == (4, 0, 2)


def test_overwritten_run_has_nothing_of_the_run_before(tmp_path: Path) -> None:
    run = create(keeping(), tmp_path / "run")
    train_until(9, run)
    assert len(kept(run)) == 2
    create(keeping(keep_checkpoints="never"), run, overwrite=True)
    assert not (run / KEPT).exists()


def test_seeds_taken_out_of_a_run_take_their_kept_weights_with_them(
    folder: Path, tmp_path: Path
) -> None:
    take_seeds(folder, [2, 4], tmp_path / "some")
    ours = open_run(tmp_path / "some", CPU, step=9)
    theirs = open_run(folder, CPU, [2, 4], step=9)
    assert torch.equal(ours.model.table, theirs.model.table)
    switched = {e.step for e in events(read_metrics(folder), "switch") if e.seed != 0}
    assert set(kept_steps(tmp_path / "some")) == {0, 9, 18, 24} | switched


def test_damaged_or_foreign_file_is_refused(tmp_path: Path) -> None:
    run = create(keeping(), tmp_path / "run")
    train_until(9, run)
    path = kept_file(run, 9)
    path.rename(kept_file(run, 6))
    with pytest.raises(RunFolderError, match=r"00000006.* is of step 9, not 6"):
        open_run(run, CPU, step=6)
    other = create(in_threes(seeds=(4, 0, 2), keep_checkpoints="every=9"), tmp_path / "other")
    train_until(9, other)
    kept_file(other, 9).replace(path)
    with pytest.raises(RunFolderError, match="is of another run: its"):
        open_run(run, CPU, step=9)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(RunFolderError, match="damaged or cut short"):
        open_run(run, CPU, step=9)


def test_disk_use_is_said_before_training(tmp_path: Path) -> None:
    recorder = Recorder()
    resume(create(keeping(steps=3, steps_per_block=3), tmp_path / "run"), recorder)
    (words,) = (line for line in recorder.words if "weights are kept" in line)
    size = sum(p.numel() for p in load(tmp_path / "run").parameters()) * 4 * 3 / 1e6
    assert f"every 9 steps: 1 files of {size:.3g} MB" in words


def test_grid_takes_keep_checkpoints(tmp_path: Path) -> None:
    axes = ["keep_checkpoints=never,every=9"]
    runs = expand_grid(in_threes(), axes, tmp_path / "grid")
    assert [run.settings.keep_every for run, _ in runs] == [None, 9]
