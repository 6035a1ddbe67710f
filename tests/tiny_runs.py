"""The smallest runs that have everything in them, and how to look at what they leave."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import outlast.train.trainer as trainer_module
from outlast import processes
from outlast.runs.folder import CHECKPOINT, METRICS
from outlast.runs.records import Line, MetricLine
from outlast.runs.spec import RunSpec, Settings
from outlast.testing.training import InMemory, block_lines, events  # noqa: F401 (for the tests)
from outlast.train.optimiser import AdamW
from outlast.train.run_state import Progress, RunState
from outlast.workflow.create import create_runs
from outlast.workflow.train import Listener, Outcome, open_trainer, train_and_evaluate

CPU = torch.device("cpu")
TASK = "composite(modulus=2, keys=32, queries=2, length=4)"
MODEL = "lstm > attention(heads=2) > mlp @ 16, head=2"
SETTINGS = Settings(
    steps=30, batch_size=8, warmup=5, steps_per_block=5, probe_every=10, checkpoint_every=10
)


def tiny(
    *methods: str,
    task: str = TASK,
    model: str = MODEL,
    seeds: tuple[int, ...] = (0, 1),
    **changed: Any,
) -> RunSpec:
    """A run of seconds; `changed` are settings."""
    return RunSpec(task, model, methods, seeds, replace(SETTINGS, **changed))


def in_threes(*methods: str, **changed: Any) -> RunSpec:
    """A tiny run in blocks of three steps, without probes."""
    usual = {"steps_per_block": 3, "probe_every": 0, "checkpoint_every": 3}
    return tiny(*methods, **(usual | changed))


#: attention joins so late that most seeds succeed first
LATE_DAT = "dat(switch=20)"


def stopping(*methods: str, **changed: Any) -> RunSpec:
    """So short a task that its accuracy jumps to 1; each seed succeeds at a step of its own."""
    usual = {"steps": 70, "probe_every": 5, "lr": 0.03, "stop": "success"}
    return tiny(*(methods or (LATE_DAT,)), task="parity(length=3)", **(usual | changed))


def create(run: RunSpec, folder: Path, overwrite: bool = False) -> Path:
    """Make the folder of a run."""
    create_runs([(run, folder)], CPU, overwrite)
    return folder


def create_all(runs: Iterable[RunSpec], home: Path) -> list[Path]:
    """Make a folder in `home` for each run; not as a grid."""
    return [create(run, home / f"run{index}") for index, run in enumerate(runs)]


class Recorder(Listener):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.progress: list[Progress] = []

    def say(self, words: str) -> None:
        self.words.append(words)

    def training(self, folder: Path, progress: Progress) -> None:
        self.progress.append(progress)


def train_runs(
    folders: Sequence[Path],
    device: torch.device = CPU,
    listener: Listener | None = None,
    **how: Any,
) -> Outcome:
    """Train runs as one, each from where it stands, and test none."""
    return train_and_evaluate(folders, device, listener, {}, **how)


def resume(folder: Path, listener: Listener | None = None) -> bool:
    """Train a run from where it stands; whether it came to its end."""
    outcome = train_runs([folder], CPU, listener)
    if outcome.failures[0] is not None:
        raise outcome.failures[0]
    return outcome.ended


def trained(run: RunSpec, folder: Path) -> Path:
    """Create a run and train it to its end."""
    assert resume(create(run, folder))
    return folder


def train_until(step: int, folder: Path) -> RunState:
    """Train a run until it is asked to leave at a step."""
    with open_trainer([folder], CPU) as trainer:
        (run,) = trainer.runs
        assert not trainer.train(stop=lambda: run.step >= step)
        return run


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the library may catch it."""


def fails(real: Callable[..., Any], at: int, error: BaseException) -> Callable[..., Any]:
    """The same function, which raises an error instead of its `at`-th call."""
    calls = iter(range(1, at + 1))

    @functools.wraps(real)
    def instead(*args: Any, **options: Any) -> Any:
        if next(calls, 0) == at:
            raise error
        return real(*args, **options)

    return instead


def killed_at_write(at: int, work: Callable[[], object]) -> bool:
    """Do work in a forked process that kills itself instead of its `at`-th atomic rename."""
    pid = os.fork()
    if pid == 0:
        calls, rename = iter(range(1, at + 1)), Path.replace

        def replace_or_die(self: Path, target: Path) -> Path:
            if next(calls, 0) == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return rename(self, target)

        Path.replace = replace_or_die  # type: ignore[method-assign, assignment]
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def break_rows(monkeypatch: pytest.MonkeyPatch, steps: dict[int, int]) -> None:
    """Make a weight of some rows NaN in the update of a step, after its loss was taken.

    The step is the optimiser's count, so a resumed run breaks where the run that was not stopped
    does.
    """
    update = AdamW.update

    def spoiled(self: AdamW, *args: Any) -> None:
        update(self, *args)
        for row, step in steps.items():
            if self.counts[row].max() == step:
                self.model.table.data[row, 0] = float("nan")

    monkeypatch.setattr(AdamW, "update", spoiled)


