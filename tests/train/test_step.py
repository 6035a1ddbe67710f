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
    (made,) = InMemory(tiny()).trainer.steppers
    monkeypatch.setattr(made, "_capture", lambda block, metrics, width: Graph())
    return made


def asked(stepper: Stepper, run: Any, *keys: str) -> list[object]:
    plan = run.trainer.conductor.plan(0, 2)
    for key in keys:
        block = Block.of(run.trainer.data(0, plan), plan)
        stepper._replay(key, block, torch.zeros(2, 2), [9, 9])
    return list(stepper.recorded)


def test_the_last_ones_used_are_kept(stepper: Stepper) -> None:
    run = InMemory(tiny())
    assert asked(stepper, run, "a", "b", "c") == ["a", "b", "c"]
    assert asked(stepper, run, "a") == ["b", "c", "a"]
    first: Any = stepper.recorded["a"].graphs[9]
    assert first.replays == 4  # two steps, twice
    assert asked(stepper, run, "d") == ["c", "a", "d"]
    assert asked(stepper, run, "b") == ["a", "d", "b"]
    assert stepper.recorded["a"].graphs[9] is first
    assert stepper.recorded["b"].graphs[9].replays == 2, "it was made anew"  # type: ignore[attr-defined]


def test_room_is_made_before_another_is_captured(
    stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []

    def capture(block: Block, metrics: torch.Tensor, width: int) -> Graph:
        held.append(len(stepper.recorded))
        return Graph()

    monkeypatch.setattr(stepper, "_capture", capture)
    asked(stepper, InMemory(tiny()), *"abcdef")
    assert held == [0, 1, 2, 2, 2, 2]


def test_a_kind_of_work_has_a_graph_for_each_width(stepper: Stepper) -> None:
    run = InMemory(tiny())
    plan = run.trainer.conductor.plan(0, 3)
    block = Block.of(run.trainer.data(0, plan), plan)
    stepper._replay("a", block, torch.zeros(3, 2), [8, 16, 8])
    replays = {width: graph.replays for width, graph in stepper.recorded["a"].graphs.items()}  # type: ignore[attr-defined]
    assert replays == {8: 2, 16: 1}


@pytest.mark.gpu
def test_on_a_gpu_steps_by_length_are_the_same_twice() -> None:
    from pathlib import Path

    from outlast.train.session import canonical, precision

    from outlast.train.trainer import Trainer

    def weights(device: torch.device) -> torch.Tensor:
        run = canonical(
            tiny(
                steps_per_block=5,
                probe_every=0,
                checkpoint_every=5,
                by_length=True,
                precision="fp32",
            )
        )
        with precision("fp32", device):
            fleet = Trainer([(run, Path("nowhere"))], device)
            fleet.trainers[0].write = lambda lines: None  # type: ignore[method-assign]
            for _ in range(4):
                fleet.block()
        return fleet.seeds.model.table.cpu()

    first, second = weights(torch.device("cuda")), weights(torch.device("cuda"))
    assert torch.equal(first, second)
    assert torch.isfinite(first).all()


@pytest.mark.gpu
def test_on_a_gpu_a_graph_that_was_dropped_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A curriculum through more lengths than graphs are kept is the same curriculum."""
    from pathlib import Path

    from outlast.train.session import canonical

    from outlast.train.trainer import Trainer

    def weights(kept: int) -> torch.Tensor:
        monkeypatch.setattr(step, "KEPT", kept)
        settings = {"steps": 60, "block": 5, "probe": 0, "checkpoint": 5}
        run = canonical(tiny("curriculum(from=2, by=steps)", **settings))
        fleet = Trainer([(run, Path("nowhere"))], torch.device("cuda"))
        fleet.trainers[0].write = lambda lines: None  # type: ignore[method-assign]
        for _ in range(12):
            fleet.block()
            assert len(fleet.steppers[0].recorded) <= kept
        return fleet.seeds.model.table.clone()

    assert torch.equal(weights(2), weights(8))
