"""Everything that can be typed in docs/how-to/my-text.md is typed here, on a small text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_readme import ROOT, blocks, commands

from outlast.cli import main
from small_text import write_text

PAGE = ROOT / "docs" / "how-to" / "my-text.md"


def test_page_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import shlex

    monkeypatch.chdir(tmp_path)
    write_text(Path("speeches"), 16, 4000)
    lines = list(commands(PAGE))
    assert len(lines) >= 4
    for line in lines:
        words = shlex.split(line.replace("--steps 50", "--steps 10"))  # for time
        assert words[0] == "outlast"
        assert main(words[1:]) == 0, line
    shown = capsys.readouterr().out
    assert "bits per byte (lower is better)" in shown
    names: dict[str, Any] = {}
    for block in blocks(PAGE, "python"):
        exec(compile(block, str(PAGE), "exec"), names)
    assert "torch.Size([8, 64])" in capsys.readouterr().out
