"""Seeds stepped by several processes: each is what it is in one, whatever becomes of a process.

Most tests share two processes that are started once, as starting them is what takes time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from outlast.cli import MISTAKE, main
from outlast.errors import TrainingError
from outlast.processes import Child
from outlast.registry import tasks
from outlast.runs.checkpoint import load_state
from outlast.runs.folder import RUN
from outlast.runs.records import EventLine, read_metrics
from outlast.runs.spec import RunSpec
from outlast.tasks.parity import Parity
from outlast.train import memory, waves
from outlast.train.memory import GIB
from outlast.train.waves import LONG, LONG_BLOCK, process_count, rows_at_once, split_evenly
from outlast.train.worker import serve_blocks
from outlast.train.workers import WorkerPool
from outlast.workflow.train import Listener, Outcome
from tiny_runs import (
    CPU,
    InMemory,
    assert_same_run,
    assert_seed_is,
    checkpoint,
    create,
    halt,
    is_alive,
    line_kinds,
    resume,
    tiny,
    train_runs,
    trained,
    wait_until,
)

SEEDS = (3, 0, 7, 1, 2)
RETRY = "dat(switch=below(0.000001), latest=6, otherwise=retry)"
DROPOUT = "lstm > attention(rope, heads=2) > mlp @ 16, dropout=0.2"


def spec(*methods: str, **changed: Any) -> RunSpec:
    """A run of two processes; each block is saved, unless the settings in `changed` say more."""
    block = changed.get("steps_per_block", 3)
    usual = {"seeds": SEEDS, "steps_per_block": block, "probe_every": 0, "checkpoint_every": block}
    return tiny(*methods, **(usual | {"processes": 2} | changed))


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Child]]:
    """The processes that the tests of this file share."""
    started = [Child(serve_blocks) for _ in range(2)]
    yield started
    for worker in started:
        worker.close()


@pytest.fixture(autouse=True)
def _trainers_share_workers(workers: list[Child], monkeypatch: pytest.MonkeyPatch) -> None:

    class SharedPool(WorkerPool):
        def __init__(self, runs: Sequence[RunSpec], count: int, threads: int) -> None:
            self.workers = workers[:count]
            self.set_up(runs, threads)

        def close(self) -> None:
            self.workers = []

    monkeypatch.setattr(waves, "WorkerPool", SharedPool)


def in_processes(*runs: RunSpec) -> InMemory:
    """Runs whose rows two processes will step."""
    result = InMemory(*runs)
    assert "in 2 processes" in result.trainer.choose_waves()
    return result


def in_waves(*runs: RunSpec) -> InMemory:
    """The same in this process, cut as for two."""
    result = InMemory(*runs)
    rows = len(result.trainer.seeds)
    result.trainer.stepper.set_waves(split_evenly(rows, rows, 2))
    return result


def assert_same_tables(one: InMemory, other: InMemory) -> None:
    pairs = zip(one.trainer.seeds.read(), other.trainer.seeds.read(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def sizes(run: InMemory) -> list[int]:
    """How many seeds each wave has."""
    return [wave.stop - wave.start for wave in run.trainer.stepper.waves]


# ---- the same as in one process ----------------------------------------------------------------


@pytest.mark.parametrize(
    "run",
    [
        spec(RETRY, "ema(0.9)"),
        spec("dat(switch=below(0.82))"),  # each seed at a time of its own
        spec("dat(mode=ramp, switch=6, ramp=9)", precision="bf16"),
        spec("curriculum(from=2, by=loss, level=0.85)", by_length=True),
        spec("random_positions(range=64)", model=DROPOUT),
        spec(model="gru > attention(tra, heads=2) > glu @ 16", seeds_at_once=3, max_grad_norm=0.05),
    ],
    ids=lambda run: " + ".join(run.methods) or run.model,
)
def test_seeds_in_two_processes_equal_those_in_one(run: RunSpec) -> None:
    apart, whole = in_processes(run).steps(18), InMemory(run).steps(18)
    loose = {"atol": 1e-2} if run.settings.precision == "bf16" else {}
    for seed in SEEDS:
        assert_seed_is(apart, whole, seed, **loose)
    if not run.settings.seeds_at_once:  # a process does what a wave does here, to the last bit
        assert_same_tables(apart, in_waves(run).steps(18))
    untrained = InMemory(run).trainer.seeds.model.table
    assert not torch.equal(apart.trainer.seeds.model.table, untrained)


def test_runs_with_different_settings_share_processes() -> None:
    runs = [
        spec(lr=1e-3, seeds=(0, 1)),
        spec("ema(0.9)", lr=4e-3, weight_decay=0.5, max_grad_norm=0.05, seeds=(1, 4, 2)),
        spec(RETRY, steps=14, seeds=(0,)),
    ]
    apart = in_processes(*runs).steps(18)
    for index, run in enumerate(runs):
        alone = InMemory(run).steps(18)
        for seed in run.seeds:
            assert_seed_is(apart, alone, seed, index)


def test_resting_seeds_are_unchanged_and_not_sent() -> None:
    """Of six the first, the third and the fifth are parked in their first block."""
    run = spec("ema(0.9)", seeds=(*SEEDS, 4))
    apart, whole = in_processes(run), InMemory(run)
    for each in (apart, whole):
        each.trainer.seeds.model.table.data[[0, 2, 4]] *= 1e30
    before = [table[[0, 2, 4]].clone() for table in apart.trainer.seeds.tables()]
    apart.steps(18), whole.steps(18)
    assert apart.run.parked == [0, None] * 3
    assert apart.trainer.stepper.chosen == (1, 3, 5)
    assert apart.trainer.stepper.waves == [slice(0, 2), slice(2, 3)]
    for table, rows in zip(apart.trainer.seeds.tables(), before, strict=True):
        assert torch.equal(table[[0, 2, 4]], rows)
    for seed in (0, 1, 4):
        assert_seed_is(apart, whole, seed)


# ---- stopped and resumed -----------------------------------------------------------------------

FULL = spec(RETRY, "ema(0.9)", steps=24, probe_every=6, checkpoint_every=6, seeds=(0, 1, 2))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody stopped, in two processes of its own."""
    folder, listener, words = tmp_path_factory.mktemp("whole"), Listener(), list[str]()
    listener.say = words.append  # type: ignore[method-assign]
    assert train_runs([create(FULL, folder)], CPU, listener) == Outcome(True, [None])
    assert words[0].startswith("3 seeds in 2 processes (about ")
    events = [line.event for line in read_metrics(folder) if isinstance(line, EventLine)]
    assert "restart" in events
    return folder


