"""A seed whose loss is not finite is parked at its last good weights; the others do not notice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import outlast
from outlast.errors import TrainingError
from outlast.runs import status
from outlast.runs.checkpoint import load_checkpoint, load_state
from outlast.runs.folder import CHECKPOINT, METRICS, RESULTS
from outlast.runs.records import read_metrics, read_results
from outlast.train.trainer import Block, Trainer
from outlast.workflow.evaluate import Evaluation, evaluate_run
from outlast.workflow.load import load
from outlast.workflow.progress import sentence
from tiny_runs import (
    CPU,
    InMemory,
    Recorder,
    assert_halted_is_whole,
    assert_same_run,
    break_rows,
    create,
    create_all,
    events,
    halt,
    in_threes,
    resume,
    tiny,
    train_runs,
    train_until,
    trained,
)

METHODS: list[tuple[str, ...]] = [
    (),
    ("ema(0.9)",),
    ("dat(switch=10)",),  # it is parked in the second phase
    ("dat(mode=ramp, switch=10, ramp=20)", "ema(0.9)"),
    ("dat(switch=below(0.000001), latest=5, otherwise=retry)",),
    ("curriculum(from=2, by=steps)",),
]
SHORT_TEST = Evaluation((1, 3), 32)


def assert_finite(folder: Path) -> None:
    tensors, _ = load_checkpoint(folder)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    assert "NaN" not in (folder / METRICS).read_text()


@pytest.mark.parametrize("step", [18, 20])
@pytest.mark.parametrize("methods", METHODS[:4], ids=" + ".join)
def test_parked_seed_stays_as_it_was_at_the_start_of_its_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, methods: tuple[str, ...]
) -> None:
    """Also where it breaks in the last step before a checkpoint, whose own loss is still sound."""
    folder, recorder = create(tiny(*methods), tmp_path / "run"), Recorder()
    before: dict[int, torch.Tensor] = {}
    next_block = Trainer.next_block

    def look(self: Trainer) -> Block:
        tables = [table.detach().flatten(1) for table in self.seeds.tables()]
        before[self.runs[0].step] = torch.cat(tables, 1)
        return next_block(self)

    monkeypatch.setattr(Trainer, "next_block", look)
    break_rows(monkeypatch, {1: step})
    assert resume(folder, recorder)
    tensors, state = load_checkpoint(folder)
    assert state.parked == [None, 15]
    assert state.averaged == [30, 15]
    assert_finite(folder)
    assert torch.equal(before[20][1], before[15][1])
    assert torch.equal(before[25][1], before[15][1])
    assert not torch.equal(before[20][0], before[15][0])
    assert tensors["optimiser.counts"].amax(1).tolist() == [30, 15]

    last = [line for line in read_metrics(folder) if line.seed == 1][-1]
    assert last == events(read_metrics(folder), "parked")[0]
    assert (last.step, last.details) == (20, {"since": 15, "what": status.NOT_FINITE})
    assert [progress.parked for progress in recorder.progress] == [()] * 3 + [(1,)] * 3
    for progress in recorder.progress:
        assert torch.tensor([*progress.loss.values()]).isfinite().all()
        assert ("parked: seed 1" in sentence(progress)) == bool(progress.parked)


@pytest.mark.parametrize("methods", METHODS, ids=" + ".join)
def test_other_seeds_do_not_notice_a_parked_one(
    monkeypatch: pytest.MonkeyPatch, methods: tuple[str, ...]
) -> None:
    run = in_threes(*methods, seeds=(0, 1, 2))
    whole = InMemory(run).steps(24)
    break_rows(monkeypatch, {1: 5})
    broken = InMemory(run).steps(24)
    assert broken.run.parked[1] is not None
    for seed in (0, 2):
        assert broken.losses(seed) == whole.losses(seed)
        assert broken.events(seed) == whole.events(seed)
    tables = zip(broken.trainer.seeds.tables(), whole.trainer.seeds.tables(), strict=True)
    for table, values in tables:
        assert torch.equal(table[[0, 2]], values[[0, 2]])
        assert table.isfinite().all()


@pytest.mark.parametrize("weighing", ["weights=asentmax", "weights=entmax", "cope"])
def test_run_that_diverges_beside_another_is_parked_and_resumed(
    tmp_path: Path, weighing: str
) -> None:
    """These pick numbers by an index that comes from the scores, which are NaN in one run."""
    runs = [
        tiny(
            task="parity(length=4)", model=f"attention({weighing}, heads=2) > mlp @ 8",
            steps=30, batch_size=4, warmup=0, steps_per_block=10, probe_every=0, lr=lr,
        )
        for lr in (0.001, 1000.0)
    ]  # fmt: skip
    whole, halted = (create_all(runs, tmp_path / name) for name in ("whole", "halted"))
    halt(*halted)
    for folders in (whole, halted):
        outcome = train_runs(folders, CPU)
        assert outcome.failures[0] is None
        assert isinstance(outcome.failures[1], TrainingError)
        assert load_state(folders[0]).step == 30
        assert load_state(folders[0]).parked == [None, None]
        assert None not in load_state(folders[1]).parked
        assert_finite(folders[1])
    for one, other in zip(whole, halted, strict=True):
        assert_same_run(one, other)


def test_loss_that_stays_infinite_does_not_move_a_parked_seed() -> None:
    """The weights are finite, but what they make of the data is not: every gradient is NaN."""
    together = InMemory(tiny("ema(0.9)", seeds=(0, 1), probe_every=0, max_grad_norm=1.0))
    seeds = together.trainer.seeds
    seeds.model.table.data[1] *= 1e30
    before = [table[1].clone() for table in seeds.tables()]
    together.steps(15)
    assert together.run.parked == [None, 0]
    for table, values in zip(seeds.tables(), before, strict=True):
        assert torch.equal(table[1], values)
        assert table[0].isfinite().all()


@pytest.mark.parametrize("methods", METHODS, ids=" + ".join)
def test_halted_run_with_a_parked_seed_resumes_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, methods: tuple[str, ...]
) -> None:
    break_rows(monkeypatch, {1: 4})
    whole, _ = assert_halted_is_whole(tiny(*methods), tmp_path, halts=2)
    assert load_state(whole).parked[1] is not None


@pytest.mark.usefixtures("no_figures")
def test_results_and_page_name_a_parked_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rows(monkeypatch, {1: 18})
    folder = trained(tiny("dat(mode=ramp, switch=10, ramp=40)"), tmp_path / "run")
    assert status.diverged(folder) is None  # one seed is sound
    rows = evaluate_run(folder, SHORT_TEST)
    assert {(row["seed"], row.get("parked")) for row in rows} == {(0, None), (1, 15)}
    assert list(read_results(folder / RESULTS).rows) == rows
    for seed, gate in ((0, 21 / 40), (1, 6 / 40)):
        gates = {s.pathway: s.gate.item() for s in load(folder, seed).sublayers()}
        assert gates["attention"] == pytest.approx(gate)
    page = outlast.report([folder], tmp_path / "page")
    assert "parked at step 15" in page.read_text()
    assert "1 parked" in (tmp_path / "page" / "report.md").read_text()


# ---- none is left ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seeds", "steps", "message"),
    [
        ((4,), {0: 18}, r"seed 4: .* not finite between steps 15 and 20; the last"),
        ((0, 1), {0: 18, 1: 20}, r"seeds 0, 1: .* not finite between steps 15 and 20; the last"),
        ((0, 1), {0: 18, 1: 8}, r"seed 0: .* 15 and 20 \(the other 1 were parked before\); the"),
    ],
)
def test_run_stops_when_no_seed_is_left_and_keeps_the_last_good_weights(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seeds: tuple[int, ...],
    steps: dict[int, int],
    message: str,
) -> None:
    run, recorder = tiny("ema(0.9)", seeds=seeds), Recorder()
    folder, good = create(run, tmp_path / "run"), InMemory(run).steps(15).run.tensors()
    break_rows(monkeypatch, steps)
    with pytest.raises(TrainingError, match=message) as caught:
        resume(folder, recorder)
    assert f"kept in {folder}. No seed is left to train." in str(caught.value)
    assert "Try a smaller lr (it is 0.002)" in str(caught.value)
    assert recorder.progress[-1].over
    assert recorder.progress[-1].parked == seeds
    tensors, state = load_checkpoint(folder)
    since = [(steps[row] - 1) // 5 * 5 for row in range(len(seeds))]
    assert (state.step, state.parked, state.averaged) == (20, since, since)
    assert_finite(folder)
    for name, table in good.items():
        assert torch.equal(tensors[name][0], table[0]), name
    parked = {line.seed: line.details["since"] for line in events(read_metrics(folder), "parked")}
    assert parked == dict(zip(seeds, since, strict=True))

    # what is there can be opened and tested, each seed as it was left
    monkeypatch.undo()
    assert status.finished(folder)
    rows = evaluate_run(folder, Evaluation((1,), 16))
    assert {row["seed"]: row["parked"] for row in rows} == parked
    assert status.tested(folder)

    # going on says the same, and changes nothing
    files = {name: (folder / name).read_bytes() for name in (CHECKPOINT, METRICS)}
    with pytest.raises(TrainingError) as again:
        resume(folder)
    assert str(again.value) == str(caught.value) == str(status.diverged(folder))
    assert files == {name: (folder / name).read_bytes() for name in files}
    assert status.tested(folder)


def test_run_halted_before_it_diverged_resumes_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, folder = (create(tiny(), tmp_path / name) for name in ("whole", "run"))
    break_rows(monkeypatch, {0: 18, 1: 8})
    with pytest.raises(TrainingError):
        resume(whole)
    halt(folder)
    assert load_state(folder).step == 10
    with pytest.raises(TrainingError):
        resume(folder)
    assert_same_run(whole, folder)


@pytest.fixture(scope="module")
def sound_and_diverged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was tested, and one that diverged and was not."""
    home = tmp_path_factory.mktemp("pair")
    evaluate_run(trained(tiny(), home / "sound"), SHORT_TEST)
    create(tiny(), home / "diverged")
    with pytest.MonkeyPatch.context() as patch:
        break_rows(patch, {0: 18, 1: 8})
        with pytest.raises(TrainingError):
            resume(home / "diverged")
    return home


