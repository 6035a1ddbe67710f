"""Commands in this process, and a folder of their own to run in."""

from __future__ import annotations

from pathlib import Path

import pytest
from shell import Result, Shell

from outlast.cli import main


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Shell:
    """Runs a command: ``run("eval", "runs/dat")``."""

    def command(*words: object) -> Result:
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:  # help, or words that cannot be parsed
            code = end.code if isinstance(end.code, int) else 0
        return Result(code, *capsys.readouterr())

    return command


@pytest.fixture
def shown(run: Shell) -> Shell:
    """Runs a command that must succeed."""

    def command(*words: object) -> Result:
        result = run(*words)
        assert result.code == 0, result.err
        return result

    return command
