"""Everything that can be typed in the README and in docs/usage.md is typed here.

No line is skipped in silence, and every link of every page leads somewhere.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from outlast.cli import main

ROOT = Path(__file__).parents[2]
README, USAGE = ROOT / "README.md", ROOT / "docs" / "usage.md"
ANALYSE = ROOT / "docs" / "analyse.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
MAKE = {"make demo", "make test"}
#: lines that a test does not run: they set up a machine, or are run by the people who run this
EXEMPT = {"python3 -m venv .venv", ". .venv/bin/activate", "pip install -e .", *MAKE}


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    fenced = re.findall(r"^```(\S*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert {kind for kind, _ in fenced} <= {"bash", "python", "text"}, "a block of another kind"
    return [block for kind, block in fenced if kind == language]


def commands(page: Path) -> Iterator[str]:
    for block in blocks(page, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield shlex.join(words)


@pytest.fixture
def few_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of a run takes few sequences, where none are named."""
    monkeypatch.setattr("outlast.workflow.evaluate.default_sequences", lambda task: 64)


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_there_is_something_to_type() -> None:
    assert len(blocks(README, "python")) >= 2
    for page in (README, USAGE):
        assert sum(c.startswith("outlast ") for c in commands(page)) >= 5


@pytest.mark.usefixtures("few_sequences")
@pytest.mark.parametrize("page", [README, USAGE, ANALYSE], ids=lambda page: page.name)
def test_every_command_runs_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("outlast.studies.estimate.BUDGET", 0.0)  # no arm is timed
    for command in commands(page):
        if command in EXEMPT:
            continue
        name, *words = shlex.split(command.replace("--steps 2000", "--steps 10"))  # for time
        if "--preset" in words:
            words += ["--steps", "10"]
        assert name == "outlast", f"not run by this test: {command}"
        assert main(words) == 0, f"{command}\n{capsys.readouterr().err}"


def test_exempt_lines_are_in_the_readme_and_fit_the_project() -> None:
    assert set(commands(README)) >= EXEMPT
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {line.split()[1] for line in MAKE} <= set(targets)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = project["requires-python"].removeprefix(">=")
    assert f"Python {oldest} or newer" in README.read_text(encoding="utf-8")


@pytest.mark.usefixtures("few_sequences")
@pytest.mark.parametrize(
    ("page", "number"),
    [(page, n) for page in (README, ANALYSE) for n in range(len(blocks(page, "python")))],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_python_block_runs(
    page: Path, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    block = blocks(page, "python")[number].replace("steps=200", "steps=50")  # for time
    code = compile(block, f"{page.name}, block {number}", "exec")
    exec(code, {"__name__": "readme"})


def test_attention_after_a_cache_is_what_it_is_said_to_be() -> None:
    (block,) = [b for b in blocks(README, "python") if "threshold_relative_attention" in b]
    seen: dict[str, Any] = {"__name__": "readme"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        exec(compile(block, "README.md", "exec"), seen)
    out, new, scores = seen["out"], seen["new"], seen["q"][:, :, -1:] @ seen["k"].mT
    assert torch.allclose(new.out, out[:, :, -1:], atol=1e-5)
    assert torch.equal(new.kept, (scores > 0).sum(-1).int())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"no file: {link}"
        assert not anchor or anchor in anchors(target), f"no heading: {link}"
