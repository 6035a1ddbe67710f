"""A model that was saved while its attention was held back says so when it is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")

from outlast_models import TASK, model_of, task
from transformers import AutoModelForCausalLM

import outlast
import outlast.hf
from outlast.errors import SpecError
from outlast.hf import OutlastForCausalLM
from outlast.workflow.export import write_model

SAVED = "saved in phase 1, after 1 steps"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model saved after one step of phase 1."""
    home = tmp_path_factory.mktemp("model")
    write_model(home, model_of(), task())
    model = OutlastForCausalLM.from_pretrained(home)
    outlast.delay(model, switch=9).step(1.0)
    model.save_pretrained(home)
    return home


def measure(model: object) -> None:
    outlast.evaluate(model, TASK, (1, 2), sequences=2)


def test_evaluation_warns_once_of_a_model_saved_in_phase_1(folder, caplog):
    measure(AutoModelForCausalLM.from_pretrained(folder))
    (warning,) = [text for text in caplog.messages if SAVED in text]
    assert warning.endswith("it is measured as it is, with attention on")


def test_evaluation_does_not_warn_of_a_model_that_is_held_back_now_or_has_attention_on(
    folder, caplog
):
    model = AutoModelForCausalLM.from_pretrained(folder)
    saved = model.config.delayed_attention
    delayed = outlast.delay(model, switch=2)
    delayed.load_state_dict(saved)
    caplog.clear()
    measure(model)
    delayed.step(1.0)
    measure(model)
    delayed.remove()
    measure(model)
    assert SAVED not in caplog.text


def test_config_that_two_models_share_is_left_alone(folder, caplog):
    first = AutoModelForCausalLM.from_pretrained(folder)
    del first.config.delayed_attention
    config = first.config
    second = OutlastForCausalLM(config)
    delayed = outlast.delay(first, switch=9)
    assert first.config.delayed_attention["state"]["switched"] is None
    assert not hasattr(config, "delayed_attention")
    measure(second)
    delayed.remove()
    assert "delayed_attention" not in second.config.to_json_string()
    assert SAVED not in caplog.text


def test_harness_warns_of_a_model_saved_in_phase_1(folder, caplog):
    pytest.importorskip("lm_eval")
    with pytest.raises(SpecError, match="tasks"):
        outlast.hf.lm_eval(folder, [])
    assert len([text for text in caplog.messages if SAVED in text]) == 1
