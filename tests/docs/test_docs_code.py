"""Every block of code in the documentation is run by a test, or says why it is not.

A page whose code is run is named in the test that runs it. On every page each command is read by
the parser, with its specs, its study and its arms.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pytest

from docs_site import DOCS, ROOT
from docs_site.code_blocks import Block, read_blocks
from docs_site.command_reference import verb_parser
from docs_site.pages import sources
from outlast.bench.registry import find_benchmark
from outlast.cli import VERBS, main
from outlast.cli.presets import with_preset
from outlast.errors import OutlastError
from outlast.models.build import canonical_layout
from outlast.registry import methods, studies, tasks
from outlast.runs.spec import NONE
from outlast.studies import Study

PAGES = {**sources(), "README.md": ROOT / "README.md"}
CODE = {"bash", "python"}
LANGUAGES = {*CODE, "text", "toml", "diff", ""}
#: a word that stands for a value, such as TASK
PLACEHOLDER = re.compile(r"[A-Z]+")
#: what sets up a machine
SETUP = {"pip", "make", ".", "python3"}


def commands() -> Iterator[Any]:
    for place, path in PAGES.items():
        for block in read_blocks(path):
            if block.language == "bash":
                for line in shell_lines(block):
                    yield pytest.param(line, id=f"{place}: {' '.join(line)[:60]}")


def shell_lines(block: Block) -> list[list[str]]:
    """The commands of a block; of a script, what of each line begins with ``outlast``."""
    lines = list(block.commands())
    if not block.code.startswith("#!"):
        return lines
    ours = [line[line.index("outlast") :] for line in lines if "outlast" in line]
    return [line[:-1] if line[-1] == "&" else line for line in ours]


def test_every_language_is_known() -> None:
    for place, path in PAGES.items():
        assert {block.language for block in read_blocks(path)} <= LANGUAGES, place
        fences = re.findall(r"^ *```", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) == 2 * len(read_blocks(path)), f"{place}: a fence that is not read"


def test_every_page_with_code_is_run_or_says_why_not() -> None:
    tests = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("test_*.py"))
    helpers = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "tests").glob("*/*.py"))
    for place, path in PAGES.items():
        if any(block.language in CODE and not block.reason for block in read_blocks(path)):
            assert f'"{path.name}"' in tests + helpers, f"no test runs {place}"


def test_text_block_holds_no_commands() -> None:
    """Else no test would look at them: a block of commands is ``bash``."""
    for place, path in PAGES.items():
        for block in read_blocks(path):
            if block.language in ("text", ""):
                command = re.search(r"^(outlast|pip|ray|python3?) .*", block.code, re.MULTILINE)
                assert not command, f"{place}: {command and command[0]}"


def test_bash_can_read_every_shell_block() -> None:
    scripts = 0
    for place, path in PAGES.items():
        for block in read_blocks(path):
            if block.language == "bash":
                done = subprocess.run(
                    ["bash", "-n"], input=block.code, capture_output=True, text=True
                )
                assert done.returncode == 0, f"{place}: {done.stderr}"
                scripts += block.code.startswith("#!")
    assert scripts, "the script for Slurm was one of them"


def specs_of(words: list[str]) -> Iterator[tuple[str, str]]:
    for flag, value in pairwise(words):
        if flag in ("--task", "--model", "--method") and not PLACEHOLDER.fullmatch(value):
            yield flag, value


@pytest.mark.parametrize("words", list(commands()))
def test_command_is_read(words: list[str]) -> None:
    while re.fullmatch(r"[A-Z_]+=\S+", words[0]):
        words = words[1:]
    program, *rest = words
    if program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == "python":
        assert rest[0] == "-m" or (ROOT / rest[0]).exists()
    elif program not in SETUP:
        assert program == "outlast"
        read_command(rest)


@cache
def study_of(name: str, scale: str) -> Study:
    study: Study = studies.entry(name).factory(scale=scale)
    return study


def read_command(words: list[str]) -> None:
    verb, *rest = words
    assert verb in VERBS
    rest = with_preset(rest, ()) if verb in ("train", "sweep") else rest
    if "--start-from" in rest:  # task and model are those of a run that is not there
        rest = [*rest, "--task", "parity", "--model", "lstm"]
    verb_parser(verb).parse_args(rest)
    for flag, value in specs_of(rest):
        if flag == "--model":
            if "log_steps" not in value:  # the plug-in of the tutorial
                canonical_layout(value)
        elif (flag, value) != ("--method", NONE):  # in place of a preset's
            (tasks if flag == "--task" else methods).bind(value)
    if verb == "reproduce":
        scale = rest[rest.index("--scale") + 1] if "--scale" in rest else "demo"
        after = rest[rest.index("--arms") + 1 :] if "--arms" in rest else []
        study_of(rest[0], scale).choose(list(takewhile(lambda w: not w.startswith("--"), after)))
    elif verb == "bench":
        find_benchmark(rest[0])


@pytest.mark.parametrize(
    "line",
    ["train --tusk parity --model lstm --out x", "train --task parety --model lstm --out x",
     "reproduce dat --arms no-such-arm", "reproduce dot", "report --nothing", "bench nothing"],
)  # fmt: skip
def test_reading_refuses_what_the_command_line_would(line: str) -> None:
    """So that the test above can fail."""
    with pytest.raises((SystemExit, OutlastError)):
        read_command(line.split())


def test_first_page_leads_to_every_page() -> None:
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    for place, path in sources().items():
        if place not in ("index.md", "changelog.md"):
            link = os.path.relpath(path, DOCS)
            assert f"]({link})" in text, f"docs/index.md has no link to {link}"


#: smaller numbers for the first page, for time
SMALLER = {"--steps 200": "--steps 10", "steps=200": "steps=10"}


def test_first_page_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("outlast.workflow.evaluate.default_sequences", lambda task: 16)
    page = DOCS / "index.md"
    for block in read_blocks(page):
        code = block.code
        for before, after in SMALLER.items():
            code = code.replace(before, after)
        if block.reason:
            continue
        if block.language == "python":
            exec(compile(code, "index.md", "exec"), {"__name__": "index"})
            continue
        for words in Block("bash", code, "", "", 0, 0).commands():
            assert main(words[1:]) == 0, capsys.readouterr().err
    assert (tmp_path / "runs" / "first" / "report" / "index.html").exists()
