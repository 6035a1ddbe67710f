"""A seed whose loss is not finite is parked at its last good weights; the others do not notice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from outlast.cli.progress import sentence

from outlast.errors import TrainingError
from outlast.reporting.page import report
from outlast.runs.checkpoint import load_checkpoint
from outlast.runs.folder import CHECKPOINT, METRICS
from outlast.runs.records import read_metrics
from outlast.runs.status import diverged, finished
from outlast.train import session
from outlast.train.optimiser import AdamW
from outlast.train.run_state import Progress, RunState
from outlast.train.trainer import Trainer
from outlast.workflow.evaluate import evaluate_run
from outlast.workflow.load import load
from tiny_runs import CPU, InMemory, assert_same_run, create, halt, resume, tiny

METHODS: list[tuple[str, ...]] = [
    (),
    ("ema(0.9)",),
    ("dat(switch=10)",),  # it is parked in the second phase
    ("dat(mode=ramp, switch=10, ramp=20)", "ema(0.9)"),
    ("dat(switch=below(0.000001), latest=5, otherwise=retry)",),
    ("curriculum(from=2, by=steps)",),
]


def break_rows(monkeypatch: pytest.MonkeyPatch, at: dict[int, int]) -> None:
    """Spoil a number of a seed's weights in the update of a step, after its loss was taken.

    Seeds are told by their row; the step is the optimiser's count, so that a resumed run breaks
    where the run that was not stopped does.
    """
    update = AdamW.update

    def spoiled(self: AdamW, *args: Any) -> None:
        update(self, *args)
        for row, step in at.items():
            if self.counts[row].max() == step:
                self.stack.table.data[row, 0] = float("nan")

    monkeypatch.setattr(AdamW, "update", spoiled)


def all_finite(folder: Path) -> bool:
    tensors, _ = load_checkpoint(folder)
    return all(bool(torch.isfinite(t).all()) for t in tensors.values())


def begun(folder: Path, *methods: str, **changed: Any) -> Path:
    create(tiny(*methods, **changed), folder)
    return folder


@pytest.mark.parametrize("step", [18, 20])
@pytest.mark.parametrize("methods", METHODS[:4], ids=" + ".join)
def test_it_stays_as_it_was_at_the_start_of_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, methods: tuple[str, ...]
) -> None:
    """Also where it breaks in the last step before a checkpoint, whose own loss is still sound."""
    folder, told = begun(tmp_path / "run", *methods), list[Progress]()
    before: dict[int, torch.Tensor] = {}
    block = Trainer.block

    def look(self: Trainer) -> list[RunState]:
        before[self.trainers[0].step] = torch.cat([t.flatten(1) for t in self.rows.copy()], 1)
        return block(self)

    monkeypatch.setattr(Trainer, "block", look)
    break_rows(monkeypatch, {1: step})
    assert go_on(folder, CPU, told.append)
    tensors, state = load_checkpoint(folder)
    assert state["parked"] == [None, 15]
    assert state["averaged"] == [30, 15]
    assert all_finite(folder)
    assert torch.equal(before[20][1], before[15][1])
    assert torch.equal(before[25][1], before[15][1])
    assert not torch.equal(before[20][0], before[15][0])
    assert tensors["optimiser.counts"].amax(1).tolist() == [30, 15]

    own = [line for line in read_metrics(folder) if line["seed"] == 1]
    assert max(line["step"] for line in own) == 20
    assert own[-1] == {
        "step": 20,
        "seed": 1,
        "event": "parked",
        "since": 15,
        "what": own[-1]["what"],
    }
    assert "not finite" in own[-1]["what"]
    assert "NaN" not in (folder / METRICS).read_text()
    assert [p.parked for p in told] == [()] * 3 + [(1,)] * 3
    assert all(torch.tensor([*p.loss.values()]).isfinite().all() for p in told)
    assert "parked: seed 1" in sentence(told[-1])
    assert "parked" not in sentence(told[0])


@pytest.mark.parametrize("methods", METHODS, ids=" + ".join)
def test_the_others_do_not_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, methods: tuple[str, ...]
) -> None:
    run = tiny(*methods, seeds=(0, 1, 2), steps_per_block=3, probe_every=0, checkpoint_every=3)
    whole = InMemory(run).steps(24)
    break_rows(monkeypatch, {1: 5})
    broken = InMemory(run).steps(24)
    assert broken.trainer.parked[1] is not None
    for seed in (0, 2):
        assert broken.losses(seed) == whole.losses(seed)
        assert broken.events(seed) == whole.events(seed)
    for one, other in zip(broken.trainer.rows.copy(), whole.trainer.rows.copy(), strict=True):
        assert torch.equal(one[[0, 2]], other[[0, 2]])
        assert one.isfinite().all()


def test_a_loss_that_stays_infinite_does_not_move_what_is_parked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The weights are finite, but what they make of the data is not: every gradient is NaN."""
    run = InMemory(tiny("ema(0.9)", seeds=(0, 1), probe_every=0, max_grad_norm=1.0))
    run.trainer.stack.table.data[1] *= 1e30
    before = [table[1].clone() for table in run.trainer.rows.tables()]
    run.steps(15)
    assert run.trainer.parked == [None, 0]
    for table, own in zip(run.trainer.rows.tables(), before, strict=True):
        assert torch.equal(table[1], own)
        assert table[0].isfinite().all()


