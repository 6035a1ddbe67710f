"""Every block of docs/how-to/tra-in-llama.md runs, in order, as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from outlast.bench.registry import find_benchmark
from outlast.hf.tra import TraLlamaConfig

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "tra-in-llama.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.S)


def test_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    assert len(blocks("python")) == 4
    for block in blocks("python"):
        exec(compile(block, str(PAGE), "exec"), names)


def test_commands_name_a_benchmark() -> None:
    commands = [line for block in blocks("bash") for line in block.splitlines()]
    assert commands
    for command in commands:
        program, verb, name = command.split()
        assert (program, verb) == ("outlast", "bench")
        find_benchmark(name)


def test_table_has_the_fields_and_defaults_of_the_config() -> None:
    rows = re.findall(r"^\| `(tra_\w+)` \| (\w+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    config = TraLlamaConfig()
    fields = {name for name in config.to_dict() if name.startswith("tra_")}
    assert {name for name, _ in rows} == fields
    for name, default in rows:
        assert str(float(getattr(config, name))) == str(float({"true": 1}.get(default, default)))