@pytest.mark.parametrize("evaluated", [True, False])
def test_page_shows_a_run_that_diverged(
    tmp_path: Path, sound_and_diverged: Path, evaluated: bool
) -> None:
    home = shutil.copytree(sound_and_diverged, tmp_path / "runs")
    if evaluated:
        evaluate_run(home / "diverged", SHORT_TEST)
    page = outlast.report([home / "sound", home / "diverged"], tmp_path / "page").read_text()
    assert "diverged: every seed was parked" in page
    assert "2 parked" in (tmp_path / "page" / "report.md").read_text()
    arms = json.loads((tmp_path / "page" / "results.json").read_text())["studies"][0]["arms"]
    assert [arm["status"] for arm in arms] == ["evaluated", "diverged: every seed was parked"]
    assert arms[1]["parked"] == {"0": 15, "1": 5}
    assert ("(diverged)" in page) == evaluated
    assert ("0, parked at step 15" in page) == evaluated


def test_learning_rate_far_too_high_is_named(tmp_path: Path) -> None:
    folder = create(tiny(lr=1e38, warmup=0, model="mlp > lstm @ 16"), tmp_path / "run")
    with pytest.raises(TrainingError, match=r"not finite.*Try a smaller lr \(it is 1e\+38\)"):
        resume(folder)
    assert_finite(folder)
    assert load_state(folder).parked == [0, 0]


def test_run_asked_to_stop_after_a_broken_block_saves_nothing_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = create(tiny(), tmp_path / "run")
    break_rows(monkeypatch, {1: 5})
    train_until(1, folder)
    assert load_state(folder).parked == [None, 0]
    assert_finite(folder)


def test_seed_parked_before_its_average_began_is_tested_with_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny("ema(0.9)")
    model = InMemory(run).trainer.seeds.model
    break_rows(monkeypatch, {1: 1})  # in the very first step
    folder = trained(run, tmp_path / "run")
    loaded: dict[str, Any] = load(folder, run.seeds[1]).state_dict()
    for name, weights in model.named(model.table).items():
        assert torch.equal(loaded[name], weights[1]), name
