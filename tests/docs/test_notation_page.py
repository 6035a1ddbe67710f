"""Every example of docs/notation.md is read, and what it says is refused is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outlast.errors import SpecError
from outlast.models.build import MOST_SUBLAYERS, build_model, canonical_layout
from outlast.registry import KINDS
from outlast.runs.spec import RunSpec
from outlast.specs import _LEVELS, _OPTIONS, parse, parse_layout, parse_value
from outlast.workflow.grid import expand_grid

PAGE = (Path(__file__).parents[2] / "docs" / "notation.md").read_text(encoding="utf-8")
LINE = RunSpec("composite", "lstm > attention > mlp @ 16")


def examples(word: str) -> list[tuple[str, str]]:
    """Kind and line of each example behind a comment such as ``<!-- example: model -->``."""
    pattern = rf"^<!-- {word}: (\w+) -->\n```text\n(.*?)^```$"
    blocks = re.findall(pattern, PAGE, re.MULTILINE | re.DOTALL)
    lines = [(kind, line) for kind, block in blocks for line in block.splitlines()]
    return [(kind, re.split(r"  +# |  +#$", line)[0].rstrip()) for kind, line in lines]


def read(kind: str, line: str, folder: Path) -> None:
    """Read a line as Outlast would."""
    if kind == "value":
        parse_value(line)
    elif kind == "model":
        canonical_layout(line)
        build_model(line.replace("128", "16").replace("256", "16"), vocabulary=20, classes=2)
    elif kind == "grid":
        expand_grid(LINE, [line], folder / "grid")
    elif kind == "switch":
        KINDS["method"].build(f"dat(switch={line})")
    else:
        assert kind == "spec"
        spec = parse(line)
        registry = next(r for r in KINDS.values() if spec.name in r)
        registry.bind(spec)


@pytest.mark.parametrize(("kind", "line"), examples("example"))
def test_example_is_read(kind: str, line: str, tmp_path: Path) -> None:
    read(kind, line, tmp_path)


@pytest.mark.parametrize(("kind", "line"), examples("refused"))
def test_refused_example_is_refused(kind: str, line: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError):
        read(kind, line, tmp_path)


def test_every_text_block_is_marked() -> None:
    assert len(re.findall(r"^```text$", PAGE, re.MULTILINE)) == len(
        re.findall(r"^<!-- (?:example|refused): \w+ -->\n```text$", PAGE, re.MULTILINE)
    )


def precedence() -> list[tuple[str, str]]:
    section = PAGE.split("### What binds tighter")[1].split("\n###")[0]
    rows = re.findall(r"^\| `(.+?)` \| `(.+?)` \|", section, re.MULTILINE)
    return [(a.replace("\\|", "|"), b.replace("\\|", "|")) for a, b in rows]


@pytest.mark.parametrize(("written", "read_as"), precedence())
def test_line_means_what_the_table_of_precedence_says(written: str, read_as: str) -> None:
    width = "@" in read_as
    bracketed = re.sub(r"^\((.*)\) @", r"\1 @", read_as) if width else read_as
    assert canonical_layout(written) == canonical_layout(bracketed)


def test_three_lines_that_differ_differ() -> None:
    lines = ["lstm | attention > mlp", "lstm | (attention > mlp)",
             "(lstm > mlp) | (attention > mlp)"]  # fmt: skip
    assert all(line in PAGE for line in lines)
    assert len({str(canonical_layout(line)) for line in lines}) == 3


def test_table_has_every_option_of_a_model() -> None:
    section = PAGE.split("### What may follow `@`")[1].split("<!--")[0]
    rows = re.findall(r"^\| `(\w+)=(\S+?)` \|([^|]*)\|", section, re.MULTILINE)
    assert {name for name, _, _ in rows} == set(_OPTIONS)
    for name, value, _ in rows:
        assert name in parse_layout(f"lstm @ 8, {name}={value}").options
    defaults = {name: default.strip(" `") for name, _, default in rows if default.strip()}
    plain = str(canonical_layout("lstm @ 8"))
    for name in ("embedding", "norm", "residual", "dropout"):
        assert str(canonical_layout(f"lstm @ 8, {name}={defaults[name]}")) == plain


def test_limits_are_those_of_the_code() -> None:
    assert f"at most {_LEVELS} levels of brackets" in PAGE
    assert f"at most {MOST_SUBLAYERS:,} sublayers" in PAGE


def test_printed_lines_are_what_the_remarks_say(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    exec(compile(block, "notation.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"\)  # (.+)$", block, re.MULTILINE)
