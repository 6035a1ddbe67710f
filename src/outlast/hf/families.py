"""The hybrid families of `transformers`, and what delayed attention does in each.

``python -m outlast.hf.families --out docs/families.md`` builds a tiny model of every family, runs
the checks of `outlast.hf.family_checks` and writes the table. Nothing is downloaded. Families are
listed by hand: a test cannot guess the settings of a tiny model.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AutoModelForCausalLM

from outlast.errors import OutlastError
from outlast.hf.family_checks import CHECKS, VOCABULARY, Result, run_checks
from outlast.machine import least_level
from outlast.runs.folder import write_text

INTRODUCTION = """# Delayed attention in the hybrid families of transformers

This file is written by a command:

<!-- not run: it takes minutes; a test checks the families with the extra `hf` -->
```bash
python -m outlast.hf.families --out docs/families.md
```

It builds a tiny model of each family (4 layers, width 32, random weights) and checks it on the CPU:

- **found**: `outlast.delay(model)` finds all attention modules, and a recurrence beside them. The
  number of attention modules is in brackets.
- **delayed exactly**: in phase 1 AdamW with weight decay does not move attention's weights and has
  no state for them. The logits do not depend on them, bit for bit.
- **ramp scales**: with `mode="ramp"` attention's effect on the logits follows the gate. In
  brackets: the share of the full effect at gate 0.5 and at gate 0.1.
- **resumes**: a delay that is saved in phase 1 and restored into a new handle trains the same
  weights as an uninterrupted one, bit for bit.
- **saves clean**: a model saved in phase 1 says so in its `config.json` and loads into phase 1.
  After the switch nothing is left in what is saved.
- **generates**: `generate` gives the same tokens with and without a cache, before and after the
  switch.
- **chunks = whole**: with attention on, logits of chunks of 1, 7 and 16 tokens with a cache differ
  by at most 1e-4 from those of one pass. This is a property of the model, not of Outlast.

Not in the table: glm5_next and inkling. There the hybrid exists only inside a multimodal model.
"""

COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 512,
}
ALTERNATING = {"layer_types": ["linear_attention", "full_attention"] * 2}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
MAMBA2 = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
}
DELTA_NET = {
    **ALTERNATING,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "head_dim": 8,
}
LATENT_ATTENTION = {
    **ALTERNATING,
    **EXPERTS,
    "mlp_layer_types": ["dense"] * 4,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "linear_num_heads": 4,
    "linear_head_dim": 8,
    "num_key_value_heads": 4,
}


class Family(NamedTuple):
    """A family of `transformers`: its config class, and what makes a tiny model of it."""

    name: str
    config_class: str
    settings: dict[str, Any]

    @property
    def is_installed(self) -> bool:
        """Whether the installed `transformers` has it."""
        return hasattr(transformers, self.config_class)

    def build(self, seed: int = 0) -> Any:
        """A tiny model with fresh weights; torch's own random state is left alone."""
        settings = copy.deepcopy({**COMMON, **self.settings})  # a config may change its lists
        config = getattr(transformers, self.config_class)(**settings)
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            return AutoModelForCausalLM.from_config(config)


