"""Runs trained together: each is the run alone, in a folder of its own, stopped and gone on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from outlast.cli import main
from outlast.errors import OutlastError, TrainingError
from outlast.runs.folder import CHECKPOINT
from outlast.runs.records import read_metrics, read_run
from outlast.runs.spec import RunSpec
from outlast.workflow.load import load
from outlast.workflow.train import train_runs
from tiny_runs import CPU, InMemory, assert_same_run, assert_seed_is, checkpoint, create, halt, tiny


def spec(*methods: str, **changed: Any) -> RunSpec:
    return tiny(*methods, **({"steps": 18, "block": 3, "probe": 6, "checkpoint": 6} | changed))


#: different in every number and method that may differ, in seeds and in the number of steps
FLEET = [
    spec(lr=1e-3, seeds=(0, 1)),
    spec("dat(switch=below(0.82))", "ema(0.9)", lr=4e-3, weight_decay=0.5, seeds=(1, 4, 2)),
    spec("curriculum(from=2, by=steps)", "ema(0.5)", max_grad_norm=0.05, warmup=12, seeds=(0,)),
    spec("dat(switch=below(0.000001), latest=6, otherwise=retry)", steps=14, seeds=(0,)),
    spec("dat(mode=ramp, switch=6, ramp=9)", schedule="cosine", probe_every=0, checkpoint_every=3),
]
NAMES = [f"run{i}" for i in range(len(FLEET))]


def begun(home: Path, runs: list[RunSpec] = FLEET) -> list[Path]:
    folders = [home / name for name, _ in zip(NAMES, runs, strict=False)]
    for run, folder in zip(runs, folders, strict=True):
        create(run, folder)
    return folders


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The fleet that nobody stopped."""
    folders = begun(tmp_path_factory.mktemp("whole"))
    assert train_runs(folders, CPU) == (True, [None] * len(FLEET))
    return folders


def test_each_run_is_the_run_alone() -> None:
    runs = [replace(run, settings=replace(run.settings, probe_every=0)) for run in FLEET]
    among = InMemory(*runs).steps(18)
    assert [t.step for t in among.trainers] == [18, 18, 18, 14, 18]
    for index, run in enumerate(runs):
        alone = InMemory(run).steps(18)
        for seed in run.seeds:
            assert_seed_is(among, alone, seed, index)
        assert among.trainers[index].averaged == alone.trainer.averaged
    # the same seed under other numbers is another seed: else this would show nothing
    assert among.losses(0, 0) != among.losses(0, 2)
    assert {name for _, name in among.events(1, 1) + among.events(0, 3)} == {"switch", "restart"}


def test_each_has_a_folder_of_its_own_as_if_trained_alone(
    whole: list[Path], tmp_path: Path
) -> None:
    for run, folder, alone in zip(FLEET, whole, begun(tmp_path), strict=True):
        train_runs([alone], CPU)
        (tensors, state), (own, own_state) = checkpoint(folder), checkpoint(alone)
        assert tensors.keys() == own.keys()
        assert ("average" in tensors) == any("ema" in m for m in run.methods)
        states = [json.loads(s) for s in (state, own_state)]
        assert [s["step"] for s in states] == [run.settings.steps] * 2
        assert states[0]["run"] == states[1]["run"]
        seen = [[(x["step"], x["seed"], *x) for x in read_metrics(f)] for f in (folder, alone)]
        assert seen[0] == seen[1]
        assert tuple(read_run(folder)["seeds"]) == run.seeds
        load(folder, run.seeds[-1])


def test_killed_and_resumed_together_is_bit_for_bit(whole: list[Path], tmp_path: Path) -> None:
    """Also when some had saved and others had not: each goes on from where it stands."""
    folders = begun(tmp_path)
    for saves in (3, 1, 7, 2):
        halt(*folders, saves=saves)
    steps = {json.loads(checkpoint(f)[1])["step"] for f in folders if (f / CHECKPOINT).exists()}
    assert len(steps) > 1, "they all stood at the same step: this shows nothing"
    assert train_runs(folders, CPU)[0]
    for one, other in zip(whole, folders, strict=True):
        assert_same_run(one, other)


def test_a_run_without_a_seed_left_does_not_stop_the_others(tmp_path: Path) -> None:
    runs = [spec(seeds=(0, 1)), spec(lr=1e38, warmup=0), spec(lr=4e-3)]
    folders = begun(tmp_path, runs)
    ended, failures = train_runs(folders, CPU)
    assert ended
    assert [type(f) for f in failures] == [type(None), TrainingError, type(None)]
    assert f"; the last good weights are kept in {folders[1]}. No seed is" in str(failures[1])
    assert "it is 1e+38" in str(failures[1])
    for index in (0, 2):
        assert json.loads(checkpoint(folders[index])[1])["step"] == 18
        assert torch.tensor(list(read_metrics(folders[index])[0]["loss"].values())).isfinite().all()
    state = json.loads(checkpoint(folders[1])[1])
    assert (state["step"], state["parked"]) == (3, [0, 0])
    before = {f: checkpoint(f) for f in folders}
    ended, again = train_runs(folders, CPU)  # there is nothing left to do
    assert ended
    assert list(map(str, again)) == list(map(str, failures))
    assert {f: checkpoint(f) for f in folders} == before


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (spec(batch_size=4), r"batch_size=4: expected 8, as in the first of the runs"),
        (
            spec(steps_per_block=10, probe_every=10, checkpoint_every=10),
            "steps_per_block=10: expected 3",
        ),
        (spec(precision="bf16"), "precision=bf16: expected auto"),
        (spec(model="gru @ 8"), "model=gru.*: expected lstm"),
        (spec(task="parity(length=4)"), "task=parity.*: expected composite"),
    ],
)
def test_runs_that_do_not_go_together(tmp_path: Path, other: RunSpec, message: str) -> None:
    folders = begun(tmp_path, [spec(), other])
    with pytest.raises(OutlastError, match=message):
        train_runs(folders, CPU)


def test_runs_of_one_name_and_other_seeds_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, seeds in (("x", (0, 1)), ("y", (4,))):
        create(spec(seeds=seeds, steps=6), Path(name) / "run")
    assert main(["resume", "x/run", "y/run", "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "seeds 0, 1 (x/run); 4 (y/run), 2 runs together" in text
    for name in ("x/run", "y/run"):
        assert f"\n{name}: step 6/6" in text
        assert f"\n{name}\n" in text


def test_a_run_that_is_over_does_not_stop_one_beside_it(tmp_path: Path) -> None:
    runs = [spec(schedule="constant", steps=steps, seeds=(0,)) for steps in (6, 12)]
    folders = begun(tmp_path, runs)
    assert train_runs(folders, CPU) == (True, [None, None])