def assert_close_run(folder: Path, whole: Path) -> None:
    """The same to rounding, and the same events at the same steps."""
    tensors, other_tensors = checkpoint(folder)[0], checkpoint(whole)[0]
    for name, data in tensors.items():
        pair = (
            torch.frombuffer(bytearray(x), dtype=torch.float32) for x in (data, other_tensors[name])
        )
        torch.testing.assert_close(*pair, rtol=0, atol=5e-4, msg=name)
    assert line_kinds(folder) == line_kinds(whole)


def test_resumed_run_is_bit_for_bit_the_unstopped_one(whole: Path, tmp_path: Path) -> None:
    folder = create(FULL, tmp_path)
    for saves in (1, 2):
        halt(folder, saves=saves)
    assert resume(folder)
    assert_same_run(whole, folder)


def test_resume_in_one_process_equals_two_up_to_rounding(whole: Path, tmp_path: Path) -> None:
    folder = create(FULL, tmp_path)
    halt(folder, saves=2)
    assert train_runs([folder], CPU, processes=1).ended
    assert_close_run(folder, whole)


def test_resume_accepts_other_processes_and_keeps_the_record(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on another machine. The record stays as it is, and the result is the same to rounding."""
    folder = tmp_path / "run"
    create(replace(FULL, settings=replace(FULL.settings, processes=1)), folder)
    halt(folder, saves=2)
    record = (folder / RUN).read_bytes()
    command = ["resume", str(folder), "--device", "cpu", "--processes"]
    assert main([*command, "-1", "--seeds", "0", "--out", str(tmp_path / "some")]) == MISTAKE
    assert "processes=-1: expected a number >= 0" in capsys.readouterr().err
    assert not (tmp_path / "some").exists()
    assert main([*command, "2", "--seeds-at-once", "2"]) == 0
    text = capsys.readouterr().out
    assert "3 seeds in 2 processes, 2 at once, in 3 waves of 1 at most (as set)" in text
    assert (folder / RUN).read_bytes() == record
    assert_close_run(folder, whole)


# ---- signals -----------------------------------------------------------------------------------


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc to look for children")
def test_sigterm_and_sighup_save_and_sigkill_leaves_no_worker_behind(tmp_path: Path) -> None:
    """Whoever asks a whole job to end asks the other processes too."""
    create(replace(FULL, settings=replace(FULL.settings, steps=100_000)), tmp_path)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        process = subprocess.Popen(
            [sys.executable, "-m", "outlast", "resume", str(tmp_path), "--device", "cpu"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        before = len(read_metrics(tmp_path))
        wait_until(lambda process=process: len(children(process.pid)) == 2)
        helpers = children(process.pid)
        wait_until(lambda before=before: len(read_metrics(tmp_path)) > before + 4)
        for helper in helpers if number != signal.SIGKILL else ():
            os.kill(helper, signal.SIGINT)
            os.kill(helper, number)
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
        wait_until(lambda helpers=helpers: not any(map(is_alive, helpers)))
        assert "Traceback" not in err
        if number != signal.SIGKILL:
            assert process.returncode == 130, err
            assert "3 seeds in 2 processes" in out
            saved = load_state(tmp_path).step
            assert max(line.step for line in read_metrics(tmp_path)) == saved > 0


def test_second_ctrl_c_ends_workers_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the middle of a block: the others are ended, whatever they do."""
    create(FULL, tmp_path)
    started: list[subprocess.Popen[bytes]] = []
    receive = Child.receive

    def interrupted(self: Child) -> Any:
        started.append(self.process)
        if len(started) > 2:  # both are ready
            raise KeyboardInterrupt
        return receive(self)

    monkeypatch.setattr(waves, "WorkerPool", WorkerPool)  # not those that others need
    monkeypatch.setattr(Child, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path)
    assert all(process.returncode is not None for process in started)


# ---- what goes wrong in a process --------------------------------------------------------------


def test_worker_error_is_raised_here_and_leaves_no_stale_reply() -> None:
    run = in_processes(spec())
    block = run.trainer.next_block()
    wrong = block.data.map(lambda page: page.clone())
    wrong.inputs[0, 3] = 10**6
    with pytest.raises(IndexError, match="index out of range") as caught:
        run.trainer.stepper.run(wrong, block.plan, run.trainer.seeds.read())
    assert "embedding" in caught.value.__notes__[0]  # where it happened
    assert_same_tables(run, InMemory(spec()))
    assert_same_tables(in_processes(spec()).steps(6), in_waves(spec()).steps(6))


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("a byte short"), RuntimeError("can't allocate memory: a byte short")],
    ids=["a GPU's", "a CPU's"],
)
def test_memory_error_halves_the_waves(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    run, whole = in_processes(spec()), InMemory(spec())
    run_block = WorkerPool.run

    def short(self: WorkerPool, seeds: Any, rows: Any, *args: Any) -> Any:
        metrics = run_block(self, seeds, rows, *args)
        if max(map(len, rows)) > 1:
            raise error
        return metrics

    monkeypatch.setattr(WorkerPool, "run", short)
    run.steps(6)
    assert run.trainer.stepper.waves == [slice(row, row + 1) for row in range(5)]
    whole.trainer.stepper.set_waves(split_evenly(5, 1))
    assert_same_tables(run, whole.steps(6))


def test_killed_worker_is_an_error_that_names_the_signal() -> None:
    """And not a wait without end. The rows stay as they were."""
    run = InMemory(spec(batch_size=256, steps_per_block=5))
    pool = WorkerPool([run.run.run], 1, 1)
    block, seeds = run.trainer.next_block(), run.trainer.seeds
    threading.Timer(0.3, pool.workers[0].process.kill).start()
    before = seeds.read()
    with pytest.raises(TrainingError, match=r"ended by SIGKILL, perhaps for want of memory"):
        pool.run(seeds, [list(range(5)) * 20], block.data, block.plan)  # seconds of work
    assert pool.workers == []
    assert all(torch.equal(*pair) for pair in zip(seeds.read(), before, strict=True))


def test_blocks_before_a_worker_died_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = spec(steps=24, checkpoint_every=24)
    folder = create(run, tmp_path / "run")
    run_block, calls = WorkerPool.run, iter(range(3))

    def dies(self: WorkerPool, *args: Any) -> list[torch.Tensor]:
        if next(calls) == 2:
            raise TrainingError("a process that stepped seeds was ended by SIGKILL")
        return run_block(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(WorkerPool, "run", dies)
        with pytest.raises(TrainingError, match="SIGKILL"):
            resume(folder)
    assert load_state(folder).step == 6
    assert resume(folder)
    assert_same_run(folder, trained(run, tmp_path / "whole"))


def test_closed_pool_is_an_error_and_choose_waves_starts_another() -> None:
    run = in_processes(spec()).steps(10)
    run.trainer.close()
    with pytest.raises(
        TrainingError, match=r"processes .* are ended: choose_waves\(\) starts others"
    ):
        run.steps(20)
    assert "in 2 processes" in run.trainer.choose_waves()
    assert_same_tables(run.steps(20), in_waves(spec()).steps(20))


def test_task_unknown_to_workers_is_trained_in_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Ours(Parity):
        """A task of this file."""

    monkeypatch.setattr(tasks, "_entries", dict(tasks._entries))
    tasks.register("ours")(Ours)
    run = InMemory(spec(task="ours(length=4)"))
    words = run.trainer.choose_waves()
    assert words.startswith("5 seeds at once (")
    assert "; not in processes, as they do not start: " in words
    assert "ours" in words
    assert run.trainer.stepper.workers is None
    run.steps(6)


# ---- how many ----------------------------------------------------------------------------------

GPU = torch.device("cuda")
SHORT_BLOCK = {"steps": 6000, "steps_per_block": LONG_BLOCK - 1}
SINGLE_SEEDS = [{"seeds": (0,), "steps": steps} for steps in (10, 6000, 10)]


@pytest.mark.parametrize(
    ("runs", "threads", "device", "count"),
    [
        ([{"steps": 6000}], 2, CPU, 2),
        ([{"steps": 6000}], 16, CPU, 5),
        ([{"steps": 6000}], 1, CPU, 1),  # such as in a study whose arms have a core each
        ([{"steps": 6000}], 16, GPU, 1),
        ([{"steps": 6000, "seeds": (0,)}], 16, CPU, 1),
        ([{"steps": LONG}], 2, CPU, 2),
        ([{"steps": LONG - 1}], 16, CPU, 1),  # over before the processes would have paid
        ([SHORT_BLOCK], 16, CPU, 1),  # more on its way than at work
        ([SHORT_BLOCK | {"processes": 2}], 16, CPU, 2),
        ([{"steps": 6000, "processes": 1}], 16, CPU, 1),
        ([{"steps": 100, "processes": 3}], 1, CPU, 3),
        ([{"steps": 100, "processes": 9}], 1, CPU, 5),
        ([{"steps": 6000, "processes": 3}], 16, GPU, 1),
        (SINGLE_SEEDS, 8, CPU, 3),
        ([*SINGLE_SEEDS, {"processes": 2}], 8, CPU, 2),
    ],
    ids=str,
)
def test_process_count(
    runs: list[dict[str, Any]], threads: int, device: torch.device, count: int
) -> None:
    usual = {"processes": 0, "steps_per_block": LONG_BLOCK}
    assert process_count([spec(**(usual | run)) for run in runs], device, threads) == count


SINGLY = "in 8 waves of 1 at most (about 1 GiB a seed"


@pytest.mark.parametrize(
    ("gigabytes", "processes", "chosen", "words"),
    [
        # half may be used, and a process takes 0.3 for itself
        (20.0, 4, 4, "8 seeds in 4 processes (about 1 GiB a seed, 8.8 GiB to use)"),
        (14.0, 4, 4, f"8 seeds in 4 processes, 4 at once, {SINGLY}, 5.8 GiB to use)"),
        (9.0, 4, 3, f"8 seeds in 3 processes, 3 at once, {SINGLY}, 3.6 GiB to use)"),
        (4.0, 4, 1, "8 seeds in 8 waves of 1 at most (about 1 GiB a seed, 2 GiB to use)"),
        (10.0, 1, 1, "8 seeds in 2 waves of 4 at most (about 1 GiB a seed, 5 GiB to use)"),
    ],
)
def test_processes_and_waves_fit_in_memory(
    gigabytes: float, processes: int, chosen: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = InMemory(spec(seeds=tuple(range(8))))
    for module in (memory, waves):
        monkeypatch.setattr(module, "free_memory", lambda _: gigabytes * GIB)
    monkeypatch.setattr(memory, "dry_step", lambda *_: 8 * GIB)
    choice = waves.choose_waves(run.trainer.seeds, [run.run.run], 1.0, processes)
    assert (choice.reason, choice.processes) == (words, chosen)


@pytest.mark.parametrize(
    ("seeds_at_once", "wave_sizes", "words"),
    [
        (5, [2, 3], "in 2 processes (as set)"),
        (4, [1, 1, 2, 1], "in 2 processes, 3 at once, in 4 waves of 2 at most (as set)"),
        (3, [1, 1, 2, 1], "in 2 processes, 3 at once, in 4 waves of 2 at most (as set)"),
        (2, [1] * 5, "in 2 processes, 2 at once, in 5 waves of 1 at most (as set)"),
        (1, [1] * 5, "in 5 waves of 1 at most (as set)"),
    ],
)
def test_processes_share_seeds_at_once(
    seeds_at_once: int, wave_sizes: list[int], words: str
) -> None:
    """In no more turns than one process would take."""
    run = InMemory(spec(seeds_at_once=seeds_at_once))
    assert run.trainer.choose_waves() == f"5 seeds {words}"
    assert sizes(run) == wave_sizes


def test_wave_count_is_a_multiple_of_the_processes() -> None:
    assert split_evenly(8, 8, 2) == [slice(0, 4), slice(4, 8)]
    assert split_evenly(5, 1, 2) == [slice(i, i + 1) for i in range(5)]
    assert [w.stop - w.start for w in split_evenly(10, 6, 3)] == [2, 1, 2, 2, 1, 2]
    assert split_evenly(1, 4, 2) == [slice(0, 1)]


def test_waves_never_exceed_seeds_at_once() -> None:
    for rows, most, most_processes in product(range(1, 30), range(1, 9), range(1, 5)):
        processes = min(most_processes, most)
        cut = split_evenly(rows, most, processes)
        assert rows_at_once(cut, processes) <= most
        assert -(-len(cut) // processes) == -(-rows // most), "a round more than it takes"


def test_waves_do_not_exceed_seeds_at_once_after_compacting() -> None:
    """Three at once in two processes, of sixteen and then of the eight that are not at rest."""
    run = InMemory(spec(seeds=tuple(range(16)), seeds_at_once=3))
    run.trainer.choose_waves()
    run.trainer.seeds.model.table.data[:8] *= 1e30
    run.steps(10)
    assert run.trainer.stepper.chosen == tuple(range(8, 16))
    assert sizes(run) == [1, 2, 1, 1, 2, 1]
