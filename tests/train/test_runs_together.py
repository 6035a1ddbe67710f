"""Runs trained together: each is the run alone, in a folder of its own, stopped and resumed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from outlast.cli import main
from outlast.errors import OutlastError, TrainingError
from outlast.runs.checkpoint import AVERAGE, load_checkpoint, load_state
from outlast.runs.folder import CHECKPOINT, METRICS
from outlast.runs.records import read_metrics, read_run
from outlast.runs.spec import RunSpec
from outlast.workflow.load import load
from tiny_runs import (
    CPU,
    InMemory,
    assert_same_run,
    assert_seed_is,
    block_lines,
    checkpoint,
    create,
    create_all,
    halt,
    in_threes,
    train_runs,
)


def spec(*methods: str, **changed: Any) -> RunSpec:
    return in_threes(*methods, **({"steps": 18, "probe_every": 6, "checkpoint_every": 6} | changed))


#: different in every number and method that may differ, in seeds and in the number of steps
RUNS = [
    spec(lr=1e-3, seeds=(0, 1)),
    spec("dat(switch=below(0.82))", "ema(0.9)", lr=4e-3, weight_decay=0.5, seeds=(1, 4, 2)),
    spec("curriculum(from=2, by=steps)", "ema(0.5)", max_grad_norm=0.05, warmup=12, seeds=(0,)),
    spec("dat(switch=below(0.000001), latest=6, otherwise=retry)", steps=14, seeds=(0,)),
    spec("dat(mode=ramp, switch=6, ramp=9)", schedule="cosine", probe_every=0, checkpoint_every=3),
]


def train_all(folders: list[Path]) -> None:
    outcome = train_runs(folders, CPU)
    assert (outcome.ended, outcome.failures) == (True, [None] * len(folders))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The runs that nobody stopped."""
    folders = create_all(RUNS, tmp_path_factory.mktemp("whole"))
    train_all(folders)
    return folders


def test_run_among_others_is_the_run_alone() -> None:
    runs = [replace(run, settings=replace(run.settings, probe_every=0)) for run in RUNS]
    among = InMemory(*runs).steps(18)
    assert [run.step for run in among.runs] == [18, 18, 18, 14, 18]
    for index, run in enumerate(runs):
        alone = InMemory(run).steps(18)
        for seed in run.seeds:
            assert_seed_is(among, alone, seed, index)
        assert among.runs[index].averaged == alone.run.averaged
    # the same seed under other numbers is another seed: else this would show nothing
    assert among.losses(0, 0) != among.losses(0, 2)
    assert {name for _, name in among.events(1, 1) + among.events(0, 3)} == {"switch", "restart"}


def test_folder_of_a_run_among_others_is_as_if_trained_alone(
    whole: list[Path], tmp_path: Path
) -> None:
    def outline(folder: Path) -> list[tuple[object, ...]]:
        """The step, the seed and the fields of every line."""
        lines = map(json.loads, (folder / METRICS).read_text().splitlines())
        return [(line["step"], line["seed"], *line) for line in lines]

    for run, folder, alone in zip(RUNS, whole, create_all(RUNS, tmp_path), strict=True):
        train_all([alone])
        (tensors, state), (alone_tensors, alone_state) = map(load_checkpoint, (folder, alone))
        assert tensors.keys() == alone_tensors.keys()
        assert (AVERAGE in tensors) == any("ema" in method for method in run.methods)
        assert state.step == alone_state.step == run.settings.steps
        assert state.run == alone_state.run
        assert outline(folder) == outline(alone)
        assert read_run(folder).seeds == run.seeds
        load(folder, run.seeds[-1])


def test_halted_runs_resume_together_bit_for_bit(whole: list[Path], tmp_path: Path) -> None:
    """Also when some had saved and others had not: each goes on from where it stands."""
    folders = create_all(RUNS, tmp_path)
    for saves in (3, 1, 7, 2):
        halt(*folders, saves=saves)
    steps = {load_state(folder).step for folder in folders if (folder / CHECKPOINT).exists()}
    assert len(steps) > 1, "they all stood at the same step: this shows nothing"
    train_all(folders)
    for one, other in zip(whole, folders, strict=True):
        assert_same_run(one, other)


def test_run_that_diverged_does_not_stop_the_others(tmp_path: Path) -> None:
    folders = create_all([spec(seeds=(0, 1)), spec(lr=1e38, warmup=0), spec(lr=4e-3)], tmp_path)
    outcome = train_runs(folders, CPU)
    assert outcome.ended
    assert [type(failure) for failure in outcome.failures] == [
        type(None),
        TrainingError,
        type(None),
    ]
    message = str(outcome.failures[1])
    assert f"; the last good weights are kept in {folders[1]}. No seed is" in message
    assert "it is 1e+38" in message
    for folder in (folders[0], folders[2]):
        assert load_state(folder).step == 18
        losses = block_lines(read_metrics(folder))[0].loss or {}
        assert torch.tensor(list(losses.values())).isfinite().all()
    state = load_state(folders[1])
    assert (state.step, state.parked) == (3, [0, 0])
    before = [checkpoint(folder) for folder in folders]
    again = train_runs(folders, CPU)  # there is nothing left to do
    assert again.ended
    assert list(map(str, again.failures)) == list(map(str, outcome.failures))
    assert [checkpoint(folder) for folder in folders] == before


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (spec(batch_size=4), r"batch_size=4: expected 8, as in the first of the runs"),
        (spec(steps_per_block=6), "steps_per_block=6: expected 3"),
        (spec(precision="bf16"), "precision=bf16: expected auto"),
        (spec(model="gru @ 8"), "model=gru.*: expected lstm"),
        (spec(task="parity(length=4)"), "task=parity.*: expected composite"),
    ],
)
def test_runs_too_different_are_not_trained_together(
    tmp_path: Path, other: RunSpec, message: str
) -> None:
    with pytest.raises(OutlastError, match=message):
        train_runs(create_all([spec(), other], tmp_path), CPU)


def test_console_tells_runs_of_one_name_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, seeds in (("x", (0, 1)), ("y", (4,))):
        create(spec(seeds=seeds, steps=6), Path(name) / "run")
    assert main(["resume", "x/run", "y/run", "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "seeds 0, 1 (x/run); 4 (y/run), 2 runs together" in " ".join(text.split())
    for name in ("x/run", "y/run"):
        assert f"\n{name}: step 6/6" in text
        assert f"\n{name}\n" in text


def test_run_that_is_over_does_not_stop_the_one_beside_it(tmp_path: Path) -> None:
    runs = [spec(schedule="constant", steps=steps, seeds=(0,)) for steps in (6, 12)]
    train_all(create_all(runs, tmp_path))
