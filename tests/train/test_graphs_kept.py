"""Which CUDA graphs are kept: those used last, played by graphs that are none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import outlast.train.step as step
from outlast.train.step import Block, Stepper
from tiny_runs import InMemory, tiny


class Graph:
    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1


@pytest.fixture
def stepper(monkeypatch: pytest.MonkeyPatch) -> Stepper:
    monkeypatch.setattr(step, "KEPT", 3)
    ((_, made),) = InMemory(tiny()).fleet.waves
    monkeypatch.setattr(made, "_capture", lambda block, metrics: (Graph(), block, metrics))
    return made


def asked(stepper: Stepper, run: Any, *keys: str) -> list[object]:
    plan = run.trainer.conductor.plan(0, 2)
    for key in keys:
        stepper._replay(key, Block.of(run.trainer.data(0, plan), plan), torch.zeros(2, 2))
    return list(stepper.graphs)


def test_the_last_ones_used_are_kept(stepper: Stepper) -> None:
    run = InMemory(tiny())
    assert asked(stepper, run, "a", "b", "c") == ["a", "b", "c"]
    assert asked(stepper, run, "a") == ["b", "c", "a"]
    first: Any = stepper.graphs["a"][0]
    assert first.replays == 4  # two steps, twice
    assert asked(stepper, run, "d") == ["c", "a", "d"]
    assert asked(stepper, run, "b") == ["a", "d", "b"]
    assert stepper.graphs["a"][0] is first
    assert stepper.graphs["b"][0].replays == 2, "it was made anew"  # type: ignore[attr-defined]


def test_room_is_made_before_another_is_captured(
    stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []

    def capture(block: Block, metrics: torch.Tensor) -> tuple[Graph, Block, torch.Tensor]:
        held.append(len(stepper.graphs))
        return Graph(), block, metrics

    monkeypatch.setattr(stepper, "_capture", capture)
    asked(stepper, InMemory(tiny()), *"abcdef")
    assert held == [0, 1, 2, 2, 2, 2]


@pytest.mark.gpu
def test_on_a_gpu_a_graph_that_was_dropped_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A curriculum through more lengths than graphs are kept is the same curriculum."""
    from pathlib import Path

    from outlast.train.fleet import Fleet
    from outlast.train.session import canonical

    def weights(kept: int) -> torch.Tensor:
        monkeypatch.setattr(step, "KEPT", kept)
        run = canonical(tiny("curriculum(from=1, by=steps)", block=5, probe=0, checkpoint=5))
        fleet = Fleet([(run, Path("nowhere"))], torch.device("cuda"))
        fleet.trainers[0].write = lambda lines: None  # type: ignore[method-assign]
        for _ in range(12):
            fleet.block()
            assert len(fleet.waves[0][1].graphs) <= kept
        return fleet.rows.stack.table.clone()

    assert torch.equal(weights(2), weights(8))
