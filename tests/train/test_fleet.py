"""Runs trained together: each is the run alone, in a folder of its own, stopped and gone on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import outlast.train.trainer as trainer_module
from outlast.cli import MISTAKE, main
from outlast.errors import OutlastError, TrainingError
from outlast.runs import CHECKPOINT, RESULTS, read_metrics, read_run
from outlast.train.grid import spread
from outlast.train.session import begin, canonical, go_on_together, load
from outlast.train.settings import RunSpec
from tiny_runs import CPU, InMemory, assert_same_run, assert_seed_is, checkpoint, tiny


def spec(*methods: str, **changed: Any) -> RunSpec:
    return tiny(*methods, **({"steps": 30, "block": 5, "probe": 10, "checkpoint": 10} | changed))


#: different in every number and method that may differ, in seeds and in the number of steps
FLEET = [
    spec(lr=1e-3, seeds=(0, 1)),
    spec("dat(switch=below(0.82))", "ema(0.9)", lr=4e-3, weight_decay=0.5, seeds=(1, 4, 2)),
    spec("curriculum(from=2, by=steps)", "ema(0.5)", clip=0.05, warmup=20, seeds=(0,)),
    spec("dat(switch=below(0.000001), latest=10, otherwise=retry)", steps=22, seeds=(0,)),
    spec("dat(mode=ramp, switch=10, ramp=15)", schedule="cosine", probe=0, checkpoint=5),
]
NAMES = [f"run{i}" for i in range(len(FLEET))]


def begun(home: Path, runs: list[RunSpec] = FLEET) -> list[Path]:
    folders = [home / name for name, _ in zip(NAMES, runs, strict=False)]
    for run, folder in zip(runs, folders, strict=True):
        begin(run, folder, CPU)
    return folders


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The fleet that nobody stopped."""
    folders = begun(tmp_path_factory.mktemp("whole"))
    assert go_on_together(folders, CPU) == (True, [None] * len(FLEET))
    return folders


def test_each_run_is_the_run_alone() -> None:
    runs = [replace(run, settings=replace(run.settings, probe=0)) for run in FLEET]
    among = InMemory(*runs).steps(30)
    assert [t.step for t in among.trainers] == [30, 30, 30, 22, 30]
    for index, run in enumerate(runs):
        alone = InMemory(run).steps(30)
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
        go_on_together([alone], CPU)
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


class Killed(BaseException):
    """Stands for SIGKILL."""


def test_killed_and_resumed_together_is_bit_for_bit(whole: list[Path], tmp_path: Path) -> None:
    """Also when some had saved and others had not: each goes on from where it stands."""
    folders = begun(tmp_path)
    for saves in (3, 1, 7, 2):
        left = [saves]
        with pytest.MonkeyPatch.context() as patch:
            save = trainer_module.save_checkpoint

            def count(*args: Any, left: list[int] = left, save: Any = save) -> None:
                save(*args)
                left[0] -= 1
                if not left[0]:
                    raise Killed

            patch.setattr(trainer_module, "save_checkpoint", count)
            with pytest.raises(Killed):
                go_on_together(folders, CPU)
    steps = {json.loads(checkpoint(f)[1])["step"] for f in folders if (f / CHECKPOINT).exists()}
    assert len(steps) > 1, "they all stood at the same step: this shows nothing"
    assert go_on_together(folders, CPU)[0]
    for one, other in zip(whole, folders, strict=True):
        assert_same_run(one, other)


def test_a_run_without_a_seed_left_does_not_stop_the_others(tmp_path: Path) -> None:
    runs = [spec(seeds=(0, 1)), spec(lr=1e38, warmup=0), spec(lr=4e-3)]
    folders = begun(tmp_path, runs)
    ended, failures = go_on_together(folders, CPU)
    assert ended
    assert [type(f) for f in failures] == [type(None), TrainingError, type(None)]
    assert f"; the last good weights are kept in {folders[1]}. No seed is" in str(failures[1])
    assert "it is 1e+38" in str(failures[1])
    for index in (0, 2):
        assert json.loads(checkpoint(folders[index])[1])["step"] == 30
        assert torch.tensor(list(read_metrics(folders[index])[0]["loss"].values())).isfinite().all()
    state = json.loads(checkpoint(folders[1])[1])
    assert (state["step"], state["parked"]) == (5, [0, 0])
    before = {f: checkpoint(f) for f in folders}
    ended, again = go_on_together(folders, CPU)  # there is nothing left to do
    assert ended
    assert list(map(str, again)) == list(map(str, failures))
    assert {f: checkpoint(f) for f in folders} == before


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (spec(batch=4), r"batch=4: expected 8, as in the first of the runs"),
        (spec(block=10), "block=10: expected 5"),
        (spec(precision="bf16"), "precision=bf16: expected auto"),
        (spec(model="gru @ 8"), "model=gru.*: expected lstm"),
        (spec(task="parity(length=4)"), "task=parity.*: expected composite"),
    ],
)
def test_runs_that_do_not_go_together(tmp_path: Path, other: RunSpec, message: str) -> None:
    folders = begun(tmp_path, [spec(), other])
    with pytest.raises(OutlastError, match=message):
        go_on_together(folders, CPU)


# ---- grids -------------------------------------------------------------------------------------


