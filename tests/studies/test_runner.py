"""Running a study: given again it goes on, and one bad arm does not stop the others."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from outlast.evaluation.run import evaluate_run
from outlast.train.session import go_on
from outlast.train.settings import RunSpec

import outlast.studies.runner as runner
import outlast.train.run_state as trainer_module
from outlast.errors import RunFolderError
from outlast.processes import Child, Parent
from outlast.runs import (
    BEFORE,
    CHECKPOINT,
    METRICS,
    RESULTS,
    RUN,
    read_metrics,
    read_run,
    write_json,
)
from outlast.studies import Arm, Claim, Study
from outlast.studies.runner import Job, Pack, Update, needed, packs, run_pack, run_study
from tiny_runs import (
    CPU,
    assert_same_run,
    checkpoint,
    halt,
    start_processes_at_once,
    tiny,
    trained,
)


def quick(*methods: str, **changed: Any) -> RunSpec:
    run = tiny(*methods, **({"steps": 20, "block": 10, "probe": 0, "checkpoint": 10} | changed))
    return replace(run, label=" ".join(methods) or "plain")


def study(*arms: Arm) -> Study:
    claims = [Claim("It is so", arms[0].name, 1, "us", low=0.0)]
    return Study("mini", "demo", "A small one", "Is it so?", arms, claims, (1, 3), 32)


ARMS = [Arm("plain", quick()), Arm("dat", quick("dat(switch=10)"))]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that need not load torch first."""
    start_processes_at_once(monkeypatch)


class Watcher:
    """Remembers the updates, and may act on them."""

    def __init__(self, act: Callable[[Update], None] = lambda update: None) -> None:
        self.updates: list[Update] = []
        self.act = act

    def __call__(self, update: Update) -> None:
        self.updates.append(update)
        self.act(update)

    def states(self, arm: str) -> list[str]:
        seen = [n.state for n in self.updates if n.arm == arm]
        return [s for i, s in enumerate(seen) if i == 0 or seen[i - 1] != s]


def run(arms: list[Arm], out: Path, watch: Callable[[Update], None], **options: Any) -> list[str]:
    options = {"device": "cpu", "workers": 2, "overwrite": False} | options
    return run_study(study(*arms), arms, out, watch=watch, **options)


def test_an_arm_with_cores_to_itself_shares_its_seeds_among_processes(
    tmp_path: Path, at_once: None
) -> None:
    seen = Watcher()
    assert run([Arm("plain", quick(processes=2))], tmp_path, seen) == []
    assert next(n.words for n in seen.updates if n.words).startswith(
        "2 seeds in 2 processes (about "
    )
    assert seen.states("plain")[-1] == "done"


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    found = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in found}


@pytest.mark.usefixtures("at_once")
def test_every_arm_is_trained_and_tested_and_then_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, watch = tmp_path / "study", Watcher()
    assert run(ARMS, out, watch) == []
    for arm in ARMS:
        assert watch.states(arm.name) == ["started", "training", "testing", "done"]
        results = json.loads((out / arm.name / RESULTS).read_text())
        assert results["sequences"] == 32
        assert {r["multiple"] for r in results["rows"]} == {1, 3}
        assert_same_run(trained(arm.run, tmp_path / arm.name), out / arm.name)
    assert [n.progress.step for n in watch.updates if n.progress and n.arm == "dat"] == [10, 20]

    before, again = files(out), Watcher()
    assert run(ARMS, out, again) == []
    assert [(n.arm, n.state) for n in again.updates] == [("plain", "done"), ("dat", "done")]
    assert files(out) == before

    (out / "dat" / RESULTS).unlink()  # trained, but not tested
    third = Watcher()
    assert run(ARMS, out, third) == []
    assert third.states("plain") == ["done"]
    assert third.states("dat") == ["started", "testing", "done"]
    assert files(out)[str(out / "dat" / RESULTS)][1] == before[str(out / "dat" / RESULTS)][1]


@pytest.mark.usefixtures("at_once")
def test_an_interrupted_arm_goes_on(tmp_path: Path) -> None:
    arm, out = ARMS[1], tmp_path / "study"
    create(arm.run, out / arm.name)
    halt(out / arm.name)
    assert json.loads(checkpoint(out / arm.name)[1])["step"] == 10
    watch = Watcher()
    assert run([arm], out, watch) == []
    assert [n.progress.step for n in watch.updates if n.progress] == [20]
    assert_same_run(trained(arm.run, tmp_path / "whole"), out / arm.name)


