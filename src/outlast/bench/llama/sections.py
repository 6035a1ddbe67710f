"""TRA in a Llama of `transformers` beside the same Llama with RoPE and SDPA (flash on a GPU).

Both sides are whole models, as a user has them: `AutoModelForCausalLM`, its loss, its `generate`
with a dynamic cache, without `torch.compile`. On a GPU training has float32 weights and matmuls in
bfloat16 (autocast), and generation has weights in bfloat16. The first side is SDPA, so a row of
`tra` has the ratio to it beside its time.

The error is that of the logits of a short pass against float32 on the CPU. For TRA in bfloat16 it
is large, about 0.4, and that is the method, not lost digits. Scores are float32 sums, also where
they are compared with the threshold. But a new model's scores lie around the threshold of 0. In the
first layer 0.17 % of the keys that a query sees change sides when the stream is rounded; each of
them moves the distance of all keys before it, and in the twelfth layer 16 % change sides. With the
kept keys of the float32 pass the error of bfloat16 is 0.02 (SDPA: 0.014); float32 with the kept
keys of the bfloat16 pass is off by 0.39. Queries and keys in float32 would not help: it is 0.39
still. Embeddings that are off by one part in 100,000 move the logits of a float32 model by 0.08
(SDPA: 0.00002). All this was measured on the CPU, with the large model and 256 tokens.
"""

from __future__ import annotations

from typing import Any

import torch

from outlast.bench.benchmark import Benchmark
from outlast.bench.llama.sides import (
    LARGE,
    NAMES,
    TINY,
    Size,
    build,
    draw,
    error,
    generation,
    one_token,
    train_step,
)
from outlast.bench.timing import FAILURES, Bench, Row, not_run


def train(bench: Bench) -> None:
    """A training step at 4k and at 16k tokens."""
    _train(bench, "train", LARGE)


def generate(bench: Bench) -> None:
    """A prompt of 16k tokens: reading it, one more token, and 64 more."""
    _generate(bench, "generate", LARGE)


def memory(bench: Bench) -> None:
    """Peak memory of a training step beyond weights and optimiser."""
    _memory(bench, "memory", LARGE)


def cpu(bench: Bench) -> None:
    """All of it with a tiny model, on the CPU."""
    small = bench.on_cpu()
    for measure in (_train, _generate, _memory):
        measure(small, "cpu", TINY)


def _models(bench: Bench, size: Size, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    return {name: build(size, name, bench.device, dtype) for name in NAMES}


def _parameters(model: Any) -> str:
    return f"{sum(p.numel() for p in model.parameters()) / 1e6:.3g} M parameters"


def _train(bench: Bench, section: str, size: Size) -> None:
    models = _models(bench, size)
    errors = {name: error(model, size) for name, model in models.items()}
    for length, batch in size.batches:
        tokens = draw(size, batch, length, bench.device)
        sides = {name: train_step(model, tokens) for name, model in models.items()}
        what = f"step, {batch} x {length} tokens"
        bench.compare(section, what, sides, errors, _parameters(models["tra"]))


def _generate(bench: Bench, section: str, size: Size) -> None:
    half = bench.device.type == "cuda"
    models = _models(bench, size, torch.bfloat16 if half else torch.float32)
    errors = {name: error(model, size) for name, model in models.items()}
    prompt = draw(size, 1, size.prompt, bench.device)
    for new in (1, size.new):
        what = f"prompt of {size.prompt}, {new} new"
        sides = {name: generation(model, prompt, new) for name, model in models.items()}
        bench.compare(section, what, sides, errors, _parameters(models["tra"]))
    what = f"one token after {size.prompt}"
    if not bench.spent(section, what):
        sides = {name: one_token(model, prompt) for name, model in models.items()}
        bench.compare(section, what, sides, errors, "with the cache")


def _memory(bench: Bench, section: str, size: Size) -> None:
    models = _models(bench, size)
    for length, batch in size.batches:
        what = f"memory, {batch} x {length} tokens"
        if bench.spent(section, what):
            return
        tokens = draw(size, batch, length, bench.device)
        first: float | None = None
        for name, model in models.items():
            row = Row(section, what, name, None)
            try:
                step = train_step(model, tokens)
                step()  # the optimiser's state is made, and is not counted
                row.mib = bench.peak(step)
                first = first or row.mib
                row.note = f"x{row.mib / first:.2f}" if row.mib and first else ""
            except FAILURES as failure:
                row.note = not_run(failure)
            bench.add(row)


SECTIONS = {"train": train, "generate": generate, "memory": memory, "cpu": cpu}
LLAMA_BENCHMARK = Benchmark(
    "llama",
    SECTIONS,
    cpu_sections=("cpu",),
    defaults={"cuda": ("train", "generate", "memory"), "cpu": ("cpu",)},
)
