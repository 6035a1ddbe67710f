"""A foreign model in chunks: equal to whole passes, or refused before anything is measured."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from outlast_models import TASK, model_of, task
from transformers import (
    BambaConfig,
    JambaConfig,
    LlamaConfig,
    MiniMaxConfig,
    PreTrainedConfig,
    PreTrainedModel,
    RecurrentGemmaConfig,
)
from transformers.models.auto import AutoModelForCausalLM

import outlast
from outlast.errors import OutlastError, SpecError
from outlast.hf import OutlastForCausalLM, chunked

SIZES: dict[str, Any] = {
    "vocab_size": 12, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 32, "pad_token_id": 0,
}  # fmt: skip
LLAMA = LlamaConfig(**SIZES)
MINIMAX = MiniMaxConfig(
    **SIZES, layer_types=["linear_attention", "full_attention"], num_local_experts=2,
    num_experts_per_tok=1, block_size=16, head_dim=8,
)  # fmt: skip


def built(config: PreTrainedConfig) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_model_in_chunks_measures_as_the_whole(chunk: int) -> None:
    jamba = JambaConfig(
        **SIZES, attn_layer_period=2, attn_layer_offset=1, num_experts=1, num_experts_per_tok=1,
        mamba_d_state=4, mamba_dt_rank=4, use_mamba_kernels=False,
    )  # fmt: skip
    for model in (built(LLAMA), built(jamba), OutlastForCausalLM.from_model(model_of())):
        model.train()
        rows, wanted = (
            outlast.evaluate(m, TASK, (1, 3), 16) for m in (chunked(model, chunk), model)
        )
        assert [r["exact"] for r in rows] == [r["exact"] for r in wanted], type(model).__name__
        assert model.training


def test_sequence_is_read_in_chunks_with_the_cache() -> None:
    model, lengths = built(LLAMA).eval(), []
    model.register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].shape[1]))
    pieces = chunked(model, 20)
    lengths.clear()
    tokens = torch.randint(12, (2, 50))
    with torch.no_grad():
        logits = pieces(tokens)
        assert lengths == [20, 20, 10]
        torch.testing.assert_close(logits, model(tokens).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            BambaConfig(
                **SIZES, attn_layer_indices=[1], mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8,
                mamba_chunk_size=16,
            ),
            r"Bamba\w+ in chunks of 16 differs from a whole pass by 0\.\d+, with logits up to",
        ),
        (MINIMAX, r"MiniMax\w+ in chunks of 16 differs from a whole pass by 0\.\d+"),
        (
            RecurrentGemmaConfig(
                **SIZES, lru_width=32, attention_window_size=16,
                block_types=["recurrent", "attention"], head_dim=8,
            ),
            r"RecurrentGemma\w+ returned no past_key_values",
        ),
    ],
    ids=["bamba", "minimax", "recurrent_gemma"],
)  # fmt: skip
def test_family_whose_chunks_differ_is_refused(config: PreTrainedConfig, message: str) -> None:
    with pytest.raises(OutlastError, match=message):
        chunked(built(config), 16)


def test_difference_may_be_accepted() -> None:
    model = built(MINIMAX)
    assert chunked(model, 16, tolerance=2.0).chunk == 16
    with pytest.raises(OutlastError, match="differs from a whole pass"):
        chunked(built(LLAMA), 3, tolerance=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chunk": 0}, r"chunk=0: expected a whole number"),
        ({"tolerance": -1}, r"tolerance=-1 \(int\): expected a number >= 0"),
        ({"tolerance": float("nan")}, r"tolerance=nan"),
        ({"model": task()}, r"model=.*: expected a model of transformers"),
    ],
)
def test_bad_argument_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        chunked(**{"model": built(LLAMA), "chunk": 4, **arguments})