@pytest.mark.usefixtures("at_once")
def test_a_failing_arm_is_reported_and_the_others_finish(tmp_path: Path) -> None:
    create(ARMS[1].run, tmp_path / "dat")
    (tmp_path / "dat" / METRICS).write_text("no metrics\nat all\n")
    watch = Watcher()
    assert run(ARMS, tmp_path, watch) == ["dat"]
    (failed,) = [n for n in watch.updates if n.state == "failed"]
    assert failed.arm == "dat"
    assert "line 1 is damaged" in failed.error
    assert watch.states("plain")[-1] == "done"


@pytest.mark.usefixtures("at_once")
def test_an_arm_without_a_sound_seed_is_a_result(tmp_path: Path) -> None:
    bad = Arm("bad", quick(lr=1e38, warmup=0, model="mlp > lstm @ 16"))
    watch = Watcher()
    assert run([bad, ARMS[0]], tmp_path, watch) == []
    assert watch.states("plain")[-1] == "done"
    assert watch.states("bad") == ["started", "training", "testing", "diverged"]
    (told,) = [n for n in watch.updates if n.state == "diverged"]
    assert "not finite" in told.error
    rows = json.loads((tmp_path / "bad" / RESULTS).read_text())["rows"]
    assert {(row["seed"], row["parked"]) for row in rows} == {(0, 0), (1, 0)}

    before, again = files(tmp_path), Watcher()  # it is left alone, and told in the same words
    assert run([bad, ARMS[0]], tmp_path, again) == []
    assert [(n.arm, n.state, n.error) for n in again.updates] == [
        ("bad", "diverged", told.error), ("plain", "done", ""),
    ]  # fmt: skip
    assert files(tmp_path) == before


@pytest.mark.usefixtures("at_once")
def test_an_arm_whose_process_dies_is_reported(tmp_path: Path) -> None:
    """As one that the system ends for want of memory: it cannot say so itself."""

    def kill(update: Update) -> None:
        if update.state == "training" and update.arm == "long":
            pid = int((tmp_path / "long" / ".lock").read_text().removeprefix("process "))
            os.kill(pid, signal.SIGKILL)

    long, watch = Arm("long", quick(steps=100_000)), Watcher(kill)
    assert run([long, ARMS[0]], tmp_path, watch) == ["long"]
    (failed,) = [n for n in watch.updates if n.state == "failed"]
    assert failed.arm == "long"
    assert failed.error == "its process was ended by SIGKILL, perhaps for want of memory"
    assert watch.states("plain")[-1] == "done"


def mistaken(parent: Parent, pack: Pack, job: Job) -> None:
    """As `run_pack`, with a mistake of ours in it."""
    parent.send(Update(pack.arms[0].name, "testing"))
    parent.send(Update(pack.arms[0].name, "done"))
    raise ValueError("a mistake")


@pytest.mark.usefixtures("at_once")
def test_unexpected_error_is_logged_and_fails_the_open_arms_of_its_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "run_pack", mistaken)
    watch = Watcher()
    assert run(ARMS, tmp_path, watch, together=True) == ["dat"]
    assert watch.states("plain") == ["started", "testing", "done"]
    assert watch.states("dat") == ["started", "failed"]
    assert watch.updates[-1].error == "ValueError: a mistake"
    (record,) = caplog.records
    assert "in mistaken" in record.getMessage()


@pytest.mark.usefixtures("at_once")
def test_asked_to_stop_every_arm_saves_and_leaves(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # should nobody else listen
    try:
        long = [Arm(n, quick(steps=100_000, seeds=(s,))) for s, n in enumerate(("a", "b", "c"))]
        seen: set[str] = set()

        def ask(update: Update) -> None:
            if update.progress:
                seen.add(update.arm)
                if seen == {"a", "b"}:
                    os.kill(os.getpid(), signal.SIGTERM)

        watch = Watcher(ask)
        assert run(long, tmp_path, watch) == ["a", "b", "c"]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert watch.states("a")[-1] == watch.states("b")[-1] == "stopped"
    assert watch.states("c") == []  # its turn had not come
    for name in ("a", "b"):
        saved = json.loads(checkpoint(tmp_path / name)[1])["step"]
        assert saved > 0
        assert max(line["step"] for line in read_metrics(tmp_path / name)) == saved


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (quick(seeds=(5,)), r"\(seeds=5, not 0, 1\)"),
        (quick(steps=30), r"\(steps=30, not 20\)"),
        (quick("ema(0.9)"), r"\(methods=ema\(.*0.9\), not none; label=ema\(0.9\), not plain\)"),
        (quick(model="gru @ 8"), r"\(model=gru.* @ 8.*, not lstm.* @ 16.*\)"),
        (quick(seeds=(0, 1, 2), lr=0.1), r"\(seeds=0, 1, 2, not 0, 1; lr=0.1, not 0.002\)"),
    ],
)
def test_a_folder_with_another_run_is_not_touched(
    tmp_path: Path, other: RunSpec, named: str
) -> None:
    create(other, tmp_path / "plain")
    before = files(tmp_path)
    with pytest.raises(RunFolderError, match=f"holds a run with other seeds or settings {named}"):
        run([ARMS[0]], tmp_path, Watcher())
    assert files(tmp_path) == before


