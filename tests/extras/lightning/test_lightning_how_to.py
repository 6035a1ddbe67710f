"""The code of docs/how-to/dat-in-lightning.md runs."""

import pytest

pytest.importorskip("lightning.pytorch")
pytest.importorskip("torchdata")

from how_to_scripts import delayed_script

PAGE = "dat-in-lightning.md"


def test_lightning_how_to_delays_attention(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(delayed_script(PAGE), PAGE, "exec"), names)
    (callback,) = [
        callback
        for callback in names["trainer"].callbacks
        if type(callback).__module__.startswith("outlast.")
    ]
    assert callback.switched == 3
