"""The notebook of docs/tutorial.md is executed from top to bottom, with smaller numbers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).parents[3]
NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"  # made of "tutorial.md"
#: what the test changes, for time: shorter rows, fewer seeds and steps
SMALLER = {
    "flipflop(length=16)": "flipflop(length=4)",
    "parity(length=8)": "parity(length=3)",
    "--steps 300": "--steps 50",
    "--steps 500": "--steps 50",
    "steps=500": "steps=50",
    "--seeds 0-2": "--seeds 0",
    "--seeds 0-3": "--seeds 0",
    "seeds=range(4)": "seeds=range(1)",
    "--lengths 1 5 20 --sequences 200": "--lengths 1 2 --sequences 16",
}
#: nothing is downloaded, and the environment of the tests stays as it is
OFFLINE = "-m pip install --no-build-isolation --no-deps --no-index --target"


def test_tutorial_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, bin_folder = tmp_path / "site", tmp_path / "bin"
    for folder in (site, bin_folder, tmp_path / "home"):
        folder.mkdir()
    command = bin_folder / "outlast"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m outlast "$@"\n')
    command.chmod(0o755)
    paths = [str(site), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("PATH", f"{bin_folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    replaced = set()
    for cell in notebook.cells:
        for before, after in SMALLER.items():
            if before in cell.source and cell.cell_type == "code":
                replaced.add(before)
                cell.source = cell.source.replace(before, after)
        install = f"!{sys.executable} {OFFLINE} {site} ./log_steps"
        cell.source = cell.source.replace("%pip install ./log_steps", install)
        if cell.source.startswith("!"):  # a command that fails is an error
            cell.source = "\n".join(_checked(line) for line in cell.source.splitlines())
    assert replaced == set(SMALLER), "what the test makes smaller is no longer in the tutorial"
    client = nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path / "home")}}
    )
    client.execute()
    texts = [text for cell in notebook.cells if cell.cell_type == "code" for text in _texts(cell)]
    printed = "\n".join(texts)
    assert "no rule is broken" in printed
    assert printed.count("log_steps") >= 4
    assert (tmp_path / "home" / "runs" / "compare-page" / "index.html").exists()


def _checked(line: str) -> str:
    words = line.removeprefix("!").replace('"', '\\"')
    return f'assert get_ipython().system("{words}") is None and _exit_code == 0, "{words}"'


def _texts(cell: dict) -> list[str]:
    return [output.get("text", "") for output in cell["outputs"]]