@pytest.mark.parametrize("methods", METHODS, ids=" + ".join)
def test_killed_and_resumed_is_the_run_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, methods: tuple[str, ...]
) -> None:
    break_rows(monkeypatch, {1: 4})
    whole, folder = begun(tmp_path / "whole", *methods), begun(tmp_path / "run", *methods)
    assert resume(whole)
    assert load_checkpoint(whole)[1]["parked"][1] is not None
    for _ in range(2):
        halt(folder)
    assert resume(folder)
    assert_same_run(whole, folder)


def test_results_and_the_page_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = begun(tmp_path / "run", "dat(mode=ramp, switch=10, ramp=40)")
    break_rows(monkeypatch, {1: 18})
    assert resume(folder)
    rows = evaluate_run(folder, (1, 3), 32)
    assert {(r["seed"], r.get("parked")) for r in rows} == {(0, None), (1, 15)}
    assert json.loads((folder / "results.json").read_text())["rows"] == rows
    gates = {seed: next(
        s.gate.item() for s in load(folder, seed).sublayers() if s.pathway == "attention"
    ) for seed in (0, 1)}  # fmt: skip
    assert gates == {0: pytest.approx(21 / 40), 1: pytest.approx(6 / 40)}
    page = report([folder], tmp_path / "page")
    assert "parked at step 15" in page.read_text()
    assert "1 parked" in (tmp_path / "page" / "report.md").read_text()


