"""A tiny hybrid, its data, and trainings in processes that have imported everything already.

A training may be killed at any step. Forking after the import makes a process cheap.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BambaConfig,
    OlmoHybridConfig,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.utils import logging

from outlast.hf import DelayedAttention
from outlast.methods import triggers

logging.set_verbosity_error()
logging.disable_progress_bar()
VOCABULARY, LENGTH, SEQUENCES = 32, 8, 40


SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
MAMBA = {"n_heads": 2, "d_head": 16, "d_state": 4, "n_groups": 1, "chunk_size": 8, "expand": 2}
LINEAR = {"num_key_heads": 2, "num_value_heads": 2, "key_head_dim": 8, "value_head_dim": 8}


def build(dropout: float = 0.0, family: str = "bamba") -> nn.Module:
    """One recurrent layer and one of attention. Dropout is in attention and after the layers."""
    torch.manual_seed(0)
    if family == "bamba":
        mamba = {f"mamba_{name}": value for name, value in MAMBA.items()}
        config = BambaConfig(attn_layer_indices=[1], attention_dropout=dropout, **SMALL, **mamba)
        layers = "final_layernorm"
    else:
        linear = {f"linear_{name}": value for name, value in LINEAR.items()}
        kinds = ["linear_attention", "full_attention"]
        config = OlmoHybridConfig(layer_types=kinds, attention_dropout=dropout, **SMALL, **linear)
        layers = "norm"
    model = AutoModelForCausalLM.from_config(config)
    getattr(model.model, layers).register_forward_hook(
        lambda norm, _, out: nn.functional.dropout(out, dropout, norm.training)
    )
    return model


def data() -> list[dict[str, torch.Tensor]]:
    """Sequences of different lengths of labels, so that batches differ in their tokens."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, VOCABULARY, (SEQUENCES, LENGTH), generator=generator)
    labels = tokens.clone()
    for row in range(SEQUENCES):
        labels[row, : row % 5] = -100
    return [{"input_ids": t, "labels": y} for t, y in zip(tokens, labels, strict=True)]


def arguments(folder: Path | str, **others: Any) -> TrainingArguments:
    """Checkpoints every 3 steps and logs every 2, so that neither is a multiple of the other."""
    settings = {
        "max_steps": 10,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "weight_decay": 0.1,
        "save_steps": 3,
        "logging_steps": 2,
        "seed": 1,
    }
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True}
    return TrainingArguments(output_dir=str(folder), **{**settings, **quiet, **others})


class Die(TrainerCallback):
    """Kill this process at the end of a step, before the checkpoint of that step."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def train(
    folder: Path | str,
    callback: DelayedAttention | None,
    model: nn.Module | None = None,
    callbacks: tuple[TrainerCallback, ...] = (),
    resume: bool | str | None = None,
    evaluate: bool | dict[str, Any] = False,
    trainer_class: type[Trainer] = Trainer,
    **others: Any,
) -> Trainer:
    trainer = trainer_class(
        model=build() if model is None else model,
        args=arguments(folder, **others),
        train_dataset=data(),
        eval_dataset=data()[:8] if evaluate is True else evaluate or None,
        callbacks=[*([] if callback is None else [callback]), *callbacks],
    )
    trainer.remove_callback(PrinterCallback)
    smoothing, triggers.SMOOTHING = triggers.SMOOTHING, 1.0  # a trigger sees the loss of each step
    try:
        trainer.train(resume_from_checkpoint=resume)
    finally:
        triggers.SMOOTHING = smoothing
    return trainer


def killed_at(
    folder: str, step: int | None, case: dict[str, Any], family: str, resume: bool
) -> None:
    """A training with dropout, whose weights and switch are stored if it lives to its end."""
    others = case.get("trainer", {})
    callback = DelayedAttention(**case["callback"])
    trainer = train(folder, callback, build(0.2, family), (Die(step),), resume or None, **others)
    result = {"switched": callback.switched, "weights": trainer.model.state_dict()}
    torch.save(result, Path(folder) / "result.pt")
