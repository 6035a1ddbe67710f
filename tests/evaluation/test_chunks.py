"""Sequences in chunks: the logits of a whole pass, in memory that grows with the length alone."""

from __future__ import annotations

import logging
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from outlast import evaluate
from outlast.errors import SpecError
from outlast.evaluation import chunks, ladder
from outlast.kernels.attention import cached
from outlast.methods.base import Control
from outlast.mixers.attention import blocks
from outlast.models import Model, build_model
from outlast.registry import mixers, presets, schemes, tasks, weightings
from outlast.testing.subjects import plain_lines
from outlast.train.predictor import Predictor
from outlast.train.seeds import StackedModel

TASK = tasks.build("composite(modulus=3, keys=64, length=8, queries=2)")
#: no token stands in a row again: equal scores would make `topk` and `hard` depend on rounding
TOKENS = torch.rand(2, TASK.vocabulary, generator=torch.Generator().manual_seed(0)).argsort(1)[
    :, :23
]
SCHEMES, WEIGHTS = plain_lines(schemes), plain_lines(weightings)
LAYERS = [f"attention({s}, heads=2)" for s in SCHEMES]
LAYERS += [f"attention(rope, heads=2, weights={w})" for w in WEIGHTS]
OTHERS = [line for line in plain_lines(mixers) if line != "attention"]
CPU = torch.device("cpu")


def small(line: str) -> Model | None:
    """A model of a line in float64, with weights that no 0 hides; None if the line is refused."""
    try:
        model = build_model(f"{line} @ 16", TASK.vocabulary, TASK.classes, seed=0).double()
    except SpecError:
        return None
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    return model


def stacked(line: str, span: int = 0) -> Predictor:
    """Two seeds of a model in float64; positions are drawn from a span, if there is one."""
    model = StackedModel(f"{line} @ 16", TASK, (0, 1), CPU)
    model.model.double()
    model.table = model.table.double()
    return model.predictor([Control({}, (2, 8), span)] * 2, model.named(model.table))


def joined(model: Any, size: int, dim: int) -> Tensor:
    """The logits of all chunks; no mask and no table of scores is larger than one row."""
    one_row = {"MOST_MASKED": 1, "MOST_SCORES": 1}
    with patch.multiple(cached, **one_row), patch.object(blocks, "BUDGET", 1):
        return torch.cat(list(model.in_chunks(TOKENS, size)), dim)


@pytest.mark.parametrize("scheme", SCHEMES)
@torch.no_grad()
def test_chunks_equal_the_whole_for_a_scheme_with_all_weights(scheme: str) -> None:
    models = {w: small(f"attention({scheme}, heads=2, weights={w})") for w in WEIGHTS}
    built = {name: model for name, model in models.items() if model is not None}
    assert "softmax" in built
    for name, model in built.items():
        whole, _ = model(TOKENS)
        difference = (joined(model, 9, 1) - whole).abs().max()
        assert difference < 1e-9, f"{scheme} with {name}: {difference:.2g}"


@pytest.mark.parametrize(("line", "size"), [*product(LAYERS, [9]), *product(OTHERS, [1, 9])])
@torch.no_grad()
def test_chunks_of_stacked_seeds_equal_the_whole(line: str, size: int) -> None:
    model = stacked(line)
    assert torch.allclose(joined(model, size, 2), model(TOKENS), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", presets.names())
@torch.no_grad()
def test_chunks_of_a_preset_equal_the_whole(name: str) -> None:
    model = stacked(name)
    assert torch.allclose(joined(model, 7, 2), model(TOKENS), rtol=0, atol=1e-9)


@pytest.mark.parametrize("line", ["attention(alibi, heads=2)", "attention(learned(ceiling=64))"])
@torch.no_grad()
def test_chunks_with_drawn_positions_equal_the_whole(line: str) -> None:
    model, plain = stacked(line, span=64), stacked(line)
    assert torch.allclose(joined(model, 9, 2), model(TOKENS), rtol=0, atol=1e-9)
    assert not torch.allclose(model(TOKENS), plain(TOKENS))
    alone = small(line)
    assert alone is not None
    alone.span = 64
    assert torch.allclose(joined(alone, 9, 1), alone(TOKENS)[0], rtol=0, atol=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("line", [layer for layer in LAYERS if "hard" not in layer] + OTHERS)
@torch.no_grad()
def test_chunks_on_a_gpu_equal_the_whole(line: str) -> None:
    """In float32, as kernels have it; `hard` would jump where scores are close."""
    device = torch.device("cuda")
    model = StackedModel(f"{line} @ 32", TASK, (0, 1), device)
    predict = model.predictor([Control({}, (2, 8))] * 2, model.named(model.table))
    tokens = torch.randint(TASK.vocabulary, (2, 39), generator=torch.Generator().manual_seed(0))
    tokens = tokens.to(device)
    whole = predict(tokens)
    with patch.object(cached, "MOST_MASKED", 1):
        parts = torch.cat(list(predict.in_chunks(tokens, 17)), 2)
    assert (parts - whole).abs().max() <= 2e-3 * whole.abs().max()


@pytest.mark.parametrize("width", [8, 12])  # values as wide as keys, and wider
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_attention_behind_a_long_cache_equals_the_reference(width: int, dtype: Any) -> None:
    from outlast.kernels.attention import attend, reference

    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 3, n, 8, generator=generator, dtype=dtype) for n in (40, 300))
    v = torch.randn(2, 3, 300, width, generator=generator, dtype=dtype)
    with patch.object(cached, "MOST_MASKED", 1), patch.object(cached, "MOST_SCORES", 2**14):
        y = attend(3 * q, k, v)
    expected = reference.attend(3 * q.double(), k.double(), v.double())
    assert torch.allclose(y.double(), expected, rtol=0, atol=2e-6)


