"""Running a study: given again it goes on, and one bad arm does not stop the others."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

import outlast.studies.runner as runner
from outlast.errors import RunFolderError
from outlast.processes import Child, Parent
from outlast.runs.checkpoint import load_state
from outlast.runs.folder import CHECKPOINT, METRICS, PREVIOUS_RESULTS, RESULTS, RUN, write_json
from outlast.runs.records import read_metrics, read_results, read_run
from outlast.runs.spec import RunSpec
from outlast.studies import Arm, Claim, Study
from outlast.studies.runner import Job, Pack, Update, needed, packs, run_pack, run_study
from outlast.sweep.engine import RETRIES
from outlast.workflow.evaluate import Evaluation, evaluate_run
from outlast.workflow.train import Listener
from tiny_runs import (
    CPU,
    assert_same_run,
    create,
    halt,
    line_kinds,
    resume,
    start_processes_at_once,
    tiny,
    train_runs,
    trained,
)


def quick(*methods: str, **changed: Any) -> RunSpec:
    usual = {"steps": 20, "steps_per_block": 10, "probe_every": 0, "checkpoint_every": 10}
    return replace(tiny(*methods, **(usual | changed)), label=" ".join(methods) or "plain")


def longer(arm: Arm, steps: int) -> Arm:
    return replace(arm, run=replace(arm.run, settings=replace(arm.run.settings, steps=steps)))


PLAIN, DAT = ARMS = [Arm("plain", quick()), Arm("dat", quick("dat(switch=10)"))]


@pytest.fixture(autouse=True)
def _processes_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They need not load torch first."""
    start_processes_at_once(monkeypatch)


