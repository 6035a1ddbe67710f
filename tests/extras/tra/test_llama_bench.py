"""`outlast bench llama`: TRA in a Llama beside SDPA, with a tiny model on the CPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")

from outlast.bench.llama import sides
from outlast.bench.llama.sections import LLAMA_BENCHMARK
from outlast.bench.llama.sides import LARGE, TINY, build, draw, error, one_token
from outlast.bench.timing import Bench
from tiny_runs import CPU


def test_cpu_section_times_both_sides_and_their_memory() -> None:
    bench = Bench(CPU, seconds=60, repeats=1)
    LLAMA_BENCHMARK.sections["cpu"](bench)
    timed = [row for row in bench.rows if row.ms is not None]
    assert [row.what for row in timed[::2]] == [
        "step, 2 x 64 tokens",
        "prompt of 64, 1 new",
        "prompt of 64, 4 new",
        "one token after 64",
    ]
    assert [row.side for row in timed] == ["sdpa", "tra"] * 4
    assert all(row.against and row.error == 0 for row in timed)  # the CPU is compared with itself
    assert [row.what for row in bench.rows if row.ms is None] == ["memory, 2 x 64 tokens"] * 2


def test_nothing_begins_when_the_budget_is_spent() -> None:
    bench = Bench(CPU, seconds=1e-9, repeats=1)
    LLAMA_BENCHMARK.sections["cpu"](bench)
    assert bench.rows
    assert all("budget is spent" in row.note for row in bench.rows)


def test_one_token_is_the_next_of_the_whole_pass_each_time() -> None:
    for name in ("sdpa", "tra"):
        model = build(TINY, name, CPU)
        prompt = draw(TINY, 1, 9, CPU)
        run = one_token(model, prompt)
        whole = model(torch.cat([prompt, prompt[:, :1]], 1), use_cache=False).logits[:, -1:]
        for _ in range(3):
            torch.testing.assert_close(run(), whole, rtol=0, atol=1e-5)


def test_error_sees_a_model_that_differs_from_itself_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = build(TINY, "tra", CPU)
    assert error(model, TINY) == 0
    other = build(TINY, "sdpa", CPU).eval()
    monkeypatch.setattr(sides.copy, "deepcopy", lambda _: other)
    assert error(model, TINY) > 0.1


def test_large_model_has_125_million_parameters_on_both_sides() -> None:
    meta = torch.device("meta")
    with meta:
        counts = {
            n: sum(p.numel() for p in build(LARGE, n, meta).parameters()) for n in ("sdpa", "tra")
        }
    assert all(120e6 < count < 130e6 for count in counts.values())
    assert counts["tra"] - counts["sdpa"] == 12 * (768 + 1) * 12
