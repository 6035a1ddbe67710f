"""Tests of long sequences: seconds and memory by the number of items, and chunks against the whole.

The task is `composite` with keys of two tokens, the model a hybrid of two blocks, fresh from its
initialisation: what it answers is no matter here. One sequence is drawn, read in chunks and
measured, as `outlast eval` does it, once. Memory is what that needs beyond the model, the sequence
included. The section `farthest` has the model of the preset ``reach(size=small)`` instead, at 4,000
times its training length.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from outlast.bench.benchmark import Benchmark
from outlast.bench.timing import FAILURES, Bench, Row, not_run
from outlast.evaluation.chunks import AT_ONCE
from outlast.evaluation.ladder import evaluate_stack
from outlast.machine import precision
from outlast.methods.base import Control
from outlast.models.presets import reach
from outlast.registry import tasks
from outlast.tasks import Task
from outlast.train.memory import count_seeds
from outlast.train.predictor import Predictor
from outlast.train.seeds import StackedModel

TASK = "composite(keys=320, key_tokens=2)"
MODEL = "2 x (lstm | attention(weights=scalable) > mlp) @ 128"
EQUAL, THOUSANDS, HUNDRED_THOUSAND = 2_000, (1_000, 10_000), (100_000,)
SEEDS = (1, 10)
#: the task of the preset, with as many keys as its longest rows need
FAR_TASK, FAR_ITEMS, FAR_SEEDS = (
    "composite(modulus=2, keys=32768, queries=4, length=8)", 32_000, (1, 4)
)  # fmt: skip


def _predictor(line: str, task: Task, seeds: int, device: torch.device) -> Predictor:
    model = StackedModel(line, task, range(seeds), device)
    return model.predictor([Control({}, task.lengths)] * seeds, model.named(model.table))


@torch.no_grad()
def equal(bench: Bench, items: int = EQUAL) -> None:
    """Logits of chunks against those of a whole pass: the largest difference over the largest."""
    task = tasks.build(TASK)
    tokens = task.sample(items, 1, torch.Generator(bench.device).manual_seed(0)).inputs
    with precision("fp32", bench.device):
        model = _predictor(MODEL, task, 1, bench.device)
        whole = model(tokens)
        for chunk in (tokens.shape[1] // 3, AT_ONCE[bench.device.type] // 64):
            parts = torch.cat(list(model.in_chunks(tokens, chunk)), 2)
            error = ((parts - whole).abs().max() / whole.abs().max()).item()
            what = f"{items:,} items, {tokens.shape[1]:,} tokens"
            bench.add(Row("equal", what, f"chunk {chunk}", None, error=error))


def _measure(
    bench: Bench,
    section: str,
    sizes: Sequence[int],
    stacks: Sequence[int],
    lines: tuple[str, str] | None = None,
) -> None:
    """A row for each number of items and of seeds; `lines` are a task and a model."""
    task_line, model_line = lines or (TASK, MODEL)
    task = tasks.build(task_line)
    for items in sizes:
        for seeds in stacks:
            what = f"{items:,} items, {task.tokens(items):,} tokens"
            if bench.spent(section, what):
                return
            with precision("fp32", bench.device):
                model = _predictor(model_line, task, seeds, bench.device)
                row = Row(section, what, count_seeds(seeds), None)
                bench.add(_measured(bench, model, task, row, items, seeds))


def _measured(bench: Bench, model: Predictor, task: Task, row: Row, items: int, seeds: int) -> Row:
    """The row with the time and memory of one test, or with the reason why there is none."""

    def test(length: int = items) -> None:
        multiple = length / task.lengths[1]
        evaluate_stack(model, seeds, task, (multiple,), 1, bench.device)
        bench.wait()

    try:
        test(task.lengths[1])  # loads and compiles what it needs
        begun = time.perf_counter()
        row.mib = bench.peak(test)
        row.ms = 1e3 * (time.perf_counter() - begun)
        row.note = f"{row.ms / 1e3:.1f} s, once"
    except FAILURES as error:
        row.note = not_run(error)
    return row


def thousands(bench: Bench) -> None:
    """One sequence of 1,000 and of 10,000 items; on a GPU also for ten seeds at once."""
    stacks = SEEDS if bench.device.type == "cuda" else SEEDS[:1]
    _measure(bench, "thousands", THOUSANDS, stacks)


def hundred_thousand(bench: Bench) -> None:
    """One sequence of 100,000 items, 300,000 tokens and more."""
    _measure(bench, "hundred_thousand", HUNDRED_THOUSAND, SEEDS[:1])


def farthest(bench: Bench) -> None:
    """One sequence of 32,000 items, by the model of the preset ``reach(size=small)``."""
    lines = (FAR_TASK, reach("small").model)
    _measure(bench, "farthest", (FAR_ITEMS,), FAR_SEEDS, lines)


SECTIONS = (equal, thousands, hundred_thousand, farthest)
LONG_BENCHMARK = Benchmark(
    "long",
    {f.__name__: f for f in SECTIONS},  # type: ignore[attr-defined]
    cpu_sections=("equal", "thousands", "hundred_thousand", "farthest"),
    defaults={"cpu": ("equal", "thousands"), "cuda": ("equal", "thousands", "hundred_thousand")},
)
