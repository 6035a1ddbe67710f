"""What a TRA model of `transformers` refuses, and in which words."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from tra_families import CONFIGS, SIZES, build, stock_model, tokens, tra_model

from outlast.errors import SpecError


@pytest.mark.parametrize(
    ("family", "options", "words"),
    [
        ("llama", {"tra_threshold": float("nan")}, "tra_threshold=nan.*None to keep every key"),
        ("llama", {"tra_threshold": "0"}, "tra_threshold='0'"),
        ("llama", {"tra_norm": 1}, "tra_norm=1.*True | False"),
        ("llama", {"tra_gate_bias": float("inf")}, "tra_gate_bias=inf"),
        ("llama", {"attention_dropout": 0.1}, "attention_dropout=0.1"),
        ("llama", {"is_causal": False}, "is_causal=False"),
        ("mistral", {"sliding_window": 8}, "sliding_window=8"),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 8}, "sliding_window=8"),
        (
            "qwen3",
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer_types=sliding_attention: expected full_attention",
        ),
    ],
)
def test_config_refuses(family: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        CONFIGS[family](**SIZES, **options)


def test_model_refuses_a_config_changed_after_it_was_made() -> None:
    config = CONFIGS["mistral"](**SIZES)
    config.sliding_window = 8
    with pytest.raises(SpecError, match="sliding_window=8"):
        build(config)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (
            {"position_ids": torch.tensor([[*range(6), *range(6)]])},
            "packed sequences",
        ),
        (
            {"attention_mask": torch.tensor([[1] * 5 + [0] + [1] * 6] * 2)},
            "zeros between ones",
        ),
        ({"attention_mask": torch.ones(2, 1, 12, 12, dtype=torch.bool)}, "torch.bool of shape"),
        ({"attention_mask": torch.zeros(2, 1, 12, 12)}, "torch.float32 of shape 2x1x12x12"),
        ({"attention_mask": torch.ones(2, 5)}, "attention_mask=2x5.*for all 12 keys"),
        ({"output_attentions": True}, "output_attentions=True"),
        (
            {"cu_seq_lens_q": torch.tensor([0, 6, 12]), "cu_seq_lens_k": torch.tensor([0, 6, 12])},
            "cu_seq_lens_q=given",
        ),
    ],
)
def test_pass_refuses(inputs: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        tra_model("llama")(tokens(), use_cache=False, **inputs)


def test_compiled_pass_refuses_packed_sequences() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(tra_model("llama"), backend="eager", fullgraph=True)
    packed = torch.tensor([[*range(6), *range(6)]])
    with pytest.raises(RuntimeError, match="packed sequences"):
        compiled(tokens(), position_ids=packed, use_cache=False)
    torch._dynamo.reset()


def test_stock_model_that_asks_for_tra_is_refused() -> None:
    from transformers import AutoModelForCausalLM

    config = stock_model("llama").config
    model = AutoModelForCausalLM.from_config(config, attn_implementation="tra")
    with pytest.raises(SpecError, match=r"LlamaAttention has no TRA gate.*outlast\.hf\.to_tra"):
        model(tokens())


def test_without_transformers_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['transformers'] = None; import outlast.hf"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "outlast.hf needs transformers: pip install -e '.[hf]' in a clone, or" in run.stderr
