"""`to_tra`: pretrained RoPE models as the start of TRA models."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from tra_families import CONFIGS, FAMILIES, SIZES, stock_model, tokens
from transformers import AutoModelForCausalLM

import outlast.hf
from outlast.errors import SpecError


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_converted_model_is_the_tra_model_of_the_same_weights(family: str, tied: bool) -> None:
    stock, x = stock_model(family, tie_word_embeddings=tied), tokens()
    model = outlast.hf.to_tra(stock, threshold=0.1, norm=False, gate_bias=2.0)
    assert model.config.model_type == f"tra_{family}"
    assert not any(p.is_meta for p in (*model.parameters(), *model.buffers()))
    options = {"tra_threshold": 0.1, "tra_norm": False, "tra_gate_bias": 2.0}
    fresh = AutoModelForCausalLM.from_config(
        CONFIGS[family](**SIZES, **options, tie_word_embeddings=tied)
    ).double()
    result = fresh.load_state_dict(stock.state_dict(), strict=False)
    assert not result.unexpected_keys
    assert all("tra_gate" in name for name in result.missing_keys)
    gates = {n: p for n, p in model.state_dict().items() if "tra_gate" in n}
    assert sorted(gates) == sorted(result.missing_keys)
    fresh.load_state_dict(gates, strict=False)
    assert torch.equal(model(x).logits, fresh.eval()(x).logits)
    assert not torch.allclose(model(x).logits, stock(x).logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_converted_model_trains_saves_and_generates(family: str, tmp_path: Path) -> None:
    x = tokens(rows=4)
    model = outlast.hf.to_tra(stock_model(family).float().train())
    assert model.training
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(20):
        loss = model(x, labels=x, use_cache=False).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    fixed: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False}
    fixed["attention_mask"] = torch.ones_like(x)
    assert torch.equal(loaded.generate(x, **fixed), model.eval().generate(x, **fixed))


def test_weights_are_shared_and_a_copy_is_not_touched() -> None:
    stock = stock_model("llama")
    model = outlast.hf.to_tra(stock)
    apart = outlast.hf.to_tra(copy.deepcopy(stock))
    with torch.no_grad():
        model.model.norm.weight.add_(1)
    assert torch.equal(stock.model.norm.weight, model.model.norm.weight)
    assert not torch.equal(stock.model.norm.weight, apart.model.norm.weight)


def test_frozen_weights_stay_frozen_and_gates_learn() -> None:
    stock = stock_model("llama")
    stock.model.embed_tokens.requires_grad_(False)
    model = outlast.hf.to_tra(stock)
    learning = {n: p.requires_grad for n, p in model.named_parameters()}
    assert not learning.pop("model.embed_tokens.weight")
    assert all(learning.values())


def test_seed_draws_the_gates_and_the_global_stream_is_untouched() -> None:
    stock = stock_model("llama")
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, same, other = (outlast.hf.to_tra(stock, seed=s) for s in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    weights = [m.model.layers[0].self_attn.tra_gate.weight for m in (first, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert weights[0].dtype == torch.float64


def test_what_is_lost_is_said(caplog: pytest.LogCaptureFixture) -> None:
    stock = stock_model("llama", attention_dropout=0.1)
    with caplog.at_level(logging.WARNING, "outlast.hf"):
        outlast.hf.to_tra(stock)
    for words in ("rotation", "gates", "score of 0 or less", "normalised", "dropout of 0.1"):
        assert words in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "outlast.hf"):
        outlast.hf.to_tra(stock_model("llama"), threshold=None, norm=False)
    for words in ("score of", "normalised", "dropout"):
        assert words not in caplog.text


def test_rope_scaling_and_generation_config() -> None:
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    stock = stock_model("llama", rope_parameters=scaled)
    stock.generation_config.top_k = 7
    model = outlast.hf.to_tra(stock)
    assert model.config.rope_parameters["rope_type"] == "default"
    assert model.generation_config.top_k == 7
    assert model(tokens()).logits.isfinite().all()


def test_other_models_are_refused() -> None:
    stock = stock_model("llama")
    with pytest.raises(SpecError, match=r"a LlamaModel: expected LlamaForCausalLM \| Qwen3"):
        outlast.hf.to_tra(stock.model)
    with pytest.raises(SpecError, match="a TraLlamaForCausalLM"):
        outlast.hf.to_tra(outlast.hf.to_tra(stock))
    with pytest.raises(SpecError, match="a int"):
        outlast.hf.to_tra(3)
    stock.lm_head.to("meta")
    with pytest.raises(SpecError, match="on cpu, meta"):
        outlast.hf.to_tra(stock)


def test_sliding_window_is_refused_with_advice() -> None:
    stock = stock_model("mistral")
    stock.config.sliding_window = 4096
    with pytest.raises(
        SpecError, match=r"sliding_window=4096.*model\.config\.sliding_window = None"
    ):
        outlast.hf.to_tra(stock)


def test_register_may_be_called_again() -> None:
    outlast.hf.register()
    outlast.hf.register()