class Largest(TorchDispatchMode):
    """Notes how many numbers the largest tensor has that any operation makes."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return made


@pytest.mark.parametrize("line", ["attention(heads=2)", "attention(alibi, heads=2)", "lstm"])
def test_memory_is_linear_in_the_length_and_room_is_made_once(line: str) -> None:
    model, tokens = small(line), 1500
    assert model is not None
    inputs, chunk = torch.zeros(1, tokens, dtype=torch.int64), 128
    small_tables = {"MOST_MASKED": 2**12, "MOST_SCORES": 2**12}
    with (
        patch.multiple(cached, **small_tables),
        patch.object(blocks, "BUDGET", 2**14),
        patch.object(torch, "cat", wraps=torch.cat) as cat,
        Largest() as largest,
    ):
        for logits in model.in_chunks(inputs, chunk):
            assert logits.shape[1] <= chunk
    assert largest.numbers <= max(16 * tokens, chunk * TASK.vocabulary)
    copied = [t.numel() for call in cat.call_args_list for t in call.args[0]]
    assert max(copied, default=0) <= 16 * chunk, "keys are copied at every chunk"


# ---- the ladder --------------------------------------------------------------------------------


def test_ladder_in_chunks_gives_the_rows_of_whole_passes() -> None:
    model = small("lstm | attention(weights=scalable, heads=2) > mlp")
    assert model is not None
    ask = {"ladder": (1, 4), "sequences": 16}
    whole = evaluate(model, TASK, **ask)
    for row in whole:
        assert row.pop("logits_from") == "the first item of a tuple"
    with patch.object(model, "forward", wraps=model.forward) as forward:
        assert evaluate(model, TASK, **ask, chunk=7) == whole
    assert {call.args[0].shape[1] for call in forward.call_args_list} <= set(range(1, 8))
    assert 0 < whole[0]["answers"]["running"] < 1


def test_long_sequences_are_read_in_chunks_by_default() -> None:
    model = small("lstm")
    assert model is not None
    with (
        patch.multiple(chunks, LONG=20, FEWEST=8, AT_ONCE={"cpu": 64}),
        patch.object(model, "forward", wraps=model.forward) as forward,
    ):
        evaluate(model, TASK, (1, 2), 4)
    lengths = [call.args[0].shape[1] for call in forward.call_args_list]
    assert lengths == [19, 16, 16, 3]


@pytest.mark.parametrize("asked", [None, 7])
def test_model_that_cannot_be_chunked_is_read_whole_and_that_is_said(
    asked: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    scaled = small(
        "attention(rope(scaling=ntk, factor=4, original=7, convention=transformers), heads=2)"
    )
    assert scaled is not None
    with patch.object(chunks, "LONG", 7), caplog.at_level(logging.INFO):
        evaluate(scaled, TASK, (1,), 4, chunk=asked)
        evaluate(lambda tokens: scaled(tokens), TASK, (1,), 4, chunk=asked)
    remarks = [r for r in caplog.records if "are read whole" in r.message]
    assert "takes at most 7 tokens in chunks" in remarks[0].message
    assert "has no in_chunks" in remarks[1].message
    expected = logging.INFO if asked is None else logging.WARNING
    assert {remark.levelno for remark in remarks} == {expected}


def test_portion_shrinks_by_sequences_and_then_by_tokens_of_a_chunk() -> None:
    portion, seen = chunks.Portion(3, 1000), []
    while portion is not None:
        seen.append((portion.sequences, portion.chunk))
        portion = portion.smaller()  # type: ignore[assignment]
    assert seen == [(3, 1000), (1, 1000), (1, 500), (1, 256)]
    assert chunks.Portion(1, 1000, flexible=False).smaller() is None
    assert chunks.Portion(1).smaller() is None


@pytest.mark.parametrize("chunk", [0, -1, 2.5, "7"])
def test_wrong_chunk_is_refused_by_name(chunk: Any) -> None:
    with pytest.raises(SpecError, match="chunk="):
        evaluate(lambda tokens: tokens, TASK, (1,), 4, chunk=chunk)


def test_row_out_of_reach_says_which_argument_allows_it() -> None:
    reason = ladder.out_of_reach(tasks.build("composite(keys=64)"), 100, None)
    assert reason is not None
    assert "key_tokens=2" in reason
    assert "repeat=latest" in reason
