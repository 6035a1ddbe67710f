"""Packs on the devices of a machine: each is recorded once, whatever becomes of workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import OutlastError, RunFolderError
from outlast.runs.checkpoint import load_state
from outlast.runs.folder import RESULTS
from outlast.runs.spec import RunSpec
from outlast.sweep import devices as devices_module
from outlast.sweep.candidates import find_candidates
from outlast.sweep.devices import LocalDevices, find_devices, make_slots
from outlast.sweep.engine import Outcome, PackUpdate, run_packs
from outlast.sweep.packs import Pack, cut_packs
from outlast.sweep.progress import SweepProgress
from outlast.sweep.record import SweepRecord, open_sweep, shared_by_all
from outlast.sweep.work import PackJob, PackProgress, Slot, run_attempt
from outlast.workflow.evaluate import Evaluation
from tiny_runs import assert_same_run, start_processes_at_once, tiny

TEST = Evaluation((1.0, 3.0), 16)
QUICK = {"steps": 10, "checkpoint_every": 5, "probe_every": 0}
RUNS = find_candidates(tiny(model="", **QUICK), ["model=lstm @ 8,gru @ 8", "lr=0.001,0.002,0.004"])


def packs_of(runs: Mapping[str, RunSpec], most_seeds: int = 4) -> list[Pack]:
    return cut_packs(runs, TEST, most_seeds)


def light(**changed: Any) -> RunSpec:
    """A run of many steps in little time."""
    usual = {"probe_every": 0, "batch_size": 2, "seeds": (0,)}
    return tiny(task="parity(length=2)", model="lstm @ 4", **(usual | changed))


def pid_of_attempt(out: Path) -> int:
    """The worker at the newest attempt of the only pack."""
    locks = (out / ".sweep" / "attempts").glob("*/*/*/.lock")
    newest = max(locks, key=lambda path: path.stat().st_mtime_ns)
    return int(newest.read_text().removeprefix("process "))


@pytest.fixture(autouse=True)
def _processes_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    start_processes_at_once(monkeypatch)


class Watcher:
    """Remembers the updates, and may act on them."""

    def __init__(self, act: Callable[[PackUpdate], None] = lambda update: None) -> None:
        self.updates: list[PackUpdate] = []
        self.act = act

    def __call__(self, update: PackUpdate) -> None:
        self.updates.append(update)
        self.act(update)

    def states(self, pack: Pack) -> list[str]:
        states = [u.state for u in self.updates if u.pack == pack and not u.progress]
        return list(dict.fromkeys(states))


def sweep(
    out: Path, packs: list[Pack], devices: str, watch: Watcher | None = None, **options: Any
) -> Outcome:
    return run_packs(out, packs, LocalDevices(devices.split(",")), watch or Watcher(), **options)


def test_two_cpu_devices_give_the_bits_of_one_and_nothing_is_trained_twice(tmp_path: Path) -> None:
    packs, watch = packs_of(RUNS), Watcher()
    assert sweep(tmp_path / "two", packs, "cpu,cpu", watch) == Outcome({}, [])
    assert sweep(tmp_path / "one", packs, "cpu") == Outcome({}, [])
    for name in RUNS:
        assert_same_run(tmp_path / "one" / name, tmp_path / "two" / name)
        results = [(tmp_path / each / name / RESULTS).read_bytes() for each in ("one", "two")]
        assert results[0] == results[1]
    places = {u.progress.place for u in watch.updates if u.progress}
    assert len(places) == 1
    assert [watch.states(pack) for pack in packs] == [["running", "done"]] * 4

    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "two").rglob("*") if p.is_file()}
    again = Watcher()
    sweep(tmp_path / "two", packs, "cpu", again)
    assert [u.state for u in again.updates] == ["done"] * 4
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_lost_worker_is_replaced_and_its_pack_goes_on(tmp_path: Path) -> None:
    packs = packs_of(find_candidates(light(steps=60, checkpoint_every=5)))
    killed: list[int] = []

    def kill(update: PackUpdate) -> None:
        if update.progress and update.progress.share and not killed:
            killed.append(pid_of_attempt(tmp_path / "sweep"))
            os.kill(killed[0], signal.SIGKILL)

    watch = Watcher(kill)
    assert sweep(tmp_path / "sweep", packs, "cpu", watch) == Outcome({}, [])
    assert watch.states(packs[0]) == ["running", "lost", "done"]
    sweep(tmp_path / "whole", packs, "cpu")
    assert_same_run(tmp_path / "whole" / "run", tmp_path / "sweep" / "run")


def test_pack_that_is_lost_again_and_again_fails(tmp_path: Path) -> None:
    packs = packs_of(find_candidates(light(steps=100_000)))

    def kill(update: PackUpdate) -> None:
        if update.progress and update.progress.share:
            with suppress(ProcessLookupError):  # what a dead one has sent may still arrive
                os.kill(pid_of_attempt(tmp_path), signal.SIGKILL)

    outcome = sweep(tmp_path, packs, "cpu", Watcher(kill), retries=1)
    (reason,) = outcome.failed.values()
    assert reason.startswith("run: lost 2 times; the last time its process was ended by SIGKILL")
    assert not (tmp_path / "run").exists()


def test_failing_pack_does_not_stop_the_others(tmp_path: Path) -> None:
    good, bad = packs_of(RUNS, 100)
    bad = Pack(bad.name, bad.runs, (Evaluation((-1.0,), 16),) * 3)
    outcome = sweep(tmp_path, [bad, good], "cpu")
    assert "lengths=-1.0: expected" in outcome.failed[bad.name]
    assert all((tmp_path / name / RESULTS).exists() for name in good.names)


def test_sweep_that_is_asked_to_stop_saves_and_goes_on(tmp_path: Path) -> None:
    packs = packs_of(find_candidates(light(steps=300, checkpoint_every=500)))
    asked: list[float] = []

    def ask(update: PackUpdate) -> None:
        if update.progress and update.progress.share and not asked:
            asked.append(update.progress.share)
            os.kill(os.getpid(), signal.SIGTERM)

    handler = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        outcome = sweep(tmp_path, packs, "cpu", Watcher(ask))
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert outcome == Outcome({}, [packs[0].name])
    watch = Watcher()
    assert sweep(tmp_path, packs, "cpu", watch) == Outcome({}, [])
    assert next(u.progress.share for u in watch.updates if u.progress) >= asked[0]
    assert load_state(tmp_path / "run").step == 300


def test_worker_with_other_versions_or_without_the_folder_refuses(tmp_path: Path) -> None:
    (pack,) = packs_of(find_candidates(tiny()))
    with pytest.raises(OutlastError, match="the sweep has outlast 0"):
        run_attempt(PackJob(pack, tmp_path, {"outlast": "0"}), Slot("cpu"), lambda *_: None)
    with pytest.raises(OutlastError, match="must share it"):
        run_attempt(PackJob(pack, tmp_path / "elsewhere"), Slot("cpu"), lambda *_: None)


# ---- folders, devices, progress ------------------------------------------------------------------


def record(**changed: Any) -> SweepRecord:
    values = {"run": shared_by_all(tiny()), "pack_seeds": 4, "lengths": (1.0,), "axes": ("lr=1,2",)}
    return SweepRecord(**(values | changed))


def test_folder_takes_one_sweep_at_a_time_and_always_the_same(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def refused(message: str, other: SweepRecord) -> None:
        with pytest.raises(RunFolderError, match=message), open_sweep(out, other):
            pass

    with open_sweep(out, record()):
        refused(f"in use by process {os.getpid()}", record())
    with open_sweep(out, record()):
        pass
    other = record(axes=("lr=1,3",), pack_seeds=5)
    refused(r"another sweep .axes=lr=1,2, not lr=1,3; pack_seeds=4, not 5", other)
    refused("steps=30, not 40", record(run=shared_by_all(tiny(steps=40))))


def test_devices_are_named_or_all_there_are() -> None:
    assert find_devices("cpu, cpu") == ["cpu", "cpu"]
    assert set(find_devices("all")) <= {"cpu", "cuda:0"}
    for text, message in (("", "devices=: expected"), ("cpu,,", "expected all, or"), ("x", "x")):
        with pytest.raises(OutlastError, match=message):
            find_devices(text)


def test_cpu_devices_share_the_cores_among_their_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices_module.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(devices_module, "usable_threads", lambda: 8)
    monkeypatch.setattr(devices_module, "cores", lambda: 8)
    for threads, count in ((1, 8), (2, 4), (3, 2), (9, 1)):
        assert find_devices("all", threads) == ["cpu"] * count
    assert LocalDevices(["cpu"] * 4, threads=2).surplus is None
    assert LocalDevices(["cuda:0"] * 4, threads=4).surplus is None
    words = LocalDevices(["cpu"] * 2, threads=3, per_device=2).surplus
    assert words is not None
    assert "4 packs at a time with 3 threads each want more than the 8 cores" in words


def test_slots_fill_every_device_before_any_has_two() -> None:
    slots = make_slots(["cuda:0", "cuda:1"], jobs=5)
    assert [slot.device for slot in slots] == ["cuda:0", "cuda:1"] * 2 + ["cuda:0"]
    assert [slot.share for slot in slots] == [1 / 3, 1 / 2] * 2 + [1 / 3]
    assert len(make_slots(["cpu", "cpu"], jobs=9)) == 2
    assert len(make_slots(["cpu"], jobs=9, per_device=3)) == 3


def test_progress_counts_states_and_tells_speed_and_time_left() -> None:
    clock = [0.0]
    packs = packs_of(RUNS)  # 4, 2, 4 and 2 seeds
    progress = SweepProgress(packs, lambda: clock[0])
    assert str(progress) == "0 running, 4 waiting, 0 done"
    progress.take(PackUpdate(packs[3], "done"))  # before this start: it says nothing of the speed
    for share in (0.0, 0.5):
        progress.take(PackUpdate(packs[0], "running", PackProgress("here cpu", share)))
    clock[0] = 4.0
    assert str(progress) == "1 running, 2 waiting, 1 done; 0.5 seeds/s, about 0:16 left"
    # by steps, not by seeds: the pack that is left is four times as long as the one that is done
    short, long = (packs_of(find_candidates(light(steps=steps)))[0] for steps in (20, 80))
    by_steps = SweepProgress([short, long], lambda: clock[0] - 4.0)
    by_steps.take(PackUpdate(short, "running", PackProgress("here cpu", 0.0)))
    clock[0] = 8.0
    by_steps.take(PackUpdate(short, "done"))
    assert str(by_steps) == "0 running, 1 waiting, 1 done; 0.25 seeds/s, about 0:16 left"
    progress.take(PackUpdate(packs[0], "lost", error="gone"))
    assert "1 lost, 1 lost and tried again" in str(progress)
