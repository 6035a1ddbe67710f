"""The code of docs/how-to/dat-in-trainer.md runs."""

import pytest
from torch import nn

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from how_to_scripts import blocks, delayed_script

PAGE = "dat-in-trainer.md"


def test_trainer_how_to_delays_attention_and_holds_a_saved_model_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(delayed_script(PAGE), PAGE, "exec"), names)
    (callback,) = [
        callback
        for callback in names["trainer"].callback_handler.callbacks
        if type(callback).__module__.startswith("outlast.")
    ]
    assert callback.switched == 3
    exec(compile(blocks(PAGE, "python")[1], PAGE, "exec"), names)
    assert isinstance(names["model"], nn.Module)
    assert "forward" in vars(names["model"].model.layers[1].self_attn)
