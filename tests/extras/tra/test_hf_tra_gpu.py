"""TRA models of `transformers` on a GPU: the fused kernels against the same model on the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from tra_families import CONFIGS, FAMILIES, SIZES, left_padded, tokens
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.gpu
#: wide enough for the fused kernel
WIDE = SIZES | {"hidden_size": 128, "head_dim": 32, "intermediate_size": 128}


def wide_model(family: str) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[family](**WIDE, initializer_range=0.1))


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_gradients_are_those_of_the_cpu(family: str) -> None:
    model = wide_model(family)
    twin = copy.deepcopy(model).cuda()
    padded, mask = left_padded(tokens(length=70))
    results = []
    for each, device in ((model, "cpu"), (twin, "cuda")):
        inputs = {"attention_mask": mask.to(device), "labels": padded.to(device)}
        out = each(padded.to(device), use_cache=False, **inputs)
        out.loss.backward()
        results.append([out.logits[:, 3:].cpu(), *(p.grad.cpu() for p in each.parameters())])
    for cpu, gpu in zip(*results, strict=True):
        assert (cpu - gpu).norm() <= 2e-2 * cpu.norm()  # matmuls of ten bits


@pytest.mark.parametrize("family", FAMILIES)
def test_autocast_stays_near_float32(family: str) -> None:
    model, x = wide_model(family).cuda().eval(), tokens(length=70).cuda()
    with torch.no_grad():
        exact = model(x, use_cache=False).logits
        with torch.autocast("cuda", torch.bfloat16):
            lower = model(x, use_cache=False).logits
    assert (lower - exact).norm() <= 0.1 * exact.norm()


@pytest.mark.parametrize("length", [40, 1100])  # of the longer one the keys are split
@pytest.mark.parametrize("kind", [None, "static"])
def test_generation_with_a_cache_follows_the_whole_pass(kind: str | None, length: int) -> None:
    model, x = wide_model("llama").cuda().eval(), tokens(length=length).cuda()
    fixed: dict[str, Any] = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    out = model.generate(x, attention_mask=torch.ones_like(x), cache_implementation=kind, **fixed)
    with torch.no_grad():
        logits = model(out, use_cache=False).logits[:, length - 1 : -1]
    logits[..., model.config.eos_token_id] = -torch.inf
    best = logits.max(-1).values
    chosen = logits.gather(-1, out[:, length:, None])[..., 0]
    assert (best - chosen).max() <= 1e-2 * logits[logits.isfinite()].std()


def test_no_table_of_queries_by_keys_is_made() -> None:
    length = 8192
    model = wide_model("llama").cuda().train()
    x = tokens(rows=1, length=length).cuda()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    padded = torch.ones_like(x)
    padded[:, :100] = 0
    model(x, attention_mask=padded, use_cache=False).logits.sum().backward()
    table = length * length  # bytes of a mask of one head
    assert torch.cuda.max_memory_allocated() - before < 4 * table