@pytest.mark.usefixtures("at_once")
def test_told_to_it_starts_anew(tmp_path: Path) -> None:
    create(quick(seeds=(5,)), tmp_path / "plain")
    assert run([ARMS[0]], tmp_path, Watcher(), overwrite=True) == []
    assert read_run(tmp_path / "plain")["seeds"] == [0, 1]
    assert (tmp_path / "plain" / CHECKPOINT).exists()


def test_no_arms_at_all(tmp_path: Path) -> None:
    assert run_study(study(*ARMS), [], tmp_path, "cpu", 2, False, Watcher()) == []


# ---- arms trained as one -----------------------------------------------------------------------

MANY = [
    Arm("plain", quick()),
    Arm("gru", quick(model="gru @ 8")),
    Arm("dat", quick("dat(switch=10)", seeds=(3,))),
    Arm("bad", quick(lr=1e38, warmup=0)),
    Arm("fast", quick("ema(0.9)", lr=5e-3)),
]


def test_arms_of_one_model_task_and_batch_go_together() -> None:
    spelt = replace(MANY[0].run, model=MANY[0].run.model.replace(" > mlp", " > mlp()"))
    arms = [*MANY, Arm("spelt", spelt), Arm("small", quick(batch_size=4))]
    names = [[a.name for a in pack] for pack in packs(arms, True)]
    assert names == [["plain", "dat", "bad", "fast", "spelt"], ["gru"], ["small"]]
    assert packs(arms, False) == [(a,) for a in arms]


@pytest.mark.usefixtures("at_once")
def test_a_study_of_arms_together(tmp_path: Path) -> None:
    out, watch = tmp_path / "study", Watcher()
    assert run(MANY, out, watch, together=True) == []
    for arm in MANY:
        end = "diverged" if arm.name == "bad" else "done"
        assert watch.states(arm.name) == ["started", "training", "testing", end]
        words = [n.words for n in watch.updates if n.arm == arm.name and n.words]
        assert words[0].startswith("2 seeds at once" if arm.name == "gru" else "7 seeds at once")
    assert "not finite" in next(n.error for n in watch.updates if n.state == "diverged")
    for arm in (MANY[0], MANY[2], MANY[4]):
        results = json.loads((out / arm.name / RESULTS).read_text())
        assert {r["seed"] for r in results["rows"]} == set(arm.run.seeds)
        alone = trained(arm.run, tmp_path / arm.name)
        states = [json.loads(checkpoint(f)[1]) for f in (alone, out / arm.name)]
        assert [s["step"] for s in states] == [20, 20]
        seen = [[(x["step"], *x) for x in read_metrics(f)] for f in (alone, out / arm.name)]
        assert seen[0] == seen[1]

    # given again, none is touched; and one that is to be tested again is, beside the others
    before, again = files(out), Watcher()
    assert run(MANY, out, again, together=True) == []
    assert [n.state for n in again.updates if n.arm in ("plain", "bad")] == ["done", "diverged"]
    assert files(out) == before
    kept = {a.name: (checkpoint(out / a.name), files(out)[str(out / a.name / RESULTS)])
            for a in MANY if a.name != "bad"}  # fmt: skip
    (out / "bad" / RESULTS).unlink()
    third = Watcher()
    assert run(MANY, out, third, together=True) == []
    assert third.states("plain") == ["done"]
    assert third.states("bad") == ["started", "testing", "diverged"]
    assert {n: (checkpoint(out / n), files(out)[str(out / n / RESULTS)]) for n in kept} == kept


@pytest.mark.usefixtures("at_once")
def test_arms_together_that_were_stopped_go_on_bit_for_bit(tmp_path: Path) -> None:
    arms = [replace(a, run=replace(a.run, settings=replace(a.run.settings, steps=60)))
            for a in (MANY[0], MANY[2], MANY[4])]  # fmt: skip
    assert run(arms, tmp_path / "whole", Watcher(), together=True) == []
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:

        def ask(update: Update) -> None:
            if update.progress and update.progress.step == 20:
                os.kill(os.getpid(), signal.SIGTERM)

        watch = Watcher(ask)
        stopped = run(arms, tmp_path / "parts", watch, together=True)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stopped == sorted(a.name for a in arms), "they had ended before they were asked"
    assert all(watch.states(a.name)[-1] == "stopped" for a in arms)
    assert run(arms, tmp_path / "parts", Watcher(), together=True) == []
    for arm in arms:
        assert_same_run(tmp_path / "whole" / arm.name, tmp_path / "parts" / arm.name)