FAMILIES = (
    Family(
        "jamba",
        "JambaConfig",
        {
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "mamba_d_state": 4,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
    Family("bamba", "BambaConfig", {"attn_layer_indices": [1, 3], "mamba_expand": 2, **MAMBA2}),
    Family("falcon_h1", "FalconH1Config", {"mamba_d_ssm": 64, "head_dim": 8, **MAMBA2}),
    Family(
        "granitemoehybrid",
        "GraniteMoeHybridConfig",
        {
            "layer_types": ["mamba", "attention"] * 2,
            "mamba_expand": 2,
            "num_local_experts": 0,
            "shared_intermediate_size": 64,
            **MAMBA2,
        },
    ),
    Family(
        "qwen3_next",
        "Qwen3NextConfig",
        {"shared_expert_intermediate_size": 16, "decoder_sparse_step": 1, **EXPERTS, **DELTA_NET},
    ),
    Family("qwen3_5", "Qwen3_5TextConfig", DELTA_NET),
    Family(
        "qwen3_5_moe",
        "Qwen3_5MoeTextConfig",
        {"shared_expert_intermediate_size": 16, **EXPERTS, **DELTA_NET},
    ),
    Family(
        "qwen4_exp",
        "Qwen4ExpTextConfig",
        {
            "hc_count": 2,
            "hc_lowrank": 8,
            "ple_layer_ids": [],
            "ple_embed_dim": 8,
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 8,
            "indexer_budget": 16,
            "indexer_compress_ratio": 4,
            "ngram_vocab_size_base": 64,
            "shared_expert_intermediate_size": 16,
            **EXPERTS,
            **DELTA_NET,
        },
    ),
    Family("olmo_hybrid", "OlmoHybridConfig", {**DELTA_NET, "linear_num_key_heads": 4}),
    Family(
        "recurrent_gemma",
        "RecurrentGemmaConfig",
        {
            "lru_width": 32,
            "attention_window_size": 16,
            "block_types": ["recurrent", "attention"],
            "head_dim": 8,
        },
    ),
    Family(
        "zamba",
        "ZambaConfig",
        {
            "layers_block_type": ["mamba", "hybrid"] * 2,
            "attention_hidden_size": 64,
            "n_mamba_heads": 2,
            "mamba_d_state": 4,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
    Family(
        "zamba2",
        "Zamba2Config",
        {
            "layers_block_type": ["mamba", "hybrid"] * 2,
            "attention_hidden_size": 64,
            "mamba_d_state": 8,
            "mamba_ngroups": 1,
            "n_mamba_heads": 4,
            "mamba_headdim": 16,
            "chunk_size": 16,
            "num_mem_blocks": 1,
            "use_mem_rope": True,
            "adapter_rank": 4,
        },
    ),
    Family(
        "nemotron_h",
        "NemotronHConfig",
        {
            "layers_block_type": ["mamba", "attention", "moe", "attention"],
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "ssm_state_size": 8,
            "n_groups": 1,
            "chunk_size": 16,
            "head_dim": 8,
            "n_routed_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 16,
            "moe_shared_expert_intermediate_size": 16,
            "n_group": 1,
            "topk_group": 1,
            "use_mamba_kernels": False,
            "moe_latent_size": None,
        },
    ),
    Family("lfm2", "Lfm2Config", {"layer_types": ["conv", "full_attention"] * 2}),
    Family(
        "lfm2_moe",
        "Lfm2MoeConfig",
        {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 2, **EXPERTS},
    ),
    Family(
        "minimax",
        "MiniMaxConfig",
        {
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "block_size": 16,
            "head_dim": 8,
            **ALTERNATING,
        },
    ),
    Family("kimi_linear", "KimiLinearConfig", {"q_lora_rank": None, **LATENT_ATTENTION}),
    Family("bailing_hybrid", "BailingHybridConfig", {"q_lora_rank": 8, **LATENT_ATTENTION}),
    Family(
        "zaya",
        "ZayaConfig",
        {
            "head_dim": 8,
            "num_experts": 2,
            "moe_intermediate_size": 16,
            "router_hidden_size": 16,
        },
    ),
)


def family(name: str) -> Family:
    """The family of that name."""
    for one in FAMILIES:
        if one.name == name:
            return one
    raise OutlastError(f"family={name}: expected one of {', '.join(f.name for f in FAMILIES)}")


def check(families: Sequence[Family]) -> dict[str, dict[str, Result] | None]:
    """The results by family; None for one that the installed `transformers` does not have."""
    return {f.name: run_checks(f.build) if f.is_installed else None for f in families}


def document(results: dict[str, dict[str, Result] | None], date: str) -> str:
    """The table with its reasons, as Markdown."""
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    reasons: list[str] = []
    rows = ["| family | " + " | ".join(CHECKS) + " |", "|---" * (len(CHECKS) + 1) + "|"]
    for name, checks in results.items():
        cells = ["not installed"] * len(CHECKS)
        if checks is not None:
            cells = [_cell(name, column, result, reasons) for column, result in checks.items()]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join([INTRODUCTION, f"{versions}, {date}.\n", *rows, "", *notes]) + "\n"


def _cell(name: str, column: str, result: Result, reasons: list[str]) -> str:
    if result.passed:
        return f"yes ({result.detail})" if result.detail else "yes"
    reasons.append(f"{name}, {column}: {result.detail}")
    return f"**no** [{len(reasons)}]"


def main(argv: Sequence[str] | None = None) -> None:
    """Check families and write the table."""
    parser = argparse.ArgumentParser(prog="python -m outlast.hf.families", description=__doc__)
    parser.add_argument("families", nargs="*", help="names of families; all by default")
    parser.add_argument("--out", type=Path, help="a Markdown file; by default standard output")
    arguments = parser.parse_args(argv)
    chosen = [family(name) for name in arguments.families] or FAMILIES
    transformers.utils.logging.disable_progress_bar()
    # a check loads a model of phase 1, which is worth a warning elsewhere
    with least_level("outlast", logging.ERROR), least_level("transformers", logging.ERROR):
        results = check(chosen)
    text = document(results, datetime.datetime.now(datetime.UTC).date().isoformat())
    if arguments.out is None:
        sys.stdout.write(text)
    else:
        write_text(arguments.out, text)


if __name__ == "__main__":
    main()
