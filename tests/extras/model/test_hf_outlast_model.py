"""An Outlast model in transformers is the Outlast model: weights, logits, loss, gradients."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

pytest.importorskip("transformers")

from outlast_models import HYBRID, LINES, TASK, model_of, task, tokens_of
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

import outlast
from outlast.errors import OutlastError, SpecError
from outlast.hf import OutlastConfig, OutlastForCausalLM

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.mark.parametrize("line", LINES)
@torch.no_grad()
def test_saved_and_loaded_model_is_the_model_bit_for_bit(line: str, tmp_path: Path) -> None:
    model, tokens = model_of(line), tokens_of()
    OutlastForCausalLM.from_model(model, task()).save_pretrained(tmp_path)
    before = torch.random.get_rng_state()
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not any(info.values())
    assert type(loaded) is OutlastForCausalLM
    weights = dict(loaded.model.named_parameters())
    assert all(torch.equal(weights[n], w) for n, w in model.named_parameters())
    assert torch.equal(loaded(tokens).logits, model(tokens)[0])
    assert (tmp_path / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("line", "types"),
    [
        ("3 x (lstm > attention > mlp) @ 16", ["hybrid"] * 3),
        ("2 x (lstm > mlp) > attention > mlp @ 16", ["linear_attention"] * 2 + ["full_attention"]),
        ("gru | attention > mlp @ 16", ["hybrid"]),
        ("mlp > 2 x (attention > mlp) > mlp @ 16", ["full_attention"] * 2),
        ("1 x (2 x (lstm) > attention) @ 16", ["linear_attention"] * 2 + ["full_attention"]),
        ("mlp @ 16", None),
    ],
)  # fmt: skip
def test_layer_types_follow_from_the_line(line: str, types: list[str] | None) -> None:
    config = OutlastConfig(line=line, vocab_size=7)
    assert config.layer_types == types
    assert config.num_hidden_layers == len(types or ["a block"])
    assert config.hidden_size == 16


def test_config_holds_line_task_and_vocabulary(tmp_path: Path) -> None:
    OutlastConfig.from_model(model_of(), task()).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["model_type"] == "outlast"
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is OutlastConfig
    assert outlast.task(loaded.task).vocabulary == loaded.vocab_size == 12
    assert loaded.classes == 2
    same = OutlastConfig(**saved).to_dict() | {"_name_or_path": str(tmp_path)}
    assert loaded.to_dict() == same


def test_model_from_a_config_has_weights_of_its_own() -> None:
    config = OutlastConfig(line=HYBRID, vocab_size=12)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        one, other = (AutoModelForCausalLM.from_config(config) for _ in range(2))
        torch.manual_seed(3)
        wanted = outlast.models.build_model(HYBRID, 12, 1)
    weights = dict(wanted.named_parameters())
    assert all(torch.equal(w, weights[n]) for n, w in one.model.named_parameters())
    tokens = tokens_of()
    assert not torch.equal(one(tokens).logits, other(tokens).logits)


def test_closed_gates_and_the_span_are_loaded_again_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, tokens = model_of(), tokens_of()
    wrapped = OutlastForCausalLM.from_model(model, task())
    for sublayer in model.sublayers():
        sublayer.set_gate(0.0 if sublayer.pathway == "attention" else 1.0)
    model.span = 50
    wrapped.save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING, "outlast"):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert "gates that are not open: [1.0, 0.0, 1.0" in caplog.text
    assert loaded.model.span == 50
    assert [float(s.gate) for s in loaded.model.sublayers()] == [1.0, 0.0, 1.0] * 2
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, model(tokens)[0])


def test_buffers_that_are_not_saved_are_as_built(tmp_path: Path) -> None:
    line = "attention(heads=2, weights=sink) > mlp @ 16"  # it may hold a buffer of zeros
    model = model_of(line)
    OutlastForCausalLM.from_model(model).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    buffers = dict(loaded.model.named_buffers())
    assert buffers
    assert all(torch.equal(buffers[n], b) for n, b in model.named_buffers())


def test_loss_and_gradients_are_those_of_shifted_tokens() -> None:
    model, tokens = model_of(), tokens_of()
    labels = tokens.clone()
    labels[0, :4] = -100
    wrapped = OutlastForCausalLM.from_model(model).train()
    loss = wrapped(tokens, labels=labels).loss
    wanted = F.cross_entropy(model(tokens)[0][:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(loss, wanted)
    weights = list(model.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(loss, weights), torch.autograd.grad(wanted, weights), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_targets_of_a_task_stand_at_their_own_token() -> None:
    model, drawn = model_of(), task().sample(4, 8, torch.Generator().manual_seed(0))
    output = OutlastForCausalLM.from_model(model)(
        drawn.inputs, labels=drawn.targets, shift_labels=drawn.targets
    )
    wanted = F.cross_entropy(model(drawn.inputs)[0].flatten(0, 1), drawn.targets.flatten())
    torch.testing.assert_close(output.loss, wanted)


def test_dropout_is_drawn_in_training_only() -> None:
    wrapped = OutlastForCausalLM.from_model(model_of("lstm > mlp @ 16, dropout=0.5"))
    tokens = tokens_of()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, second = wrapped.train()(tokens).logits, wrapped(tokens).logits
        torch.manual_seed(0)
        assert torch.equal(wrapped(tokens).logits, first)
    assert not torch.equal(first, second)
    assert torch.equal(wrapped.eval()(tokens).logits, wrapped(tokens).logits)


def test_trainer_trains_it_and_saves_what_it_trained(tmp_path: Path) -> None:
    rows = [{"input_ids": row, "labels": row} for row in tokens_of(16)]
    wrapped = OutlastForCausalLM.from_model(model_of("lstm > mlp @ 16"))
    arguments = TrainingArguments(
        str(tmp_path), max_steps=8, per_device_train_batch_size=4, learning_rate=0.05,
        save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(wrapped, arguments, train_dataset=rows, eval_dataset=rows)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before - 0.1
    trainer.save_model()
    loaded, tokens = AutoModelForCausalLM.from_pretrained(tmp_path), tokens_of()
    assert torch.equal(loaded(tokens).logits, wrapped.eval()(tokens).logits)


def test_checkpoint_without_a_weight_is_an_error(tmp_path: Path) -> None:
    OutlastForCausalLM.from_model(model_of()).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.head.bias"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(OutlastError, match=r"no weights head.bias"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"line": "lsmt @ 8"}, r"did you mean 'lstm'"),
        ({"line": "lstm @ 8", "hidden_size": 9}, r"hidden_size=9: expected 8, the width"),
        ({"line": "lstm @ 8", "layer_types": ["hybrid"]}, r"layer_types=.*linear_attention"),
        ({"line": "lstm @ 8", "gates": [1.0, 0.0]}, r"gates=.*a gate for each of 1 sublayers"),
    ],
)
def test_config_that_contradicts_its_line_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        OutlastForCausalLM(OutlastConfig(vocab_size=4, **values))


@pytest.mark.parametrize(
    "argument", ["inputs_embeds", "position_ids", "output_hidden_states", "output_attentions"]
)
def test_argument_that_cannot_be_honoured_is_refused(argument: str) -> None:
    with pytest.raises(SpecError, match=f"{argument}=.*: expected none"):
        OutlastForCausalLM.from_model(model_of())(tokens_of(), **{argument: True})


def test_vocabulary_cannot_be_resized() -> None:
    wrapped = OutlastForCausalLM.from_model(model_of())
    with pytest.raises(SpecError, match="new_num_tokens=13: expected 12"):
        wrapped.resize_token_embeddings(13)


def test_model_of_another_kind_is_refused() -> None:
    with pytest.raises(SpecError, match=r"model=Linear.*: expected a model of outlast.model"):
        OutlastForCausalLM.from_model(torch.nn.Linear(2, 2))


def test_evaluate_measures_both_alike() -> None:
    model = model_of()
    wrapped = OutlastForCausalLM.from_model(model)
    rows, wanted = (outlast.evaluate(m, TASK, (1, 3), 32) for m in (wrapped, model))
    for row in (*rows, *wanted):
        row.pop("logits_from", None)
    assert rows == wanted
