"""Training and testing in one go: what is alive when, and when a signal is heard."""

from __future__ import annotations

import os
import signal
import weakref
from pathlib import Path

import pytest
import torch

import outlast.workflow.train as train_module
from outlast.runs.folder import CHECKPOINT, RESULTS
from outlast.train.trainer import Trainer
from outlast.train.waves import WaveStepper
from outlast.workflow.train import Listener, train_and_evaluate
from tiny_runs import CPU, create, tiny

QUICK = tiny(steps=10, checkpoint_every=10, probe_every=0, seeds=(0,))


def test_trainer_is_gone_when_the_test_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU it would hold weights, moments and graphs."""
    trainers: list[weakref.ref[Trainer]] = []
    begin = Trainer.__init__

    def noting(self: Trainer, *arguments: object) -> None:
        begin(self, *arguments)  # type: ignore[arg-type]
        trainers.append(weakref.ref(self))

    class Watching(Listener):
        def testing(self, folder: Path) -> None:
            assert trainers[0]() is None

    monkeypatch.setattr(Trainer, "__init__", noting)
    folder = create(QUICK, tmp_path / "run")
    assert train_and_evaluate([folder], CPU, Watching()).ended
    assert (folder / RESULTS).exists()


def test_memory_of_a_block_is_free_when_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []
    run, next_block = WaveStepper.run, Trainer.next_block

    def noting(self: WaveStepper, data, plan, before):
        copies.append(weakref.ref(before[0]))
        return run(self, data, plan, before)

    def looking(self: Trainer):
        alive.append(any(copy() is not None for copy in copies))
        return next_block(self)

    monkeypatch.setattr(WaveStepper, "run", noting)
    monkeypatch.setattr(Trainer, "next_block", looking)
    train_and_evaluate([create(QUICK, tmp_path / "run")], CPU, evaluations={})
    assert alive == [False, False]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_signal_while_memory_is_measured_saves_and_leaves(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = Trainer.choose_waves

    def interrupted(self: Trainer, share: float) -> str:
        os.kill(os.getpid(), number)
        return choose(self, share)

    monkeypatch.setattr(Trainer, "choose_waves", interrupted)
    folder = create(QUICK, tmp_path / "run")
    assert not train_module.train_and_evaluate([folder], CPU).ended
    assert (folder / CHECKPOINT).exists()
    assert not (folder / RESULTS).exists()