# ---- none is left ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seeds", "at", "message"),
    [
        ((4,), {0: 18}, r"seed 4: .* not finite between steps 15 and 20; the last"),
        ((0, 1), {0: 18, 1: 20}, r"seeds 0, 1: .* not finite between steps 15 and 20; the last"),
        ((0, 1), {0: 18, 1: 8}, r"seed 0: .* 15 and 20 \(the other 1 were parked before\); the"),
    ],
)
def test_the_run_stops_and_the_last_good_weights_are_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seeds: tuple[int, ...],
    at: dict[int, int],
    message: str,
) -> None:
    folder, told = begun(tmp_path / "run", "ema(0.9)", seeds=seeds), list[Progress]()
    good = InMemory(tiny("ema(0.9)", seeds=seeds)).steps(15).trainer.tensors()
    break_rows(monkeypatch, at)
    with pytest.raises(TrainingError, match=message) as caught:
        go_on(folder, CPU, told.append)
    assert f"kept in {folder}. No seed is left to train." in str(caught.value)
    assert "Try a smaller lr (it is 0.002)" in str(caught.value)
    assert told[-1].over
    assert told[-1].parked == seeds
    tensors, state = load_checkpoint(folder)
    since = [at[row] // 5 * 5 if at[row] % 5 else at[row] - 5 for row in range(len(seeds))]
    assert (state["step"], state["parked"], state["averaged"]) == (20, since, since)
    assert all_finite(folder)
    for name, table in good.items():
        assert torch.equal(tensors[name][0], table[0]), name
    assert "NaN" not in (folder / METRICS).read_text()
    events = [line for line in read_metrics(folder) if line.get("event") == "parked"]
    assert {line["seed"]: line["since"] for line in events} == dict(zip(seeds, since, strict=True))

    # what is there can be opened and tested, each seed as it was left
    monkeypatch.undo()
    assert finished(folder)
    rows = evaluate_run(folder, (1,), 16)
    assert {row["seed"]: row["parked"] for row in rows} == dict(zip(seeds, since, strict=True))
    assert session.tested(folder)

    # going on says the same, and changes nothing
    before, metrics = (folder / CHECKPOINT).read_bytes(), (folder / METRICS).read_bytes()
    with pytest.raises(TrainingError) as again:
        resume(folder)
    assert str(again.value) == str(caught.value) == str(diverged(folder))
    assert (folder / CHECKPOINT).read_bytes() == before
    assert (folder / METRICS).read_bytes() == metrics
    assert session.tested(folder)


def test_one_sound_seed_is_no_divergence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = begun(tmp_path / "run")
    break_rows(monkeypatch, {1: 18})
    assert resume(folder)
    assert diverged(folder) is None


def test_killed_before_it_diverged_and_resumed_is_the_run_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, folder = begun(tmp_path / "whole"), begun(tmp_path / "run")
    break_rows(monkeypatch, {0: 18, 1: 8})
    with pytest.raises(TrainingError):
        resume(whole)
    halt(folder)
    assert load_checkpoint(folder)[1]["step"] == 10
    with pytest.raises(TrainingError):
        resume(folder)
    assert_same_run(whole, folder)


@pytest.fixture(scope="module")
def a_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was tested, and one that diverged and was not."""
    base = tmp_path_factory.mktemp("pair")
    sound, bad = (begun(base / name, seeds=(0, 1)) for name in ("sound", "bad"))
    assert resume(sound)
    evaluate_run(sound, (1, 3), 32)
    with pytest.MonkeyPatch.context() as patch:
        break_rows(patch, {0: 18, 1: 8})
        with pytest.raises(TrainingError):
            resume(bad)
    return base


@pytest.mark.parametrize("evaluated", [True, False])
def test_the_page_shows_a_run_that_diverged(tmp_path: Path, a_pair: Path, evaluated: bool) -> None:
    sound, bad = (shutil.copytree(a_pair / n, tmp_path / n) for n in ("sound", "bad"))
    if evaluated:
        evaluate_run(bad, (1, 3), 32)
    page = report([sound, bad], tmp_path / "page").read_text()
    assert "diverged: every seed was parked" in page
    assert "2 parked" in (tmp_path / "page" / "report.md").read_text()
    arms = json.loads((tmp_path / "page" / "results.json").read_text())["studies"][0]["arms"]
    assert [arm["status"] for arm in arms] == ["evaluated", "diverged: every seed was parked"]
    assert arms[1]["parked"] == {"0": 15, "1": 5}
    assert ("(diverged)" in page) == evaluated
    assert ("0, parked at step 15" in page) == evaluated


def test_a_rate_far_too_high(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", lr=1e38, warmup=0, model="mlp > lstm @ 16")
    with pytest.raises(TrainingError, match=r"not finite.*Try a smaller lr \(it is 1e\+38\)"):
        resume(folder)
    assert all_finite(folder)
    assert load_checkpoint(folder)[1]["parked"] == [0, 0]


def test_asked_to_stop_after_a_broken_block_nothing_broken_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = begun(tmp_path / "run")
    break_rows(monkeypatch, {1: 5})
    fleet = Trainer([(tiny(), folder)], CPU)
    assert not fleet.train(stop=lambda: fleet.trainers[0].step > 0)
    assert load_checkpoint(folder)[1]["parked"] == [None, 0]
    assert all_finite(folder)


def test_before_its_average_has_begun_a_seed_is_tested_with_its_own_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rows(monkeypatch, {1: 1})  # in the very first step
    folder = begun(tmp_path / "run", "ema(0.9)")
    stack = RunState(tiny("ema(0.9)"), folder, CPU).stack
    first = {name: table[1].clone() for name, table in stack.named(stack.table).items()}
    resume(folder)
    for name, weight in load(folder, tiny().seeds[1]).state_dict().items():
        assert torch.equal(weight, first[name]), name