def test_a_grid_is_every_combination() -> None:
    run = replace(canonical(tiny()), label="it")
    found = spread(run, ["lr=0.001,2e-3", "weight_decay=0,0.1"], Path("out"))
    assert [(r.settings.lr, r.settings.weight_decay) for r, _ in found] == [
        (0.001, 0.0), (0.001, 0.1), (0.002, 0.0), (0.002, 0.1),
    ]  # fmt: skip
    assert found[1][1] == Path("out") / "lr=0.001,weight_decay=0.1"
    assert found[1][0].label == "it lr=0.001 weight_decay=0.1"
    assert replace(found[2][0], settings=run.settings, label="it") == run
    assert spread(run, [], Path("out")) == [(run, Path("out"))]


def test_a_comma_in_brackets_is_the_values_own() -> None:
    axes = ["stop=never,success(accuracy=0.9, at=3), success(0.8,1)", "lr=0.1,0.2"]
    found = spread(tiny(), axes, Path("out"))
    stops = ["never", "success(accuracy=0.9, at=3)", "success(0.8, 1)"]
    assert [r.settings.stop for r, _ in found[::2]] == stops
    assert found[2][1] == Path("out") / "stop=success(accuracy=0.9, at=3),lr=0.1"


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (["lr"], "grid=lr: expected a setting and different values"),
        (["lr=0.1,"], "grid=lr=0.1,: expected a setting and different values"),
        (["lr=0.1,0.1"], "expected a setting and different values"),
        (["rl=0.1,0.2"], "grid=rl=0.1,0.2: expected a setting that may differ.*mean 'lr'"),
        (["batch=8,16"], "grid=batch=8,16: expected a setting that may differ"),
        (["lr=0.1", "lr=0.2"], "grid=lr=0.1 lr=0.2: expected each setting once"),
        (["lr=0.001,1e-3"], "grid=lr=0.001,1e-3: expected different values: lr=1e-3 is twice"),
        (["lr=fast,0.1"], "settings: lr=fast: expected a number"),
        (["lr=0,0.1"], "lr=0.*: expected a number > 0"),
        (["stop=success(0.9,never"], r"cannot read the value 'success\(0.9,never'"),
    ],
)
def test_a_grid_that_cannot_be_read(axes: list[str], message: str) -> None:
    with pytest.raises(OutlastError, match=message):
        spread(tiny(), axes, Path("out"))


SMALL = (
    "train", "--task", "parity(length=4)", "--model", "lstm @ 8", "--steps", "10", "--block", "5",
    "--batch", "4", "--warmup", "0", "--probe", "0", "--checkpoint", "5", "--device", "cpu",
)  # fmt: skip


def test_a_grid_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "grid"
    command = [*SMALL, "--out", str(out)]
    assert main([*command, "--seeds", "0-1", "--grid", "lr=0.001,0.002"]) == 0
    text = capsys.readouterr().out
    assert "seeds 0, 1 each, 2 runs together" in text
    for rate in ("0.001", "0.002"):
        folder = out / f"lr={rate}"
        assert read_run(folder)["settings"]["lr"] == float(rate)
        assert json.loads((folder / RESULTS).read_text())["step"] == 10
        assert f"lr={rate}" in text
    assert main([*command, "--grid", "lr=0.001,0.002"]) == MISTAKE
    assert "holds a run already" in capsys.readouterr().err
    # what is in the way of one run is told before any other is begun
    assert main([*command, "--grid", "lr=0.003,0.001"]) == MISTAKE
    assert "lr=0.001 holds a run already" in capsys.readouterr().err
    assert not (out / "lr=0.003").exists()
    folders = [str(out / "lr=0.001"), str(out / "lr=0.002")]
    assert main(["resume", *folders, "--device", "cpu"]) == 0


def test_a_value_that_diverges_is_listed_and_the_others_are_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*SMALL, "--out", "grid", "--grid", "lr=1e38,0.001"]) == 0
    text = capsys.readouterr().out
    assert "\ndiverged: lr=1e38: seed 0: the loss or a weight is not finite" in text
    assert "diverged: lr=0.001" not in text
    assert "Try a smaller lr (it is 1e+38)" in text
    for rate in ("1e38", "0.001"):
        rows = json.loads(Path("grid", f"lr={rate}", RESULTS).read_text())["rows"]
        assert {row.get("parked") for row in rows} == {0 if rate == "1e38" else None}
    # without a sound run it is an error, also on going on
    assert main([*SMALL, "--out", "none", "--grid", "lr=1e38,2e38"]) == MISTAKE
    first = capsys.readouterr().err
    assert first.count("No seed is left to train. Try a smaller lr") == 2
    assert main(["resume", "none/lr=1e38", "none/lr=2e38", "--device", "cpu"]) == MISTAKE
    assert capsys.readouterr().err == first


def test_runs_of_one_name_and_other_seeds_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, seeds in (("x", (0, 1)), ("y", (4,))):
        begin(spec(seeds=seeds, steps=10), Path(name) / "run", CPU)
    assert main(["resume", "x/run", "y/run", "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "seeds 0, 1 (x/run); 4 (y/run), 2 runs together" in text
    for name in ("x/run", "y/run"):
        assert f"\n{name}: step 10/10" in text
        assert f"\n{name}\n" in text


def test_a_run_that_is_over_does_not_stop_one_beside_it(tmp_path: Path) -> None:
    runs = [spec(schedule="constant", steps=steps, seeds=(0,)) for steps in (10, 20)]
    folders = begun(tmp_path, runs)
    assert go_on_together(folders, CPU) == (True, [None, None])


def test_a_grid_does_not_hide_in_a_run(tmp_path: Path) -> None:
    begin(tiny(), tmp_path / "run", CPU)
    with pytest.raises(OutlastError, match=r"out=.*run: expected a folder that is no run itself"):
        spread(tiny(), ["lr=0.001,0.002"], tmp_path / "run")
