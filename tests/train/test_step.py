"""A block of steps: how wide each is, in which precision, and which CUDA graphs are kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import outlast.train.step as step
from outlast.machine import precision
from outlast.registry import tasks
from outlast.runs.spec import RunSpec
from outlast.tasks import Batch
from outlast.train.seeds import StackedModel
from outlast.train.step import BlockTables, Stepper
from outlast.train.trainer import Trainer
from outlast.workflow.create import canonical
from tiny_runs import InMemory, tiny

# ---- tokens of a step --------------------------------------------------------------------------

TASK = "composite(modulus=2, keys=16, queries=2, length=8)"


def trained(*seeds: int, by_length: bool = True) -> tuple[Tensor, list[int]]:
    """The weights of a run after its training, and the width of each step."""
    run = tiny(task=TASK, seeds=seeds, lr=1e-3, steps_per_block=6, probe_every=0,
               checkpoint_every=30, by_length=by_length)  # fmt: skip
    together = InMemory(run)
    (stepper,), widths = together.trainer.stepper.steppers, list[int]()
    real = stepper._step

    def note(block: BlockTables, metrics: Tensor, width: int) -> None:
        widths.append(width)
        real(block, metrics, width)

    stepper._step = note  # type: ignore[method-assign]
    together.steps(30)
    return together.trainer.seeds.model.table, widths


@pytest.fixture(scope="module")
def sorted_run() -> tuple[Tensor, list[int]]:
    return trained(0, 1)


def test_step_has_no_more_tokens_than_it_needs(sorted_run: tuple[Tensor, list[int]]) -> None:
    _, widths = sorted_run
    longest = tasks.build(TASK).tokens(8)
    assert max(widths) <= longest
    assert sum(widths) < 0.8 * longest * len(widths)


def test_step_cut_to_its_width_learns_the_same(
    sorted_run: tuple[Tensor, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlockTables, "cut", lambda self, width: self)
    torch.testing.assert_close(sorted_run[0], trained(0, 1)[0], rtol=0, atol=2e-6)


def test_seed_sorted_by_length_is_the_seed_alone(sorted_run: tuple[Tensor, list[int]]) -> None:
    torch.testing.assert_close(sorted_run[0][1], trained(1)[0][0], rtol=0, atol=1e-5)


def test_without_by_length_every_step_is_as_wide_as_its_block() -> None:
    _, widths = trained(0, by_length=False)
    assert all(len(set(widths[begin : begin + 6])) == 1 for begin in range(0, 30, 6))


def test_block_without_data_is_one_token_wide() -> None:
    blank = torch.full((2, 3, 4, 5), -1, dtype=torch.int8)
    assert BlockTables(Batch(blank, blank, blank), {}).widths() == [1, 1]


# ---- precision ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "autocast"), [("bf16", True), ("fp32", False), ("auto", False)])
def test_autocast_is_on_for_bf16_alone(
    name: str, autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    enabled: list[bool] = []
    real = StackedModel.run

    def note(self: StackedModel, *args: Any, **options: Any) -> Tensor:
        enabled.append(torch.is_autocast_enabled("cpu"))
        return real(self, *args, **options)

    monkeypatch.setattr(StackedModel, "run", note)
    InMemory(tiny(precision=name, steps=2, probe_every=0)).steps(2)
    assert enabled == [autocast] * 2


# ---- CUDA graphs, played by graphs that are none -----------------------------------------------


class Graph:
    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1


@pytest.fixture
def run() -> InMemory:
    return InMemory(tiny())


@pytest.fixture
def stepper(run: InMemory, monkeypatch: pytest.MonkeyPatch) -> Stepper:
    monkeypatch.setattr(step, "KEPT", 3)
    (stepper,) = run.trainer.stepper.steppers
    monkeypatch.setattr(stepper, "_capture", lambda block, metrics, width: Graph())
    return stepper


def replay(stepper: Stepper, run: InMemory, *keys: str, widths: tuple[int, ...] = (9, 9)) -> str:
    """Step a block of each kind of work; returns the kinds whose graphs are kept."""
    plan = run.run.methods.plan(0, len(widths))
    for key in keys:
        block = BlockTables.of(run.run.data(0, plan), plan)
        stepper._replay(key, block, torch.zeros(len(widths), 2), widths)
    return "".join(map(str, stepper.captured))


def graphs(stepper: Stepper, key: str) -> dict[int, Any]:
    return stepper.captured[key].graphs


def test_graphs_used_last_are_kept(stepper: Stepper, run: InMemory) -> None:
    assert replay(stepper, run, *"abc") == "abc"
    assert replay(stepper, run, "a") == "bca"
    first = graphs(stepper, "a")[9]
    assert first.replays == 4  # two steps, twice
    assert replay(stepper, run, "d") == "cad"
    assert replay(stepper, run, "b") == "adb"
    assert graphs(stepper, "a")[9] is first
    assert graphs(stepper, "b")[9].replays == 2, "it was not captured again"


def test_room_is_made_before_another_graph_is_captured(
    stepper: Stepper, run: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []

    def capture(block: BlockTables, metrics: Tensor, width: int) -> Graph:
        held.append(len(stepper.captured))
        return Graph()

    monkeypatch.setattr(stepper, "_capture", capture)
    replay(stepper, run, *"abcdef")
    assert held == [0, 1, 2, 2, 2, 2]


def test_each_width_has_a_graph_of_its_own(stepper: Stepper, run: InMemory) -> None:
    replay(stepper, run, "a", widths=(8, 16, 8))
    assert {width: g.replays for width, g in graphs(stepper, "a").items()} == {8: 2, 16: 1}


# ---- CUDA graphs, on a GPU ---------------------------------------------------------------------


def train_on_gpu(run: RunSpec, blocks: int) -> Iterator[Trainer]:
    """The trainer of a run on a GPU, after each of some blocks; no file is written."""
    trainer = Trainer([(canonical(run), Path("nowhere"))], torch.device("cuda"))
    trainer._write = trainer.save = lambda _: None  # type: ignore[method-assign, assignment]
    for _ in range(blocks):
        trainer.train(blocks=1)
        yield trainer


@pytest.mark.gpu
def test_steps_by_length_on_a_gpu_are_bit_for_bit_the_same_twice() -> None:
    def weights() -> Tensor:
        run = tiny(probe_every=0, checkpoint_every=5, by_length=True, precision="fp32")
        with precision("fp32", torch.device("cuda")):
            *_, trainer = train_on_gpu(run, blocks=4)
        return trainer.seeds.model.table.cpu()

    first, second = weights(), weights()
    assert torch.equal(first, second)
    assert torch.isfinite(first).all()


@pytest.mark.gpu
def test_dropped_graph_on_a_gpu_is_captured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A curriculum through more lengths than graphs are kept is the same curriculum."""

    def weights(kept: int) -> Tensor:
        monkeypatch.setattr(step, "KEPT", kept)
        run = tiny("curriculum(from=2, by=steps)", steps=60, probe_every=0, checkpoint_every=5)
        for trainer in train_on_gpu(run, blocks=12):
            assert len(trainer.stepper.steppers[0].captured) <= kept
        return trainer.seeds.model.table.clone()

    assert torch.equal(weights(2), weights(8))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "method",
    [
        "branch_dropout(p=0.5)",
        "state_passing(p=1)",
        "state_noise(p=1)",
        "random_windows(from=2, until=0.5)",
        "token_mix(share=0.5)",
    ],
)
def test_graph_of_a_method_makes_the_steps_that_are_made_without_graphs(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def weights(*methods: str) -> Tensor:
        run = tiny(
            *methods,
            task="parity(length=6)",
            model="lstm > attention(heads=2) > mlp @ 16",
            probe_every=0,
            checkpoint_every=5,
            precision="fp32",
        )
        with precision("fp32", torch.device("cuda")):
            *_, trainer = train_on_gpu(run, blocks=3)
        return trainer.seeds.model.table.clone()

    def without_graphs(
        self: Stepper, key: object, block: BlockTables, metrics: Tensor, widths: list[int]
    ) -> Tensor:
        self.cursor.zero_()
        for width in widths:
            self._step(block, metrics, width)
        return metrics

    plain, replayed = weights(), weights(method)
    monkeypatch.setattr(Stepper, "_replay", without_graphs)
    distance = (weights(method) - replayed).abs().max()
    assert distance < 0.01 * (plain - replayed).abs().max()


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["state_passing(p=1, from=5)", "state_noise(p=1, from=5)"])
def test_initial_state_that_begins_later_has_a_graph_of_its_own(method: str) -> None:
    tables = []
    for methods in ((), (method,)):
        run = tiny(*methods, probe_every=0, checkpoint_every=5)
        tables.append([t.seeds.model.table.clone() for t in train_on_gpu(run, blocks=2)])
    (first, second), (same, other) = tables
    assert torch.equal(first, same)
    assert not torch.equal(second, other)