@pytest.mark.usefixtures("at_once")
def test_arms_added_to_finished_ones_do_not_pay_for_them(tmp_path: Path) -> None:
    first, added, third = MANY[0], MANY[2], MANY[4]
    longer = replace(added.run.settings, steps=60)
    added = replace(added, run=replace(added.run, settings=longer))

    def at_once(watch: Watcher) -> list[str]:
        return [n.words.split(" (")[0] for n in watch.updates if n.words]

    watch = Watcher()
    assert run([first], tmp_path, watch, together=True) == []
    assert at_once(watch) == ["2 seeds at once"]
    watch, before = Watcher(), files(tmp_path / first.name)
    assert run([first, added, third], tmp_path, watch, together=True) == []
    assert set(at_once(watch)) == {"3 seeds at once"}
    assert files(tmp_path / first.name) == before
    assert read_run(tmp_path / added.name)["pack"] == [added.name, third.name]

    def pack(*todo: str) -> list[str]:
        return [a.name for a in needed([first, added, third], tmp_path, todo)]

    # it goes on beside those it was begun with, also once they are at their end
    assert pack(added.name) == [added.name, third.name]
    assert pack(first.name) == [first.name]
    record = read_run(tmp_path / added.name)
    del record["pack"]  # as before it was noted
    write_json(tmp_path / added.name / RUN, record)
    assert pack(added.name) == [first.name, added.name, third.name]
    (tmp_path / added.name / RUN).unlink()
    assert pack(added.name) == [added.name]


@pytest.mark.usefixtures("at_once")
def test_an_arm_begun_beside_one_that_ended_sooner_goes_on_bit_for_bit(tmp_path: Path) -> None:
    longer = replace(MANY[2].run.settings, steps=200)
    arms = [MANY[0], replace(MANY[2], run=replace(MANY[2].run, settings=longer))]
    assert run(arms, tmp_path / "whole", Watcher(), together=True) == []
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:

        def ask(update: Update) -> None:
            if update.arm == arms[1].name and update.progress and update.progress.step == 30:
                os.kill(os.getpid(), signal.SIGTERM)

        run(arms, tmp_path / "parts", Watcher(ask), together=True)
    finally:
        signal.signal(signal.SIGTERM, before)
    saved = [json.loads(checkpoint(tmp_path / "parts" / a.name)[1])["step"] for a in arms]
    assert saved[0] == 20
    assert 20 < saved[1] < 200, "it had ended before it was asked"
    assert run(arms[:1], tmp_path / "parts", Watcher(), together=True) == []  # it is tested
    again = Watcher()
    assert run(arms, tmp_path / "parts", again, together=True) == []
    assert again.states(arms[0].name) == ["done"]
    # on some devices products over fewer seeds are rounded alike: so see that it was there
    assert [n.words.split(" (")[0] for n in again.updates if n.words] == ["3 seeds at once"]
    for arm in arms:
        assert_same_run(tmp_path / "whole" / arm.name, tmp_path / "parts" / arm.name)


@pytest.mark.usefixtures("at_once")
def test_an_arm_saves_and_leaves_when_the_study_dies(tmp_path: Path) -> None:
    pack = Pack((Arm("long", quick(steps=100_000)),), tmp_path, frozenset(["long"]))
    child = Child(run_pack, pack, Job("cpu", 1, 1.0, (1,), 8, False), graceful=True)
    assert child.receive().state == "training"
    child.receive()  # a block is trained
    child.close()
    assert child.process.wait(60) == 0
    assert 0 < json.loads(checkpoint(tmp_path / "long")[1])["step"] < 100_000


def test_an_arm_tested_before_its_end_is_tested_again(tmp_path: Path) -> None:
    arm, folder = ARMS[0], tmp_path / "plain"
    create(arm.run, folder)
    resume(folder)
    assert runner.unfinished_arms([arm], tmp_path, False) == [arm], "trained and never tested"
    evaluate_run(folder, (1,), 8)
    assert runner.unfinished_arms([arm], tmp_path, False) == []
    results = json.loads((folder / RESULTS).read_text())
    write_json(folder / RESULTS, results | {"step": 10})
    assert runner.unfinished_arms([arm], tmp_path, False) == [arm]


def test_going_on_takes_back_the_results_of_an_earlier_step(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    create(ARMS[0].run, folder)

    def leave(progress: trainer_module.Progress) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    assert not go_on(folder, CPU, leave)
    evaluate_run(folder, (1,), 8)
    assert json.loads((folder / RESULTS).read_text())["step"] == 10
    evaluate_run(folder, (1,), 4)
    assert (folder / BEFORE).exists()
    assert resume(folder)
    assert not (folder / RESULTS).exists()
    assert not (folder / BEFORE).exists()