@pytest.fixture
def ask_to_stop(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Sends SIGTERM or another signal to this process; it does not die of it if nobody listens."""
    number = getattr(request, "param", signal.SIGTERM)
    before = signal.signal(number, lambda *_: None)
    yield lambda: os.kill(os.getpid(), number)
    signal.signal(number, before)


class Watcher:
    """Remembers the updates, and may act on them."""

    def __init__(self, act: Callable[[Update], None] = lambda update: None) -> None:
        self.updates: list[Update] = []
        self.act = act

    def __call__(self, update: Update) -> None:
        self.updates.append(update)
        self.act(update)

    def states(self, arm: str) -> list[str]:
        return [state for state, _ in groupby(u.state for u in self.updates if u.arm == arm)]

    def words(self, arm: str | None = None) -> list[str]:
        """What was said, without the reasons in brackets."""
        texts = [u.words for u in self.updates if u.words and arm in (None, u.arm)]
        return [text.split(" (")[0] for text in texts]

    def only(self, state: str) -> Update:
        (update,) = (u for u in self.updates if u.state == state)
        return update


def run(
    arms: list[Arm],
    out: Path,
    watch: Watcher | None = None,
    left: tuple[str, ...] = (),
    **options: Any,
) -> Watcher:
    """Run a study of arms; those that are not at their end after it are the ones in `left`."""
    watch = watch or Watcher()
    claims = [Claim("It is so", "plain", 1, "us", low=0.0)]
    study = Study("mini", "demo", "A small one", "Is it so?", arms, claims, (1, 3), 32)
    options = {"device": "cpu", "workers": 2, "overwrite": False} | options
    assert run_study(study, arms, out, watch=watch, **options) == list(left)
    return watch


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    paths = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in paths}


def test_arm_shares_its_seeds_among_processes(tmp_path: Path) -> None:
    watch = run([Arm("plain", quick(processes=2))], tmp_path)
    assert watch.words() == ["2 seeds in 2 processes"]
    assert watch.states("plain")[-1] == "done"


def test_every_arm_is_trained_and_tested_and_then_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "study"
    watch = run(ARMS, out)
    for arm in ARMS:
        assert watch.states(arm.name) == ["started", "training", "testing", "done"]
        results = read_results(out / arm.name / RESULTS)
        assert results.sequences == 32
        assert {row["multiple"] for row in results.rows} == {1, 3}
        assert_same_run(trained(arm.run, tmp_path / arm.name), out / arm.name)
    assert [u.progress.step for u in watch.updates if u.progress and u.arm == "dat"] == [10, 20]

    before = files(out)
    again = run(ARMS, out)
    assert [(u.arm, u.state) for u in again.updates] == [("plain", "done"), ("dat", "done")]
    assert files(out) == before

    (out / "dat" / RESULTS).unlink()  # trained, but not tested
    third = run(ARMS, out)
    assert third.states("plain") == ["done"]
    assert third.states("dat") == ["started", "testing", "done"]
    assert files(out)[str(out / "dat" / RESULTS)][1] == before[str(out / "dat" / RESULTS)][1]


def test_interrupted_arm_is_resumed(tmp_path: Path) -> None:
    folder = create(DAT.run, tmp_path / "study" / "dat")
    halt(folder)
    assert load_state(folder).step == 10
    watch = run([DAT], tmp_path / "study")
    assert [u.progress.step for u in watch.updates if u.progress] == [20]
    assert_same_run(trained(DAT.run, tmp_path / "whole"), folder)


def test_failing_arm_is_reported_and_the_others_finish(tmp_path: Path) -> None:
    create(DAT.run, tmp_path / "dat")
    (tmp_path / "dat" / METRICS).write_text("no metrics\nat all\n")
    watch = run(ARMS, tmp_path, left=("dat",))
    failed = watch.only("failed")
    assert failed.arm == "dat"
    assert "line 1: damaged" in failed.error
    assert watch.states("plain")[-1] == "done"


def test_arm_without_a_sound_seed_is_a_result(tmp_path: Path) -> None:
    arms = [Arm("bad", quick(lr=1e38, warmup=0, model="mlp > lstm @ 16")), PLAIN]
    watch = run(arms, tmp_path)
    assert watch.states("plain")[-1] == "done"
    assert watch.states("bad") == ["started", "training", "testing", "diverged"]
    diverged = watch.only("diverged")
    assert "not finite" in diverged.error
    rows = read_results(tmp_path / "bad" / RESULTS).rows
    assert {(row["seed"], row["parked"]) for row in rows} == {(0, 0), (1, 0)}

    before = files(tmp_path)  # it is left alone, and told in the same words
    again = run(arms, tmp_path)
    assert [(u.arm, u.state, u.error) for u in again.updates] == [
        ("bad", "diverged", diverged.error), ("plain", "done", ""),
    ]  # fmt: skip
    assert files(tmp_path) == before


def kill_process_of(folder: Path) -> None:
    """As the system does for want of memory: the process cannot say so itself."""
    pid = int((folder / ".lock").read_text().removeprefix("process "))
    with suppress(ProcessLookupError):  # its last messages came after its end
        os.kill(pid, signal.SIGKILL)


KILLED = "its process was ended by SIGKILL, perhaps for want of memory"


def test_arm_whose_process_dies_again_and_again_is_reported(tmp_path: Path) -> None:
    def kill(update: Update) -> None:
        if update.state == "training" and update.arm == "long":
            kill_process_of(tmp_path / "long")

    long = Arm("long", quick(steps=100_000))
    watch = run([long, PLAIN], tmp_path, Watcher(kill), left=("long",))
    failed = watch.only("failed")
    assert failed.arm == "long"
    assert failed.error == f"lost {RETRIES + 1} times; the last time {KILLED}"
    lost = [update for update in watch.updates if update.state == "lost"]
    assert [(u.arm, u.pack, u.error) for u in lost] == [("long", ("long",), "")] * RETRIES
    assert lost[0].words == f"{KILLED}; trying again from the last checkpoint"
    assert watch.states("plain")[-1] == "done"


def test_arms_whose_process_dies_go_on_bit_for_bit(tmp_path: Path) -> None:
    arms = [PLAIN, longer(ONE_SEED, 200)]
    run(arms, tmp_path / "whole", together=True)
    out, kills = tmp_path / "killed", [20]
    create(quick(seeds=(5,)), out / "plain")  # it is overwritten once

    def kill(update: Update) -> None:
        if kills and update.arm == "dat" and update.progress and update.progress.step == kills[0]:
            kills.pop()
            kill_process_of(out / "dat")

    watch = run(arms, out, Watcher(kill), together=True, overwrite=True)
    expected = ["started", "training", "lost", "started", "training", "testing", "done"]
    assert watch.states("dat") == expected
    assert watch.states("plain")[-1] == "done"
    assert {u.pack for u in watch.updates if u.state == "lost"} == {("plain", "dat")}
    steps = [u.progress.step for u in watch.updates if u.progress and u.arm == "dat"]
    assert steps.count(10) == 1, "it has begun anew"
    for arm in arms:
        assert_same_run(tmp_path / "whole" / arm.name, out / arm.name)


def test_pack_whose_process_died_leaves_out_what_is_at_its_end() -> None:
    pack = Pack((PLAIN, DAT), Path(), frozenset(["plain", "dat"]))
    once = runner._next_try(pack, {"plain": "done", "dat": "testing"})
    assert (once.arms, once.names, once.losses, once.created) == ((PLAIN, DAT), ["dat"], 1, True)
    # killed before it told anything: the folders may still be those to be overwritten
    assert not runner._next_try(pack, {"plain": "started", "dat": "started"}).created


def mistaken(parent: Parent, pack: Pack, job: Job) -> None:
    """As `run_pack`, with a mistake of ours in it."""
    parent.send(Update(pack.arms[0].name, "testing"))
    parent.send(Update(pack.arms[0].name, "done"))
    raise ValueError("a mistake")


def test_unexpected_error_is_logged_and_fails_the_open_arms_of_its_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "run_pack", mistaken)
    watch = run(ARMS, tmp_path, left=("dat",), together=True)
    assert watch.states("plain") == ["started", "testing", "done"]
    assert watch.states("dat") == ["started", "failed"]
    assert watch.updates[-1].error == "ValueError: a mistake"
    (record,) = caplog.records
    assert "in mistaken" in record.getMessage()


@pytest.mark.parametrize(
    "ask_to_stop", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"], indirect=True
)
def test_every_arm_saves_and_leaves_when_asked_to_stop(
    tmp_path: Path, ask_to_stop: Callable[[], None]
) -> None:
    arms = [Arm(n, quick(steps=100_000, seeds=(s,))) for s, n in enumerate(("a", "b", "c"))]
    training: set[str] = set()

    def ask(update: Update) -> None:
        if update.progress:
            training.add(update.arm)
            if training == {"a", "b"}:
                ask_to_stop()

    watch = run(arms, tmp_path, Watcher(ask), left=("a", "b", "c"))
    assert watch.states("a")[-1] == watch.states("b")[-1] == "stopped"
    assert watch.states("c") == []  # its turn had not come
    for name in ("a", "b"):
        saved = load_state(tmp_path / name).step
        assert max(line.step for line in read_metrics(tmp_path / name)) == saved > 0


@pytest.mark.parametrize(
    ("other", "differences"),
    [
        (quick(seeds=(5,)), r"\(seeds=5, not 0, 1\)"),
        (quick(steps=30), r"\(steps=30, not 20\)"),
        (quick("ema(0.9)"), r"\(methods=ema\(.*0.9\), not none; label=ema\(0.9\), not plain\)"),
        (quick(model="gru @ 8"), r"\(model=gru.* @ 8.*, not lstm.* @ 16.*\)"),
        (quick(seeds=(0, 1, 2), lr=0.1), r"\(seeds=0, 1, 2, not 0, 1; lr=0.1, not 0.002\)"),
    ],
)
def test_folder_with_another_run_is_not_touched(
    tmp_path: Path, other: RunSpec, differences: str
) -> None:
    create(other, tmp_path / "plain")
    before = files(tmp_path)
    message = f"holds a run with other seeds or settings {differences}"
    with pytest.raises(RunFolderError, match=message):
        run([PLAIN], tmp_path)
    assert files(tmp_path) == before


def test_overwrite_starts_an_arm_anew(tmp_path: Path) -> None:
    create(quick(seeds=(5,)), tmp_path / "plain")
    run([PLAIN], tmp_path, overwrite=True)
    assert read_run(tmp_path / "plain").seeds == (0, 1)
    assert (tmp_path / "plain" / CHECKPOINT).exists()


def test_processes_go_to_several_devices_in_turn() -> None:
    slots = runner._slots(["cuda:0", "cuda:1"], 3)
    assert [(s.device, s.share) for s in slots] == [("cuda:0", 0.5), ("cuda:1", 1), ("cuda:0", 0.5)]


def test_study_without_arms_does_nothing(tmp_path: Path) -> None:
    assert run([], tmp_path).updates == []


# ---- arms trained as one -----------------------------------------------------------------------

GRU = Arm("gru", quick(model="gru @ 8"))
ONE_SEED = Arm("dat", quick("dat(switch=10)", seeds=(3,)))
BAD = Arm("bad", quick(lr=1e38, warmup=0))
FAST = Arm("fast", quick("ema(0.9)", lr=5e-3))
MANY = [PLAIN, GRU, ONE_SEED, BAD, FAST]


def test_arms_of_one_model_task_and_batch_go_together() -> None:
    written_out = replace(PLAIN.run, model=PLAIN.run.model.replace(" > mlp", " > mlp()"))
    arms = [*MANY, Arm("written out", written_out), Arm("small", quick(batch_size=4))]
    names = [[arm.name for arm in pack] for pack in packs(arms, True)]
    assert names == [["plain", "dat", "bad", "fast", "written out"], ["gru"], ["small"]]
    assert packs(arms, False) == [(arm,) for arm in arms]


def test_arms_together_are_each_trained_tested_and_then_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "study"
    watch = run(MANY, out, together=True)
    for arm in MANY:
        end = "diverged" if arm is BAD else "done"
        assert watch.states(arm.name) == ["started", "training", "testing", end]
        assert watch.words(arm.name) == [f"{2 if arm is GRU else 7} seeds at once"]
    assert "not finite" in watch.only("diverged").error
    for arm in (PLAIN, ONE_SEED, FAST):
        folder, alone = out / arm.name, trained(arm.run, tmp_path / arm.name)
        assert {row["seed"] for row in read_results(folder / RESULTS).rows} == set(arm.run.seeds)
        assert load_state(folder).step == load_state(alone).step == 20
        assert line_kinds(folder) == line_kinds(alone)

    before = files(out)
    again = run(MANY, out, together=True)
    assert [u.state for u in again.updates if u.arm in ("plain", "bad")] == ["done", "diverged"]
    assert files(out) == before

    (out / "bad" / RESULTS).unlink()  # it is tested again, beside the others
    third = run(MANY, out, together=True)
    assert third.states("plain") == ["done"]
    assert third.states("bad") == ["started", "testing", "diverged"]
    after = files(out)
    for arm in MANY:
        path = str(out / arm.name / CHECKPOINT)
        assert after[path][1] == before[path][1]
    for arm in (PLAIN, GRU, ONE_SEED, FAST):
        path = str(out / arm.name / RESULTS)
        assert after[path] == before[path]


def test_failing_test_of_an_arm_leaves_the_others_of_its_pack_done(tmp_path: Path) -> None:
    watch = run([PLAIN, replace(DAT, ladder=(-1.0,))], tmp_path, left=("dat",), together=True)
    assert watch.states("plain") == ["started", "training", "testing", "done"]
    assert watch.states("dat") == ["started", "training", "testing", "failed"]
    assert "lengths=-1.0: expected" in watch.only("failed").error


def test_replaced_results_are_told_and_leave_each_arm_in_its_state(tmp_path: Path) -> None:
    run(ARMS, tmp_path, together=True)
    for arm in ARMS:
        (tmp_path / arm.name / RESULTS).unlink()
    evaluate_run(tmp_path / "dat", Evaluation((1, 2, 3), 16))
    watch = run(ARMS, tmp_path, together=True)
    for arm in ARMS:
        assert watch.words(arm.name) == ["results.json is replaced; the one before"]
        assert watch.states(arm.name) == ["started", "testing", "done"]


def test_arms_together_that_were_stopped_resume_bit_for_bit(
    tmp_path: Path, ask_to_stop: Callable[[], None]
) -> None:
    arms = [longer(arm, 60) for arm in (PLAIN, ONE_SEED, FAST)]
    run(arms, tmp_path / "whole", together=True)

    def ask(update: Update) -> None:
        if update.progress and update.progress.step == 20:
            ask_to_stop()

    parts, names = tmp_path / "parts", ("dat", "fast", "plain")
    watch = run(arms, parts, Watcher(ask), left=names, together=True)
    assert all(watch.states(name)[-1] == "stopped" for name in names)
    run(arms, parts, together=True)
    for name in names:
        assert_same_run(tmp_path / "whole" / name, parts / name)


def test_arms_added_to_finished_ones_do_not_pay_for_them(tmp_path: Path) -> None:
    arms = [PLAIN, longer(ONE_SEED, 60), FAST]
    assert run([PLAIN], tmp_path, together=True).words() == ["2 seeds at once"]
    before = files(tmp_path / "plain")
    assert set(run(arms, tmp_path, together=True).words()) == {"3 seeds at once"}
    assert files(tmp_path / "plain") == before
    assert read_run(tmp_path / "dat").pack == ("dat", "fast")

    def pack(*todo: str) -> list[str]:
        return [arm.name for arm in needed(arms, tmp_path, todo)]

    # it goes on beside those it was created with, also once they are at their end
    assert pack("dat") == ["dat", "fast"]
    assert pack("plain") == ["plain"]
    record = json.loads((tmp_path / "dat" / RUN).read_text())
    del record["pack"]  # as before it was noted
    write_json(tmp_path / "dat" / RUN, record)
    assert pack("dat") == ["plain", "dat", "fast"]
    (tmp_path / "dat" / RUN).unlink()
    assert pack("dat") == ["dat"]


def test_arm_created_beside_one_that_ended_sooner_resumes_bit_for_bit(
    tmp_path: Path, ask_to_stop: Callable[[], None]
) -> None:
    arms = [PLAIN, longer(ONE_SEED, 200)]
    run(arms, tmp_path / "whole", together=True)

    def ask(update: Update) -> None:
        if update.arm == "dat" and update.progress and update.progress.step == 30:
            ask_to_stop()

    parts = tmp_path / "parts"
    run(arms, parts, Watcher(ask), left=("dat", "plain"), together=True)
    assert load_state(parts / "plain").step == 20
    assert 20 < load_state(parts / "dat").step < 200, "it had ended before it was asked"
    run(arms[:1], parts, together=True)  # it is tested
    again = run(arms, parts, together=True)
    assert again.states("plain") == ["done"]
    # on some devices matmuls over fewer seeds are rounded alike: so see that it was there
    assert again.words() == ["3 seeds at once"]
    for arm in arms:
        assert_same_run(tmp_path / "whole" / arm.name, parts / arm.name)


def test_arm_saves_and_leaves_when_the_study_dies(tmp_path: Path) -> None:
    pack = Pack((Arm("long", quick(steps=100_000)),), tmp_path, frozenset(["long"]))
    child = Child(run_pack, pack, Job("cpu", 1, 1.0, False, (1,), 8), graceful=True)
    assert child.receive().state == "training"
    child.receive()  # a block is trained
    child.close()
    assert child.process.wait(60) == 0
    assert 0 < load_state(tmp_path / "long").step < 100_000


# ---- results of an earlier step ----------------------------------------------------------------


def test_arm_tested_before_its_end_is_tested_again(tmp_path: Path) -> None:
    folder = trained(PLAIN.run, tmp_path / "plain")
    assert runner.unfinished_arms([PLAIN], tmp_path, False) == [PLAIN], "trained and never tested"
    evaluate_run(folder, Evaluation((1,), 8))
    assert runner.unfinished_arms([PLAIN], tmp_path, False) == []
    results = json.loads((folder / RESULTS).read_text())
    write_json(folder / RESULTS, results | {"step": 10})
    assert runner.unfinished_arms([PLAIN], tmp_path, False) == [PLAIN]


def test_resume_removes_the_results_of_an_earlier_step(
    tmp_path: Path, ask_to_stop: Callable[[], None]
) -> None:
    folder, listener = create(PLAIN.run, tmp_path), Listener()
    listener.training = lambda *_: ask_to_stop()  # type: ignore[method-assign]
    assert not train_runs([folder], CPU, listener).ended
    evaluate_run(folder, Evaluation((1,), 8))
    assert read_results(folder / RESULTS).step == 10
    evaluate_run(folder, Evaluation((1,), 4))
    assert (folder / PREVIOUS_RESULTS).exists()
    assert resume(folder)
    assert not (folder / RESULTS).exists()
    assert not (folder / PREVIOUS_RESULTS).exists()
