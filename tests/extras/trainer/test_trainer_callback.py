"""`outlast.hf.DelayedAttention` in a `transformers.Trainer`: triggers, traps and errors."""

import json
import logging
import shutil
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from trainer_jobs import arguments, build, data, train
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainerCallback

import outlast
from outlast.errors import OutlastError, RunFolderError, SpecError
from outlast.hf import DelayedAttention, hold_back
from outlast.hf.trainer import StepLoss

FAST = {"save_strategy": "no", "max_steps": 4}


class Watch(TrainerCallback):
    """Keep the logged losses and the weights of attention after each step."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.attention: list[torch.Tensor] = []

    def on_log(self, args, state, control, logs=None, **others):
        self.losses += [logs["loss"]] if "loss" in logs else []

    def on_step_end(self, args, state, control, model=None, **others):
        self.attention.append(attention(model))


def attention(model: nn.Module) -> torch.Tensor:
    return torch.cat(
        [p.detach().flatten().clone() for n, p in model.named_parameters() if "self_attn" in n]
    )


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def moved_at(watch: Watch, model: nn.Module) -> int | None:
    """The first step that changed a weight of attention."""
    before = [attention(model), *watch.attention]
    moves = [not torch.equal(*pair) for pair in pairwise(before)]
    return moves.index(True) + 1 if True in moves else None


@pytest.mark.parametrize(
    ("given", "switched"),
    [
        ({"switch": 2}, 2),
        ({"switch": np.int64(2)}, 2),
        ({"switch": 0.5}, 2),
        ({"switch": "below(9)"}, 1),
        ({"switch": "below(1e-9)", "latest": 3}, 3),
        ({"switch": "below(1e-9)", "latest": 0.75}, 3),
        ({"switch": "plateau"}, None),
    ],
)
def test_attention_is_let_in_at_the_step_that_the_switch_says(tmp_path, given, switched):
    callback, watch = DelayedAttention(**given), Watch()
    trainer = train(tmp_path, callback, callbacks=(watch,), **FAST)
    assert callback.switched == switched
    assert moved_at(watch, build()) == (None if switched is None else switched + 1)
    assert "forward" not in vars(trainer.model.model.layers[1].self_attn)


@pytest.mark.parametrize(
    ("given", "switched"),
    [
        ({"switch": "below(9)", "metric": "eval_loss"}, 2),
        ({"switch": "above(0.1)", "metric": "loss"}, 2),
        ({"switch": "above(99)", "metric": "loss", "latest": 3}, 3),
        ({"switch": "below(0.1)", "metric": "loss"}, None),
    ],
)
def test_attention_is_let_in_by_a_metric_of_the_evaluation(tmp_path, given, switched):
    callback = DelayedAttention(**given)
    train(tmp_path, callback, evaluate=True, eval_strategy="steps", eval_steps=2, **FAST)
    assert callback.switched == switched


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("counts_tokens", [True, False])
def test_watched_loss_is_the_one_that_the_trainer_logs(
    tmp_path, monkeypatch, accumulation, counts_tokens
):
    seen, take = [], StepLoss.take
    monkeypatch.setattr(StepLoss, "take", lambda self: seen.append(take(self)) or seen[-1])
    model, watch = build(), Watch()
    model.accepts_loss_kwargs = counts_tokens
    callback = DelayedAttention("below(1e-9)")
    settings = {**FAST, "logging_steps": 1, "gradient_accumulation_steps": accumulation}
    train(tmp_path, callback, model, (watch,), **settings)
    assert len(seen) == 4
    assert seen == pytest.approx(watch.losses, rel=1e-6)


def test_optimiser_made_before_or_by_the_trainer_leaves_attention_alone(tmp_path):
    outcomes = []
    for ready in (False, True):
        model, watch = build(), Watch()
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
        trainer = Trainer(
            model=model,
            args=arguments(tmp_path, **FAST),
            train_dataset=data(),
            callbacks=[DelayedAttention(2), watch],
            optimizers=(optimiser if ready else None, None),
        )
        trainer.train()
        outcomes.append(moved_at(watch, build()))
    assert outcomes == [3, 3]


@pytest.mark.parametrize("mode", ["skip", "freeze", "ramp"])
def test_weight_decay_does_not_move_attention_in_phase_1(tmp_path, mode):
    watch = Watch()
    train(tmp_path, DelayedAttention(4, mode), None, (watch,), **{**FAST, "weight_decay": 0.5})
    assert moved_at(watch, build()) is None


@pytest.mark.parametrize("mode", ["skip", "freeze", "ramp", "detach"])
def test_checkpointed_and_compiled_trainings_equal_the_plain_one(tmp_path, mode):
    settings = {**FAST, "max_steps": 5}
    options = [{}, {"gradient_checkpointing": True}]
    family = "bamba"
    if mode == "ramp":  # it has the most changes of the gate; OLMo-Hybrid is traced faster
        family = "olmo_hybrid"
        options += [{"torch_compile": True, "torch_compile_backend": "eager"}]
    models = [
        train(
            tmp_path,
            DelayedAttention("below(9)", mode, ramp=2),
            build(family=family),
            **settings,
            **option,
        ).model
        for option in options
    ]
    assert all(torch.equal(weights(models[0]), weights(model)) for model in models[1:])


def test_accumulated_batches_train_like_one_large_batch(tmp_path):
    models = [
        train(
            tmp_path,
            DelayedAttention("below(9)"),
            gradient_accumulation_steps=parts,
            per_device_train_batch_size=8 // parts,
            **FAST,
        ).model
        for parts in (1, 2, 4)
    ]
    for model in models[1:]:
        torch.testing.assert_close(weights(models[0]), weights(model), rtol=1e-4, atol=1e-6)


def test_model_saved_in_phase_1_says_so_and_one_saved_later_has_nothing_left(tmp_path):
    trainer = train(tmp_path, DelayedAttention(6, "ramp", ramp=3), max_steps=9)
    notes = {}
    for step in (3, 6, 9):
        config = json.loads((tmp_path / f"checkpoint-{step}/config.json").read_text())
        notes[step] = config.get("delayed_attention")
    assert notes[3]["modules"] == ["model.layers.1.self_attn"]
    assert notes[3]["state"]["switched"] is None
    assert notes[6]["state"]["switched"] == 6  # the ramp has just begun
    assert notes[9] is None
    plain = build().state_dict()
    assert trainer.model.state_dict().keys() == plain.keys()


def test_model_saved_in_phase_1_is_held_back_again(tmp_path):
    tokens = data()[0]["input_ids"][None]
    outputs = {}

    class Look(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **others):
            with torch.no_grad():
                outputs[state.global_step] = model.eval()(tokens).logits
            model.train()

    train(tmp_path, DelayedAttention(6, "ramp", ramp=9), None, (Look(),), max_steps=9)
    for step in (3, 9):
        saved = AutoModelForCausalLM.from_pretrained(tmp_path / f"checkpoint-{step}").eval()
        plain = saved(tokens).logits
        handle = hold_back(saved)
        assert torch.equal(saved(tokens).logits, outputs[step])
        assert not torch.equal(plain, outputs[step])
        handle.remove()
        assert torch.equal(saved(tokens).logits, plain)


def test_hold_back_refuses_a_model_whose_attention_is_on():
    with pytest.raises(SpecError, match="attention was on when it was saved"):
        hold_back(build())


def test_training_that_ends_in_phase_1_warns_and_keeps_the_note(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "outlast"):
        trainer = train(tmp_path, DelayedAttention(99), **FAST)
    assert "ended in phase 1" in caplog.text
    assert trainer.model.config.delayed_attention["state"]["switched"] is None


def test_best_model_of_phase_1_is_reported(tmp_path, caplog):
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}
    steps = {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "max_steps": 4}
    with caplog.at_level(logging.WARNING, "outlast"):
        train(tmp_path, DelayedAttention(4), evaluate=True, **best, **steps)
    assert "it is from phase 1" in caplog.text


def test_checkpoint_made_without_the_callback_is_refused(tmp_path):
    train(tmp_path, None, max_steps=3)
    with pytest.raises(OutlastError, match=r"\(step 3\) was written without DelayedAttention"):
        train(tmp_path, DelayedAttention(6), resume=True, max_steps=6)


def test_half_written_checkpoint_is_named_with_the_last_complete_one(tmp_path):
    train(tmp_path, DelayedAttention(2), max_steps=6)
    state = tmp_path / "checkpoint-6" / "trainer_state.json"
    text = state.read_text()
    for content in (None, text[:100]):
        state.unlink() if content is None else state.write_text(content)
        with pytest.raises(RunFolderError, match="delete this folder; the last complete") as error:
            train(tmp_path, DelayedAttention(2), resume=True, max_steps=6)
        assert str(tmp_path / "checkpoint-6") in str(error.value)
        assert str(tmp_path / "checkpoint-3") in str(error.value)
    shutil.rmtree(tmp_path / "checkpoint-6")
    assert train(tmp_path, DelayedAttention(2), resume=True, max_steps=6).state.global_step == 6


@pytest.mark.parametrize("resume", [None, True])
def test_two_callbacks_are_refused(tmp_path, resume):
    train(tmp_path, DelayedAttention(2), max_steps=3)
    two = DelayedAttention(4), DelayedAttention(5)
    with pytest.raises(OutlastError, match="two DelayedAttention callbacks"):
        train(tmp_path, two[0], None, two[1:], resume, max_steps=6)


def test_restoring_flag_makes_no_difference_and_needs_names(tmp_path):
    flag = {"restore_callback_states_from_checkpoint": True}
    plain = train(tmp_path / "plain", DelayedAttention(6))
    middle = str(tmp_path / "plain/checkpoint-3")
    resumed = train(tmp_path / "flag", DelayedAttention(6), resume=middle, **flag)
    assert torch.equal(weights(plain.model), weights(resumed.model))
    function = DelayedAttention(6, where=lambda name, module: name.endswith("self_attn"))
    with pytest.raises(SpecError, match="leave the flag out"):
        train(tmp_path / "function", function, **flag)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "skp"}, "mode='skp': expected skip | freeze"),
        ({"switch": "belw(1)"}, "no trigger 'belw'"),
        ({"switch": -1}, "switch=-1"),
        ({"switch": 1.5}, "a share of steps"),
        ({"switch": None}, "switch=None"),
        ({"ramp": 0.5}, "ramp=0.5"),
        ({"latest": "soon"}, "latest='soon'"),
        ({"where": "*.atn"}, "no module of the model matches"),
        ({"where": 3}, "where=3"),
        ({"metric": 3}, "metric=3"),
        ({"metric": "eval_loss", "switch": 3}, "because metric= is given"),
        ({"metric": "eval_loss", "switch": "plateau"}, "in evaluations of metric="),
        ({"metric": "eval_loss", "switch": "above"}, r"above\(level\)"),
        ({"metric": "eval_loss"}, "there is no evaluation while training"),
    ],
)
def test_bad_arguments_are_clear_errors_before_the_first_step(tmp_path, given, message):
    model = build()
    with pytest.raises(SpecError, match=message):
        train(tmp_path, DelayedAttention(**given), model, **FAST)
    assert torch.equal(weights(model), weights(build()))


def test_metric_that_the_evaluation_does_not_give_is_a_clear_error(tmp_path):
    callback = DelayedAttention("below(1)", metric="accuracy")
    with pytest.raises(SpecError, match=r"metric=accuracy: .* it gives .*eval_loss"):
        train(tmp_path, callback, evaluate=True, eval_strategy="steps", eval_steps=1, **FAST)


def test_metric_of_one_evaluation_set_of_several_is_found(tmp_path):
    callback = DelayedAttention("below(9)", metric="eval_second_loss")
    sets = {"first": data()[:4], "second": data()[4:8]}
    train(tmp_path, callback, evaluate=sets, eval_strategy="steps", eval_steps=1, **FAST)
    assert callback.switched == 1


def test_model_without_attention_is_a_clear_error(tmp_path):
    with pytest.raises(SpecError, match="Linear: no attention found"):
        DelayedAttention(3).on_init_end(
            SimpleNamespace(restore_callback_states_from_checkpoint=False, output_dir=tmp_path),
            None,
            None,
            model=nn.Linear(2, 2),
        )


def test_loss_outside_the_model_is_refused_by_a_loss_trigger_and_fine_for_a_step(tmp_path):
    smoothed = {**FAST, "label_smoothing_factor": 0.1}
    with pytest.raises(OutlastError, match="returned no loss"):
        train(tmp_path, DelayedAttention("below(9)"), **smoothed)
    callback = DelayedAttention(2)
    train(tmp_path, callback, **smoothed)
    assert callback.switched == 2


def test_data_parallel_is_refused(tmp_path):
    args = SimpleNamespace(n_gpu=2, eval_strategy="no")
    with pytest.raises(OutlastError, match="torchrun"):
        DelayedAttention(3)._check(args, SimpleNamespace())


def test_training_again_from_step_0_begins_in_phase_1(tmp_path):
    callback, watch = DelayedAttention(2), Watch()
    trainer = train(tmp_path, callback, None, (watch,), **FAST)
    before = attention(trainer.model)
    watch.attention.clear()
    trainer.train()
    assert torch.equal(before, watch.attention[1])
    assert not torch.equal(before, watch.attention[2])


def test_pattern_and_default_hold_back_the_same_modules(tmp_path):
    models = [
        train(tmp_path, DelayedAttention(2, where=where), **FAST).model
        for where in (None, "*.self_attn", lambda name, module: name.endswith("self_attn"))
    ]
    assert all(torch.equal(weights(models[0]), weights(model)) for model in models[1:])


def test_callback_equals_delay_in_a_loop_of_ones_own(tmp_path):
    settings = {**FAST, "gradient_accumulation_steps": 1, "lr_scheduler_type": "constant"}
    trainer = train(
        tmp_path, DelayedAttention("below(9)"), train_sampling_strategy="sequential",
        max_grad_norm=0.0, weight_decay=0.0, **settings,
    )  # fmt: skip
    model = build().train()
    delayed = outlast.delay(model, "*.self_attn", switch="below(9)")
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    rows = data()
    for step in range(4):
        batch = rows[4 * step : 4 * step + 4]
        inputs = {name: torch.stack([row[name] for row in batch]) for name in batch[0]}
        loss = model(**inputs).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        delayed.step(loss)
    assert delayed.switched is not None
    torch.testing.assert_close(weights(model), weights(trainer.model), rtol=1e-5, atol=1e-7)


def test_plain_transformer_is_held_back_too(tmp_path):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    start, watch = AutoModelForCausalLM.from_config(config), Watch()
    start.load_state_dict(model.state_dict())
    train(Path(tmp_path), DelayedAttention(2, "freeze"), model, (watch,), **FAST)
    assert moved_at(watch, start) == 3
