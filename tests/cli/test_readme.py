"""Everything in the README that can be typed is typed here. Nothing is skipped in silence."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from outlast.cli import main

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
#: lines that a test does not run: they set up a machine, or are run by the people who run this
EXEMPT = {"make demo", "make test"}


def blocks(language: str) -> list[str]:
    text = README.read_text(encoding="utf-8")
    found = re.findall(r"^```(\S*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert {name for name, _ in found} <= {"bash", "python", "text"}, "a block of another kind"
    return [block for name, block in found if name == language]


def commands() -> Iterator[str]:
    for block in blocks("bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield shlex.join(words)


def test_there_is_something_to_type() -> None:
    assert len(blocks("python")) >= 2
    assert sum(c.startswith("outlast ") for c in commands()) >= 5


def test_every_command_runs_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in commands():
        if command in EXEMPT:
            continue
        name, *words = shlex.split(command)
        assert name == "outlast", f"not run by this test: {command}"
        assert main(words) == 0, f"{command}\n{capsys.readouterr().err}"


def test_exempt_lines_are_targets_of_the_makefile() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in EXEMPT:
        assert line.split()[1] in targets


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_every_python_block_runs(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = compile(blocks("python")[number], f"README.md, block {number}", "exec")
    exec(code, {"__name__": "readme"})


def test_attention_after_a_cache_is_what_it_is_said_to_be() -> None:
    (block,) = [b for b in blocks("python") if "threshold_relative_attention" in b]
    seen: dict[str, Any] = {"__name__": "readme"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        exec(compile(block, "README.md", "exec"), seen)
    out, new, scores = seen["out"], seen["new"], seen["q"][:, :, -1:] @ seen["k"].mT
    assert torch.allclose(new.out, out[:, :, -1:], atol=1e-5)
    assert torch.equal(new.kept, (scores > 0).sum(-1).int())


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", README.read_text(encoding="utf-8"))
    local = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert local
    assert [link for link in local if not (ROOT / link).exists()] == []
