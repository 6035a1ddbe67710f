"""Analyses look at what a test looks at."""

import gc
import logging
import warnings

import pytest
import torch
from hand_built import build, task_of

import outlast
from outlast.analysis.anatomy import anatomy
from outlast.analysis.probe import FIT_SEQUENCES, key_probe, state_probe
from outlast.analysis.sequences import blocks, draw_rungs, memory_needed
from outlast.errors import OutlastError
from outlast.models.model import Model


def test_sequences_are_those_of_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    task = outlast.task("parity(length=5)")
    model, seen = outlast.model("lstm @ 8", task), []
    rungs = list(draw_rungs(model, task, (1, 2), 6))
    outlast.evaluate(lambda tokens: seen.append(tokens) or model(tokens), task, (1, 2), 6)
    assert [rung.length for rung in rungs] == [5, 10]
    for rung, tokens in zip(rungs, seen, strict=True):
        assert torch.equal(rung.batch.inputs, tokens)
        assert torch.equal(torch.cat([b.inputs for b in blocks(rung.batch, 13)]), tokens)


def test_lengths_out_of_reach_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    task = outlast.task("recall(keys=30, length=25)")
    with caplog.at_level(logging.DEBUG):
        rungs = list(draw_rungs(outlast.model("lstm @ 8", task), task, (1, 2), 6))
    assert [rung.length for rung in rungs] == [25]
    assert "ends at length 30" in caplog.text


def test_length_beyond_memory_is_refused_before_the_first_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = 10**6
    monkeypatch.setattr(
        "outlast.evaluation.ladder.short_of", lambda needed, _: free if needed > free else None
    )
    task = outlast.task("parity(length=5)")
    rungs = draw_rungs(outlast.model("lstm @ 8", task), task, (1, 100_000), 6)
    with pytest.raises(OutlastError, match=r"length 500000 \(100000 x\) take .* GiB: expected no"):
        next(rungs)


def kept_bytes() -> int:
    """The bytes of all tensors that Python holds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some objects of torch warn if they are looked at
        tensors = [each for each in gc.get_objects() if isinstance(each, torch.Tensor)]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def peak_of(analysis: str, model: Model, task: outlast.tasks.Task) -> int:
    """The bytes that an analysis of few sequences holds at most while a model is at work."""
    functions = {"anatomy": anatomy, "state-probe": state_probe, "key-probe": key_probe}
    peak, before = [0], kept_bytes()
    handles = [
        layer.register_forward_hook(lambda *_: peak.append(kept_bytes()))
        for layer in model.sublayers()
    ]
    functions[analysis](model, task, (1,), 4)
    for handle in handles:
        handle.remove()
    return max(peak) - before


@pytest.mark.parametrize("analysis", ["anatomy", "state-probe", "key-probe"])
def test_sequences_that_a_probe_is_fitted_on_are_counted(analysis: str) -> None:
    task = task_of()
    task.lengths = (2, 16)
    model = build(task, answer=-1)
    peak, device = peak_of(analysis, model, task), torch.device("cpu")
    assert memory_needed(model, task, [16], 4, device) < peak
    assert peak < memory_needed(model, task, [16], 4, device, FIT_SEQUENCES) < 3 * peak


def test_estimate_of_a_long_training_length_is_of_the_sequences_of_the_fit() -> None:
    task = outlast.task("parity(length=20000)")
    model, device = outlast.model("lstm @ 8", task), torch.device("cpu")
    few = memory_needed(model, task, [20000], 8, device)
    assert few < 2**27
    many = memory_needed(model, task, [20000], 8, device, FIT_SEQUENCES)
    assert 2 * 2**30 < many < 5 * 2**30
