"""The how-to pages about models in transformers, block by block, from top to bottom."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from outlast.cli import main

PAGES = Path(__file__).parents[3] / "docs" / "how-to"


@pytest.mark.parametrize(("page", "blocks"), [("export.md", 7), ("evaluate-my-checkpoint.md", 4)])
def test_every_block_of_the_page_runs(
    page: str,
    blocks: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    text = (PAGES / page).read_text(encoding="utf-8")
    fenced = re.findall(r"^```(\S*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(fenced) == blocks
    names: dict[str, Any] = {"__name__": page}
    for number, (language, block) in enumerate(fenced):
        if language == "bash":
            for line in block.splitlines():
                name, *words = shlex.split(line)
                assert name == "outlast"
                assert main(words) == 0, f"{line}\n{capsys.readouterr().err}"
        elif "lm_eval" not in block or find_spec("lm_eval") is not None:
            assert language == "python"
            exec(compile(block, f"{page}, block {number}", "exec"), names)
