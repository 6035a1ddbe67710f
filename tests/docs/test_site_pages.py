"""The tools that make the pages of the site: links, navigation, generated reference, notebook."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import msgspec
import pytest
import torch

from docs_site import DOCS, ROOT
from docs_site.command_reference import command_page, verb_parser
from docs_site.data_tables import table_page
from docs_site.folder_schema import RECORDS, folder_page, type_words
from docs_site.item_reference import item_page
from docs_site.link_check import problems
from docs_site.markdown import CODE, code, plain_bars, table
from docs_site.navigation import SiteError, expanded
from docs_site.notebook import NOTEBOOK, notebook_text
from docs_site.pages import sources, staged_text
from docs_site.pictures import GATE, SCORES, _tra_weights
from docs_site.reference import reference_pages
from outlast.cli import VERBS
from outlast.registry import OURS, SHOWN
from outlast.runs.folder import METRICS, RESULTS, RUN, STUDY, SWEEP, TRACKERS
from outlast.runs.records import MetricLine, ResultRow
from outlast.runs.spec import Settings
from outlast.sweep.attempts import ATTEMPTS, CLAIMED, HIDDEN
from outlast.sweep.halving import SCORES as HALVING

NAV = "nav:\n  - Start:\n      - index.md\n      - {how}\n"


def staged(tmp_path: Path, *pages: str) -> Path:
    for page in pages:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text(f"# The page `{Path(page).stem}`\n")
    return tmp_path


def test_list_and_table_after_a_line_get_an_empty_line(tmp_path: Path) -> None:
    page, code = tmp_path / "page.md", "```bash\nx\n- y\n```\n"
    page.write_text(f"Words:\n- one\n  more\n- two\n\nWords\n| a |\n|---|\n| 1 |\n{code}")
    assert staged_text("page.md", page) == (
        f"Words:\n\n- one\n  more\n- two\n\nWords\n\n| a |\n|---|\n| 1 |\n{code}"
    )


@cache
def generated() -> dict[str, str]:
    return reference_pages()


def all_pages() -> dict[str, str]:
    """Every page as the builder gets it."""
    return {p: staged_text(p, path) for p, path in sources().items()} | generated()


def test_bar_in_code_of_a_table_is_not_escaped() -> None:
    for place, text in all_pages().items():
        for line in re.sub(r"^```.*?^```", "", text, flags=re.M | re.S).splitlines():
            if line.startswith("|"):
                assert r"\|" not in "".join(m[0] for m in CODE.finditer(line)), f"{place}: {line}"


@pytest.mark.parametrize(
    ("written", "line"),
    [
        (r"| `a \| b` | x \| y |", r"| `a | b` | x \| y |"),
        (r"| ``a \| `b` `` | `c` \| `d` |", r"| ``a | `b` `` | `c` \| `d` |"),
    ],
)
def test_only_bars_in_code_change(written: str, line: str) -> None:
    assert plain_bars(written) == line


def test_builder_keeps_bars_in_code_within_their_cell() -> None:
    markdown = pytest.importorskip("markdown")  # comes with the extra `docs`
    text = table(["a", "b"], [(code("x | y"), "x | y")])
    html = markdown.markdown(text, extensions=["tables"])
    assert "<td><code>x | y</code></td>" in html
    assert html.count("<td>") == 2


def test_links_out_of_docs_lead_to_pages_of_the_site() -> None:
    text = staged_text("design.md", DOCS / "design.md")
    assert "](benchmarks.md)" in text
    assert "../benchmarks" not in text
    data = staged_text("reproduce-tra.md", DOCS / "reproduce-tra.md")
    assert "](data/tra-demo.md)" in data


def test_pattern_of_the_navigation_takes_the_pages_that_are_not_named(tmp_path: Path) -> None:
    folder = staged(tmp_path, "index.md", "how-to/b.md", "how-to/a.md")
    config = expanded(NAV.format(how='"how-to/*.md"'), folder)
    assert re.findall(r'- "The page (\w)": how-to/\w.md', config) == ["a", "b"]


def test_page_without_a_place_is_an_error(tmp_path: Path) -> None:
    folder = staged(tmp_path, "index.md", "other.md", "how-to/a.md")
    with pytest.raises(SiteError, match=r"no place for: other\.md"):
        expanded(NAV.format(how='"how-to/*.md"'), folder)


def test_place_without_a_page_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"not there: gone\.md"):
        expanded(NAV.format(how="gone.md"), staged(tmp_path, "index.md"))


@pytest.mark.parametrize(
    ("html", "problem"),
    [
        ('<a href="gone.html">x</a>', "dead link: gone.html"),
        ('<a href="#gone">x</a>', "no such heading: #gone"),
        ('<a href="b.html#gone">x</a>', "no such heading: b.html#gone"),
        ('<script src="https://x.org/a.js"></script>', "loads https://x.org/a.js"),
        ('<link rel="stylesheet" href="//x.org/a.css">', "loads //x.org/a.css"),
        ('<a href="https://x.org/">x</a> <a href="b.html#here">x</a>', None),
    ],
)
def test_link_check_finds(html: str, problem: str | None, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(html)
    (tmp_path / "b.html").write_text('<h1 id="here">x</h1>')
    assert problems(tmp_path) == ([f"a.html: {problem}"] if problem else [])


def test_link_check_finds_a_font_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("@import url(https://x.org/font.css);")
    assert len(problems(tmp_path)) == 1


@pytest.mark.parametrize("kind", SHOWN)
def test_reference_has_every_item_and_argument(kind: str) -> None:
    page = item_page(SHOWN[kind])
    for name in SHOWN[kind].names():
        entry = SHOWN[kind].entry(name)
        if entry.source != OURS:
            continue
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        for parameter in entry.parameters(SHOWN[kind].caller_arguments):
            row = re.search(rf"^\| `{parameter.name}` \|(.*)\|(.*)\|(.*)\|$", section, re.MULTILINE)
            assert row, f"{kind} {name}: no row for {parameter.name}"
            assert row[2].strip()


def test_every_kind_has_a_page_and_its_base_stands_in_the_api() -> None:
    pages = generated()
    assert {f"reference/{registry.plural}.md" for registry in SHOWN.values()} <= set(pages)
    for name in ("Tracker", "Point", "Conclusion"):
        assert f"::: outlast.trackers.base.{name}\n" in pages["reference/api.md"]


def test_command_reference_has_every_flag() -> None:
    page = command_page()
    for verb in VERBS:
        section = page.split(f"\n## {verb}\n")[1].split("\n## ")[0]
        for action in verb_parser(verb)._actions:
            for flag in action.option_strings:
                assert f"`{flag}`" in section or flag in ("-h", "--help")
    assert "| `--lr` | `FLOAT` | `0.002` |" in page
    assert "| `--warmup` | `INT` |" in page
    assert "{None" not in page


def test_run_folder_page_has_every_field_with_its_comment() -> None:
    page = folder_page()
    for record in (record for types in RECORDS.values() for record in types):
        assert f"### {record.__name__}\n" in page
    names = [f.name for f in fields(Settings)] + [
        f.name for f in msgspec.structs.fields(MetricLine)
    ]
    for name in names:
        assert f"| `{name}` |" in page
    assert "sequences in a batch" in page
    assert type_words(dict[str, float] | None) == "dict[str, float] | None"


def test_run_folder_page_says_which_fields_may_be_absent() -> None:
    rows = folder_page().split("### ResultRow\n")[1].split("\n## ")[0]
    absent = re.findall(r"^\| `(\w+)` \|.*\| \(may be absent\) \|", rows, re.MULTILINE)
    needed = re.findall(r"^\| `(\w+)` \|.*\| \(needed\) \|", rows, re.MULTILINE)
    assert "seed" in absent
    assert needed == ["variant", "length", "multiple", "exact"]
    assert len(absent) + len(needed) == len(ResultRow.__annotations__)


def test_run_folder_page_has_every_file_and_every_record_that_it_names() -> None:
    page = folder_page()
    files = [TRACKERS, SWEEP, HALVING, f"{HIDDEN}/{ATTEMPTS}", f"{HIDDEN}/{CLAIMED}"]
    for file in [RUN, METRICS, RESULTS, STUDY, *files]:
        assert f"\n| `{file}" in page
    for name in set(re.findall(r"\b[A-Z]\w+Record\b", page)):
        assert f"### {name}\n" in page


def test_page_of_data_has_every_row() -> None:
    path = DOCS / "data" / "tra-demo.csv"
    page = table_page(path, [("A page", "../a.md")])
    assert page.count("<tr>") == len(path.read_text().splitlines())
    assert "[A page](../a.md)" in page


def test_notebook_is_that_of_the_page() -> None:
    assert NOTEBOOK.read_text(encoding="utf-8") == notebook_text(), (
        "write it again: PYTHONPATH=tools python -m docs_site.notebook"
    )
    assert all(not cell.get("outputs") for cell in json.loads(notebook_text())["cells"])


def test_weights_in_the_picture_of_tra_are_those_of_its_definition() -> None:
    scores = torch.tensor(SCORES)
    kept = scores > 0
    distance = kept.flip(0).cumsum(0).flip(0)
    logits = torch.where(kept, scores + GATE * distance, -torch.inf)
    assert torch.allclose(_tra_weights(scores), logits.softmax(0), atol=1e-5)


def test_every_picture_of_a_page_is_there() -> None:
    for place, path in sources().items():
        for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / picture).exists(), f"{place}: {picture}"
    assert (ROOT / "mkdocs.yml").exists()
