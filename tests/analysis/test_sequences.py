"""Analyses look at what a test looks at."""

import logging

import pytest
import torch

import outlast
from outlast.analysis.sequences import blocks, draw_rungs
from outlast.errors import OutlastError


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
