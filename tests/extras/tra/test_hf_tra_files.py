"""TRA models on disk: what is saved, what loads it, and what must not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from tra_families import FAMILIES, tokens, tra_model
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from outlast.errors import SpecError


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_model_loads_through_the_auto_classes_with_the_same_logits(
    family: str, tmp_path: Path
) -> None:
    model, x = tra_model(family, tra_threshold=0.25, tra_norm=False, tra_gate_bias=2.0), tokens()
    model.save_pretrained(tmp_path)
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert type(loaded) is type(model)
    assert torch.equal(loaded(x).logits, model(x).logits)
    config = AutoConfig.from_pretrained(tmp_path)
    options = config.tra_threshold, config.tra_norm, config.tra_gate_bias
    assert (config.model_type, *options) == (f"tra_{family}", 0.25, False, 2.0)
    body = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(body(x).last_hidden_state, model.model(x).last_hidden_state)
    assert type(body) is type(model.model)


def test_gates_are_in_the_file(tmp_path: Path) -> None:
    from safetensors import safe_open

    tra_model("llama").save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        gates = {name for name in file.keys() if "tra_gate" in name}  # noqa: SIM118
    assert gates == {
        f"model.layers.{layer}.self_attn.tra_gate.{kind}"
        for layer in (0, 1)
        for kind in ("weight", "bias")
    }


@pytest.mark.parametrize("wish", ["sdpa", "eager", "flash_attention_2", "flex_attention"])
def test_other_attention_is_refused(wish: str, tmp_path: Path) -> None:
    model = tra_model("llama")
    model.save_pretrained(tmp_path)
    with pytest.raises(SpecError, match=f"attn_implementation={wish}: expected tra"):
        AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=wish)
    with pytest.raises(SpecError, match=f"attn_implementation={wish}: expected tra"):
        model.set_attn_implementation(wish)
    assert model.config._attn_implementation == "tra"


def test_process_without_outlast_refuses_the_file(tmp_path: Path) -> None:
    tra_model("llama").save_pretrained(tmp_path)
    code = (
        f"from transformers import AutoModelForCausalLM as A; A.from_pretrained({str(tmp_path)!r})"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert run.returncode != 0
    assert "tra_llama" in run.stderr


def test_half_precision_is_kept(tmp_path: Path) -> None:
    tra_model("llama").bfloat16().save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert {p.dtype for p in loaded.parameters()} == {torch.bfloat16}
    assert loaded(tokens()).logits.isfinite().all()
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "tra_llama"


def test_trainer_trains_saves_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": row, "labels": row} for row in tokens(rows=8)]

    def trained(steps: int, resume: bool) -> Trainer:
        arguments = TrainingArguments(
            str(tmp_path),
            max_steps=steps,
            save_steps=2,
            per_device_train_batch_size=2,
            gradient_checkpointing=True,
            lr_scheduler_type="constant",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(tra_model("llama"), arguments, train_dataset=rows)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    trained(2, resume=False)
    resumed = trained(4, resume=True).model
    before = tra_model("llama").state_dict()
    moved = [
        name
        for name, weight in resumed.state_dict().items()
        if "tra_gate" in name and not torch.equal(weight, before[name])
    ]
    assert len(moved) == 4
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-4")
    for name, weight in resumed.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name
