"""Opening a trained run: the weights and gates of its seeds, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import outlast
import outlast.runs.checkpoint as checkpoint_module
from outlast.errors import OutlastError
from outlast.runs.checkpoint import AVERAGE, WEIGHTS, load_checkpoint
from outlast.runs.records import read_run
from outlast.workflow.evaluate import Evaluation, evaluate_run
from outlast.workflow.load import load, open_run
from outlast.workflow.train import open_trainer
from tiny_runs import CPU, create, tiny, trained


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tiny("dat(switch=15)"), tmp_path_factory.mktemp("plain") / "run")


def tokens(folder: Path, length: int = 6) -> Tensor:
    task = outlast.task(read_run(folder).task)
    return task.sample(length, 16, torch.Generator().manual_seed(5)).inputs


@pytest.mark.parametrize(
    "methods",
    [
        (),
        ("ema(0.9)",),
        ("dat(switch=10)",),
        ("dat(switch=below(0.000001), otherwise=wait)",),
        ("dat(mode=ramp, switch=10, ramp=40)", "ema(0.5)"),
        ("dat(mode=detach, switch=below(0.000001), otherwise=wait)",),
    ],
    ids=" + ".join,
)
def test_loaded_model_is_its_seed_of_the_run(methods: tuple[str, ...], tmp_path: Path) -> None:
    folder = trained(tiny(*methods, seeds=(4, 2), steps=20), tmp_path / "run")
    inputs = tokens(folder)
    with torch.no_grad():
        together = open_run(folder, CPU).predictor()(inputs)
        for row, seed in enumerate((4, 2)):
            logits, _ = load(folder, seed)(inputs)
            torch.testing.assert_close(logits, together[row], rtol=1e-5, atol=1e-5)
        assert torch.equal(load(folder)(inputs)[0], load(folder, 4)(inputs)[0])
    assert not torch.allclose(together[0], together[1], atol=1e-2)


def test_attention_that_was_never_let_in_is_loaded_closed(tmp_path: Path) -> None:
    never = "dat(switch=below(0.000001), otherwise=wait)"
    folder = trained(tiny(never, steps=20), tmp_path / "run")
    model, inputs = load(folder, 0), tokens(folder)
    with torch.no_grad():
        closed, _ = model(inputs)
        for sublayer in model.sublayers():
            if sublayer.pathway == "attention":
                assert sublayer.gate.item() == 0
                sublayer.set_gate(1.0)
        opened, _ = model(inputs)
    assert not torch.allclose(closed, opened, atol=1e-3)


def test_ramp_is_loaded_half_way_up(tmp_path: Path) -> None:
    folder = trained(tiny("dat(mode=ramp, switch=10, ramp=40)", steps=20), tmp_path / "run")
    gates = {s.pathway: s.gate.item() for s in load(folder).sublayers()}
    assert gates["attention"] == pytest.approx(11 / 40)  # the gate of the step that would be next
    assert gates["recurrent"] == 1


def test_average_is_loaded_corrected_for_its_start(tmp_path: Path) -> None:
    """By hand: the average of weights w1..wn with decay d, its weights summing to one."""
    run = tiny("ema(0.5)", steps=3, steps_per_block=1, probe_every=0, checkpoint_every=1)
    folder, weights = create(run, tmp_path / "run"), list[Tensor]()
    with open_trainer([folder], CPU) as trainer:
        model = trainer.seeds.model
        trainer.train(lambda *_: weights.append(model.table.clone()))
    shares = torch.tensor([0.125, 0.25, 0.5])
    expected = sum(w * s for w, s in zip(weights, shares / shares.sum(), strict=True))
    for row, seed in enumerate(run.seeds):
        loaded = dict(load(folder, seed).named_parameters())
        for name, columns in model.slices.items():
            torch.testing.assert_close(
                loaded[name].flatten(), expected[row, columns], rtol=1e-5, atol=1e-6
            )


def test_without_an_average_the_last_weights_are_loaded(plain: Path) -> None:
    saved, _ = load_checkpoint(plain)
    model = load(plain, 1)
    for name, weights in model.named_parameters():
        assert torch.equal(weights, saved[f"weights.{name}"][1])
    assert not model.training


class SpyFile:
    """A safetensors file that notes which rows of which tensors are read."""

    def __init__(self, file: Any, read: dict[str, set[int]]) -> None:
        self.file, self.read = file, read
        self.keys, self.metadata = file.keys, file.metadata

    def get_tensor(self, name: str) -> Tensor:
        return self.get_slice(name)[:]

    def get_slice(self, name: str) -> Any:
        self.name, self.table = name, self.file.get_slice(name)
        return self

    def __getitem__(self, index: slice) -> Tensor:
        rows = range(self.table.get_shape()[0])[index]
        self.read.setdefault(self.name, set()).update(rows)
        return self.table[index]


@pytest.mark.parametrize("method", ["dat(switch=5)", "ema(0.9)"])
def test_loading_one_seed_reads_its_weights_alone(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = trained(tiny(method, seeds=(4, 2, 7), steps=10), tmp_path / "run")
    tensors, _ = load_checkpoint(folder)
    names = [name for name in tensors if name.startswith((WEIGHTS, AVERAGE))]
    real, read = checkpoint_module.safe_open, dict[str, set[int]]()

    @contextmanager
    def spy(*args: Any, **options: Any) -> Iterator[SpyFile]:
        with real(*args, **options) as file:
            yield SpyFile(file, read)

    monkeypatch.setattr(checkpoint_module, "safe_open", spy)
    load(folder, 2)
    assert read == {name: {1} for name in names}
    read.clear()
    open_run(folder, CPU)
    assert read == {name: {0, 1, 2} for name in names}


def test_error_names_a_seed_that_the_run_does_not_have(plain: Path) -> None:
    with pytest.raises(OutlastError, match=r"seed=9: .* has the seeds 0, 1"):
        load(plain, 9)


def test_opening_a_run_changes_nothing(plain: Path) -> None:
    before = {path.name: path.read_bytes() for path in plain.iterdir()}
    load(plain, 1)
    open_run(plain, CPU)
    assert {path.name: path.read_bytes() for path in plain.iterdir()} == before


def test_loaded_model_scores_what_the_run_scored(plain: Path) -> None:
    rows = evaluate_run(plain, Evaluation((1, 3), 64))
    for seed in (0, 1):
        alone = outlast.evaluate(load(plain, seed), read_run(plain).task, (1, 3), 64)
        assert [r["exact"] for r in alone] == [r["exact"] for r in rows if r["seed"] == seed]
