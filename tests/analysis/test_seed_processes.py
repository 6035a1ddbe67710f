"""Seeds side by side, seeds that have diverged, and tables from before further training."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
import torch

import outlast
from outlast.analysis.runs import AnalysisSettings, analyse_run
from outlast.analysis.seed_processes import SeedProcesses
from outlast.analysis.sequences import NothingToSeeError
from outlast.cli import main
from outlast.models.model import Model
from outlast.runs.analyses import age, read_analysis
from outlast.runs.folder import write_json

CPU = torch.device("cpu")
FEW = AnalysisSettings((1.0, 2.0), 4)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    outlast.fit(
        "composite(modulus=2, keys=12, queries=2, length=3)",
        "lstm > attention(heads=2) > mlp @ 16",
        tmp_path / "run",
        seeds=[0, 1],
        steps=2,
        batch_size=4,
        probe_every=0,
        keep_checkpoints="every=1",
        steps_per_block=1,
    )
    return tmp_path / "run"


def test_rows_do_not_depend_on_the_number_of_processes(run: Path) -> None:
    with SeedProcesses(2) as two:
        for name in ("anatomy", "gradients"):
            beside = analyse_run(run, name, FEW, CPU, processes=two)
            assert beside == analyse_run(run, name, FEW, CPU)
        assert len(two.children) == 2
        with pytest.raises(outlast.OutlastError, match="whole number"):
            two.run([(outlast.task, ("parity(length=-1)",))] * 2, 0)
        assert not two.children


def kill_itself(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_process_that_is_killed_means_that_memory_does_not_suffice(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.analysis.runs.rows_of_seeds", kill_itself)
    words = "the memory of cpu does not suffice for anatomy of .*: take shorter lengths or fewer"
    with SeedProcesses(2) as two, pytest.raises(outlast.OutlastError, match=words):
        analyse_run(run, "anatomy", FEW, CPU, processes=two)


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_length_beyond_memory_is_refused_before_any_work(
    run: Path, monkeypatch: pytest.MonkeyPatch, seeds: tuple[int, ...]
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("work has begun")

    monkeypatch.setattr("outlast.analysis.runs.rows_of_seeds", fail)
    monkeypatch.setattr("outlast.analysis.seed_processes.Child", fail)
    monkeypatch.setattr("outlast.machine.free_memory", lambda _: 2.0**30)
    long = AnalysisSettings((1.0, 4.0), 10**6, seeds)
    words = r"state-probe of .*fewer sequences \(about [\d.]+ GiB are needed, 1 are free\)"
    with SeedProcesses(2) as two, pytest.raises(outlast.OutlastError, match=words) as caught:
        analyse_run(run, "state-probe", long, CPU, processes=two)
    needed = float(re.search(r"about ([\d.]+)", str(caught.value)).group(1))  # type: ignore[union-attr]
    assert 1.5 * len(seeds) < needed < 5 * len(seeds)


@pytest.mark.parametrize("name", ["anatomy", "state-probe", "key-probe", "sharpness"])
def test_training_length_beyond_memory_is_refused_if_a_probe_is_fitted(
    run: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def begin(*_: object) -> None:
        raise NothingToSeeError("work has begun")

    task = outlast.task("composite(modulus=2, keys=12, queries=2, length=3)")
    task.lengths, task.ceiling = (3, 10**4), None
    monkeypatch.setattr("outlast.analysis.runs._task", lambda _: task)
    monkeypatch.setattr("outlast.analysis.runs.rows_of_seeds", begin)
    monkeypatch.setattr("outlast.machine.free_memory", lambda _: 2.0**30)
    words = rf"{name} of .*fewer sequences \(about [\d.]+ GiB are needed, 1 are free\)"
    words = "work has begun" if name == "sharpness" else words
    with pytest.raises(outlast.OutlastError, match=words):
        analyse_run(run, name, AnalysisSettings((1.0,), 4, (0,)), CPU)


def test_processes_are_as_many_as_memory_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.analysis.seed_processes.usable_threads", lambda: 8)
    monkeypatch.setattr("outlast.analysis.seed_processes.free_memory", lambda _: 20 * 2.0**30)
    processes = SeedProcesses()
    assert processes.number(8, 10**9, 2**20) == 8
    assert processes.number(8, 10**9, 6 * 2**30) == 3
    assert processes.number(8, 10**9, 60 * 2**30) == 1
    gpu = torch.device("cuda")  # it waits for its host, but each process keeps a part of its memory
    assert processes.number(8, 10**9, 2**20, gpu) == 6
    assert processes.number(8, 10**5, 2**20, gpu) == 1
    assert processes.number(8, 10**9, 6 * 2**30, gpu) == 3


def test_diverged_seed_is_left_out_alone(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def diverged(folder: Path, seed: int, step: int | None) -> Model:
        model = outlast.load(folder, seed, step)
        if seed == 1:
            model.embedding.weight.data.fill_(torch.nan)
        return model

    monkeypatch.setattr("outlast.analysis.runs.load", diverged)
    call = ["analyse", str(run), "--only", "sharpness", "--sequences", "4", "--lengths", "1"]
    assert main(call) == 0
    table, said = read_analysis(run, "sharpness"), " ".join(capsys.readouterr().out.split())
    assert table is not None
    assert {row["seed"] for row in table.rows} == {0}
    assert "left out: the weights of" in said
    assert "seed 1, are not finite" in said
    assert main([*call, "--seeds", "1"]) == 2


def test_lengths_do_not_concern_gradients(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = ["--lengths", "1", "90", "--sequences", "4"]
    assert main(["analyse", str(run), "--only", "gradients", *lengths]) == 0
    assert "left out" not in capsys.readouterr().out
    assert main(["analyse", str(run), "--only", "gradients", "sharpness", *lengths]) == 0
    assert "left out: length" in capsys.readouterr().out


def test_analyses_of_many_passes_read_fewer_sequences_unless_told() -> None:
    number = {name: AnalysisSettings().sequences_of(name) for name in ("anatomy", "token-filter")}
    assert number == {"anatomy": 256, "token-filter": 64}
    assert AnalysisSettings(sequences=5).record("token-filter")["sequences"] == 5


def test_table_from_before_further_training_says_so(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["analyse", str(run), "--only", "sharpness", "--sequences", "4", "--lengths", "1"]
    assert main(call) == 0
    assert age(run, "sharpness") == ""
    path = run / "analysis/sharpness.json"
    write_json(path, json.loads(path.read_text()) | {"trained": 1})
    assert age(run, "sharpness") == "sharpness is of step 1, the run is at step 2"
    assert main([*call, "--seeds", "1"]) == 2
    assert "has rows of step 1, before further training" in capsys.readouterr().err
    assert main(call) == 0
    assert age(run, "sharpness") == ""
