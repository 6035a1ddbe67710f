"""The smallest runs that have everything in them, and how to look at what they leave."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import outlast.train.run_state as trainer_module
from outlast import processes
from outlast.runs import CHECKPOINT, METRICS
from outlast.train.session import begin, canonical, go_on, go_on_together
from outlast.train.settings import RunSpec, Settings
from outlast.train.trainer import Trainer

CPU = torch.device("cpu")
TASK = "composite(modulus=2, keys=32, queries=2, length=4)"
MODEL = "lstm > attention(heads=2) > mlp @ 16, head=2"
SETTINGS = Settings(steps=30, batch=8, warmup=5, block=5, probe=10, checkpoint=10)


def tiny(
    *methods: str,
    task: str = TASK,
    model: str = MODEL,
    seeds: tuple[int, ...] = (0, 1),
    **changed: Any,
) -> RunSpec:
    """A run of seconds; `changed` are settings."""
    return RunSpec(task, model, methods, seeds, replace(SETTINGS, **changed))


def trained(run: RunSpec, folder: Path) -> Path:
    """Begin a run and train it to its end."""
    begin(run, folder, CPU)
    assert go_on(folder, CPU)
    return folder


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the library may catch it."""


def halt(*folders: Path, saves: int = 1) -> None:
    """Go on until some checkpoints are saved, and be killed."""
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
            go_on_together(folders, CPU)


class InMemory:
    """Runs trained together that keep their metrics to themselves; `trainer` is the first."""

    def __init__(self, *runs: RunSpec) -> None:
        self.fleet = Trainer([(canonical(run), Path("nowhere")) for run in runs], CPU)
        self.trainers = self.fleet.trainers
        self.trainer = self.trainers[0]
        self.lines: list[list[dict[str, Any]]] = [[] for _ in runs]
        for trainer, lines in zip(self.trainers, self.lines, strict=True):
            trainer.write = lines.extend  # type: ignore[method-assign]

    def steps(self, count: int) -> InMemory:
        while any(t.going and t.step < count for t in self.trainers):
            self.fleet.block()
        return self

    def losses(self, seed: int, run: int = 0) -> list[list[float]]:
        own = [x for x in self.lines[run] if x["seed"] == seed and "accuracy" in x]
        return [list(line["loss"].values()) for line in own]

    def events(self, seed: int, run: int = 0) -> list[tuple[int, str]]:
        own = [x for x in self.lines[run] if x["seed"] == seed and "event" in x]
        return [(line["step"], line["event"]) for line in own]


def assert_seed_is(
    among: InMemory, alone: InMemory, seed: int, run: int = 0, atol: float = 5e-4
) -> None:
    """A seed among others is the seed alone: 18 steps of Adam turn rounding into no more."""
    assert among.events(seed, run) == alone.events(seed)
    losses = (torch.tensor(x) for x in (among.losses(seed, run), alone.losses(seed)))
    torch.testing.assert_close(*losses, rtol=0, atol=5e-5)
    row = among.trainers[run].run.seeds.index(seed)
    own = alone.trainer.run.seeds.index(seed)
    together = among.trainers[run].test_weights()
    for name, weights in alone.trainer.test_weights().items():
        torch.testing.assert_close(together[name][row], weights[own], rtol=0, atol=atol, msg=name)


def checkpoint(folder: Path) -> tuple[dict[str, bytes], str]:
    """Every tensor of a checkpoint as bytes, and the plain state as it is written."""
    with safe_open(folder / CHECKPOINT, framework="pt") as file:
        tensors = {n: file.get_tensor(n).contiguous().numpy().tobytes() for n in file.keys()}  # noqa: SIM118
        return tensors, file.metadata()["outlast"]


def assert_same_run(one: Path, other: Path) -> None:
    """Bit for bit the same weights, optimiser, averages and states; byte for byte the metrics."""
    tensors, state = checkpoint(one)
    tensors_too, state_too = checkpoint(other)
    assert tensors.keys() == tensors_too.keys()
    assert [n for n in tensors if tensors[n] != tensors_too[n]] == []
    assert state == state_too
    assert (one / METRICS).read_bytes() == (other / METRICS).read_bytes()


class ForkedProcess:
    """A process forked from one that has torch loaded already, in the place of a `Popen`."""

    def __init__(self, far_end: Connection, graceful: bool, environment: Mapping[str, str]) -> None:
        assert not environment, "a forked process has the environment of the one it comes from"
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["outlast.studies.runner", "outlast.evaluation.run"])
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
    processes.run_child(far_end, graceful)


def start_processes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes of a study: to start Python and load torch is most of their time."""
    monkeypatch.setattr(processes, "start_program", ForkedProcess)


def outlast(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the real command line in a process of its own."""
    command = [sys.executable, "-m", "outlast", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
