"""The smallest runs that have everything in them, and how to look at what they leave."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import outlast.studies.runner as runner
from outlast.runs import CHECKPOINT, METRICS
from outlast.train.session import begin, go_on
from outlast.train.settings import RunSpec, Settings

CPU = torch.device("cpu")
TASK = "composite(modulus=2, keys=32, queries=2, length=4)"
MODEL = "lstm > attention(heads=2) > mlp @ 16, head=2"
SETTINGS = Settings(steps=60, batch=8, warmup=5, block=10, probe=20, checkpoint=20)


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


def start_processes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes of a study from one that has torch loaded already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["outlast.studies.runner", "outlast.evaluate.run"])
    monkeypatch.setattr(runner.multiprocessing, "get_context", lambda _: context)


def outlast(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the real command line in a process of its own."""
    command = [sys.executable, "-m", "outlast", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