def halt(*folders: Path, saves: int = 1) -> None:
    """Resume runs until some checkpoints are saved, and be killed."""
    left = [saves]
    with pytest.MonkeyPatch.context() as patch:
        save = trainer_module.save_checkpoint

        def last(*args: Any) -> None:
            save(*args)
            left[0] -= 1
            if not left[0]:
                raise Killed

        patch.setattr(trainer_module, "save_checkpoint", last)
        with pytest.raises(Killed):
            train_runs(folders, CPU)


def probe_lines(lines: Iterable[Line]) -> list[MetricLine]:
    """The lines about probes among some lines."""
    return [x for x in lines if isinstance(x, MetricLine) and x.probe is not None]


def successes(lines: Iterable[Line]) -> dict[int, int]:
    """The step at which each seed succeeded, if it did."""
    return {line.seed: line.step for line in events(lines, "succeeded")}


def assert_seed_is(
    among: InMemory, alone: InMemory, seed: int, run: int = 0, atol: float = 5e-4
) -> None:
    """A seed among others is the seed alone: 18 steps of Adam turn rounding into no more."""
    assert among.events(seed, run) == alone.events(seed)
    losses = (torch.tensor(x) for x in (among.losses(seed, run), alone.losses(seed)))
    torch.testing.assert_close(*losses, rtol=0, atol=5e-5)
    row = among.runs[run].run.seeds.index(seed)
    row_alone = alone.run.run.seeds.index(seed)
    together = among.runs[run].test_weights()
    for name, weights in alone.run.test_weights().items():
        torch.testing.assert_close(
            together[name][row], weights[row_alone], rtol=0, atol=atol, msg=name
        )


def assert_each_seed_is_alone(run: RunSpec, steps: int = 18, atol: float = 5e-4) -> InMemory:
    """Every seed of a run is the seed alone; returns the run after its training."""
    among = InMemory(run).steps(steps)
    for seed in run.seeds:
        alone = InMemory(replace(run, seeds=(seed,))).steps(steps)
        assert_seed_is(among, alone, seed, atol=atol)
    return among


def checkpoint(folder: Path) -> tuple[dict[str, bytes], str]:
    """Every tensor of a checkpoint as bytes, and the plain state as it is written."""
    with safe_open(folder / CHECKPOINT, framework="pt") as file:
        tensors = {n: file.get_tensor(n).contiguous().numpy().tobytes() for n in file.keys()}  # noqa: SIM118
        return tensors, file.metadata()["outlast"]


def assert_same_run(one: Path, other: Path) -> None:
    """Bit for bit the same weights, optimiser, averages and states; byte for byte the metrics."""
    tensors, state = checkpoint(one)
    other_tensors, other_state = checkpoint(other)
    assert tensors.keys() == other_tensors.keys()
    assert [n for n in tensors if tensors[n] != other_tensors[n]] == []
    assert state == other_state
    assert (one / METRICS).read_bytes() == (other / METRICS).read_bytes()


def assert_halted_is_whole(run: RunSpec, home: Path, halts: int) -> tuple[Path, Path]:
    """A run killed after each of its first checkpoints is the run that was not; returns both."""
    whole, halted = trained(run, home / "whole"), create(run, home / "halted")
    for _ in range(halts):
        halt(halted)
    assert resume(halted)
    assert_same_run(whole, halted)
    return whole, halted


def line_kinds(folder: Path) -> list[tuple[Any, ...]]:
    """Step, seed, event if any, and keys of each line of the metrics: all but the numbers."""
    lines = map(json.loads, (folder / METRICS).read_text().splitlines())
    return [(line["step"], line["seed"], line.get("event"), *line) for line in lines]


class ForkedProcess:
    """A process forked from one that has torch loaded already, in the place of a `Popen`."""

    def __init__(self, far_end: Connection, graceful: bool, environment: Mapping[str, str]) -> None:
        assert not environment, "a forked process has the environment of the one it comes from"
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["outlast.studies.runner"])
        self.process = context.Process(target=run_forked, args=(far_end, graceful), daemon=False)
        self.process.start()
        self.terminate, self.kill = self.process.terminate, self.process.kill

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self.process.join(timeout)
        return self.process.exitcode


def run_forked(far_end: Connection, graceful: bool) -> None:
    """What `processes.PROGRAM` does, without a new Python."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not graceful:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    processes.run_child(far_end, graceful)


def start_processes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes of a study: to start Python and load torch is most of their time."""
    monkeypatch.setattr(processes, "start_program", ForkedProcess)


def outlast(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the real command line in a process of its own."""
    command = [sys.executable, "-m", "outlast", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, **options)


def is_alive(pid: int) -> bool:
    """Whether there is such a process; one that has ended and waits to be asked after is none."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 600) -> None:
    """Look again and again, for so many seconds at most."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it did not come to pass in {seconds:g} s"
        time.sleep(0.01)
