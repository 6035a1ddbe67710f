"""The files of a report."""

from __future__ import annotations

import errno
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import pytest
from report_folders import claim, write_analyses, write_many, write_run, write_study

from outlast.analysis.headlines import HEADLINES
from outlast.cli import main
from outlast.errors import RunFolderError
from outlast.reporting.page import report

without_figures = pytest.mark.usefixtures("no_figures")
VOID = {"meta", "br", "hr", "img", "link", "input", "wbr"}


class Checker(HTMLParser):
    """Collects ids and outside references; checks that tags close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in {"src", "href", "xlink:href"}:
                self.links.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(page: Path) -> str:
    text = page.read_text()
    checker = Checker()
    checker.feed(text)
    assert not checker.open
    assert len(checker.ids) == len(set(checker.ids))
    for link in checker.links:
        assert link.lstrip("#") in checker.ids if link[0] == "#" else (page.parent / link).exists()
    assert "<script" not in text
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    return text


def test_demo_page_is_valid_and_has_every_figure(demo: Path) -> None:
    text = check(demo / "index.html")
    for words in ("Delayed attention training", "does not hold", "not measured", "not: seed 3"):
        assert words in text
    assert "outlast reproduce dat --scale demo" in text
    names = {"accuracy", "seeds", "parts", "loss", "probes"}
    assert {p.name for p in (demo / "figures").iterdir()} == {
        f"{name}.{kind}" for name in names for kind in ("png", "svg")
    }


def test_contents_link_to_every_section_figure_and_arm(demo: Path) -> None:
    text = check(demo / "index.html")
    (contents,) = re.findall(r"<nav.*?</nav>", text, re.DOTALL)
    listed = re.findall(r'href="#([^"]+)"', contents)
    headings = re.findall(r'<h2 id="([^"]+)"><a class="self" href="#([^"]+)">', text)
    assert headings
    assert text.count("<h2") == len(headings), "a heading without an anchor"
    assert all(anchor == target for anchor, target in headings)
    assert {anchor for anchor, _ in headings} <= set(listed)
    arms = ("joint", "dat", "control", "lstm", "transformer")
    assert {"loss", "probes", *(f"arm-{arm}" for arm in arms)} <= set(listed)
    assert text.count("<h3 id=") == text.count("<h3")
    for name in ("accuracy", "seeds", "parts", "loss", "probes"):
        assert f'<figure id="figure-{name}">' in text


def test_anchors_of_several_studies_and_alike_arms_differ(tmp_path: Path) -> None:
    for name in ("one", "two"):
        for arm in ("A b", "a-b", "ü"):
            write_run(tmp_path / name / arm, label=f"label of {arm}", seeds=(0,), until=0)
        arms = [(arm, f"label of {arm}", "") for arm in ("A b", "a-b", "ü")]
        write_study(tmp_path / name, arms, [])
    text = check(report([tmp_path / "one", tmp_path / "two"], tmp_path / "out"))
    assert len(re.findall(r"<nav", text)) == 2
    assert len(re.findall(r'<h3 id="[12]-dat-arm-', text)) == 6


def test_tables_are_regions_that_the_keyboard_can_scroll(demo: Path) -> None:
    text = (demo / "index.html").read_text()
    boxes = re.findall(r'<div class="box[^>]*>\s*<table>', text)
    assert len(boxes) == text.count("<table>") == 5
    for box in boxes:
        assert re.search(r'tabindex="0" role="region" aria-label="[^"]+"', box)
    assert "overflow-x: auto" in text
    assert "scroll;" in text.partition(".box {")[2].partition("}")[0]  # shadows at the ends


@without_figures
def test_words_may_break_at_brackets_and_nowhere_else(tmp_path: Path) -> None:
    label = "attention(random_positions(10000),heads=4)"
    text = check(report([write_run(tmp_path / "run", label=label, until=0)], tmp_path / "out"))
    assert "attention(<wbr>random_<wbr>positions(<wbr>10000),<wbr>heads=<wbr>4)" in text
    assert "@\N{NO-BREAK SPACE}64</td>" in text
    assert "overflow-wrap: anywhere" not in text
    assert "break-all" not in text


def test_meaning_of_orange_is_said_before_each_table_that_has_it(demo: Path) -> None:
    text = (demo / "index.html").read_text().replace("\xa0", " ")
    below = '<p class="note"><b class="low">Orange</b>: below 90 %'
    assert text.count(below) == 3  # the parts, the results, every seed
    first = text.index(' class="number low"')
    assert text.index(below) < first
    assert "phase 1 did not converge" in text


@without_figures
def test_page_without_orange_numbers_does_not_explain_them(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", seeds=(0,), multiples=(1,), reach=1000, until=0)
    assert "Orange" not in check(report([run], tmp_path / "out"))


def test_figures_have_their_finding_in_the_caption_and_for_screen_readers(demo: Path) -> None:
    text = (demo / "index.html").read_text().replace("\xa0", " ")
    finding = "“serial hybrid, DAT” holds 90 % to length 100 (10×), the longest tested"
    assert re.search(rf'<figcaption><p class="finding">[^<]*{re.escape(finding)}', text)
    assert re.search(rf'aria-label="Accuracy by length. [^"]*{re.escape(finding)}', text)
    assert finding in (demo / "report.md").read_text()
    assert text.count('<p class="finding">') == 5


def test_demo_markdown_has_whole_tables_and_no_dead_link(demo: Path) -> None:
    text = (demo / "report.md").read_text()
    for link in re.findall(r"\]\(([^)]*)\)", text):
        assert (demo / link).is_file()
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 5
    for table in tables:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.strip().splitlines()}
        assert len(widths) == 1


def test_demo_results_json_has_the_numbers_of_the_rows(demo: Path) -> None:
    study = json.loads((demo / "results.json").read_text())["studies"][0]
    assert [c["verdict"] for c in study["claims"]][-2:] == ["does not hold", "not measured"]
    arm = study["arms"][0]
    joint = arm["results"][0]["lengths"][2]["exact"]["joint"]
    values = list(joint["seeds"].values())
    assert joint["mean"] == pytest.approx(math.fsum(values) / 4)
    assert joint["low"] <= joint["mean"] <= joint["high"]
    assert joint["interquartile_mean"] == pytest.approx(sum(sorted(values)[1:3]) / 2)
    assert arm["results"][0]["cliff"]["from"] == {"length": 10, "multiple": 1}
    assert study["arms"][1]["results"][0]["effective_length"]["0.9"]["of_mean"]["multiple"] == 10
    assert study["arms"][2]["phase1"]["failed"] == [3]


@without_figures
def test_parked_seeds_and_missing_steps_are_noted_beside_the_means(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", label="an arm", seeds=(0, 1), until=500)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 500, "seed": 1, "event": "parked", "since": 450}) + "\n")
    page = report([run], tmp_path / "out")
    note = "(1 of 2 seeds parked, step 500 of 2,500)"
    assert f"an arm <small>{note}</small></th>" in page.read_text()
    assert f"| an arm {note} |" in (page.parent / "report.md").read_text()


@without_figures
def test_nan_answers_are_noted_beside_the_means(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", label="an arm", seeds=(0, 1, 2))
    results = json.loads((run / "results.json").read_text())
    for row in results["rows"]:
        if row["seed"] == 1 and row["multiple"] >= 4:
            row["nan"] = 0.03
    (run / "results.json").write_text(json.dumps(results))
    page = report([run], tmp_path / "out")
    note = "(answers of 1 of 3 seeds are NaN or all -inf at 4×, 10×, and count as wrong)"
    assert f"an arm <small>{note}</small></th>" in page.read_text()
    assert f"| an arm {note} |" in (page.parent / "report.md").read_text()


def test_same_folders_give_the_same_bytes_and_leave_matplotlib_alone(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", seeds=(0, 1), until=500)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        before = dict(matplotlib.rcParams)
        first = report([run], tmp_path / "one").parent
        assert dict(matplotlib.rcParams) == before
    second = report([run], tmp_path / "two").parent
    files = sorted(p.relative_to(first) for p in first.rglob("*") if p.is_file())
    assert len(files) == 13
    for file in files:
        assert (first / file).read_bytes() == (second / file).read_bytes(), file


@without_figures
def test_page_of_forty_arms_is_valid_and_folds_long_tables(tmp_path: Path) -> None:
    study = write_many(tmp_path / "study", seeds=(0,), until=0)
    text = check(report([study], tmp_path / "out"))
    assert "<details>" in text


@without_figures
def test_single_seed_has_no_interval(tmp_path: Path) -> None:
    page = report([write_run(tmp_path / "run", seeds=(7,), until=0)], tmp_path / "out")
    assert "(1 seed)" in check(page)
    numbers = json.loads((page.parent / "results.json").read_text())
    joint = numbers["studies"][0]["arms"][0]["results"][0]["lengths"][0]["exact"]["joint"]
    assert (joint["n"], joint["low"], joint["high"]) == (1, None, None)


@without_figures
def test_lengths_that_cannot_be_tested_are_marked_with_their_reason(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run", variants=(None, "sparse"), ceiling=2, multiples=(1, 4), until=0
    )
    page = report([run], tmp_path / "out")
    text = check(page)
    assert "n/a" in text
    assert "learned table ends at 20" in text
    assert "sparse" in text
    numbers = json.loads((page.parent / "results.json").read_text())
    results = numbers["studies"][0]["arms"][0]["results"]
    assert [ladder["variant"] for ladder in results] == [None, "sparse"]
    assert results[0]["lengths"][1]["exact"] == {}


def test_page_without_plain_test_or_without_any_result_is_valid(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", variants=("dense",), multiples=(1,), until=0)
    b = write_run(tmp_path / "b", label="none", ceiling=0, until=0)
    check(report([a], tmp_path / "1"))
    assert "n/a" in check(report([b], tmp_path / "2"))


def test_unfinished_runs_and_missing_arms_are_named(tmp_path: Path) -> None:
    write_run(tmp_path / "study" / "a", evaluated=False, until=700)
    arms = [("a", "A", "g"), ("b", "B", "g")]
    study = write_study(tmp_path / "study", arms, [claim("It holds", "b", low=0.9)])
    text = check(report([study], tmp_path / "out"))
    assert "Nothing has been evaluated yet." in text
    assert "unfinished: step 700 of 2,500" in text
    assert "not run yet" in text


def test_labels_from_files_are_escaped(tmp_path: Path) -> None:
    nasty = '<script>alert("1")</script> $x_{1$ & --> _a | `b`'
    run = write_run(tmp_path / "run", label=nasty, seeds=(0, 1))
    other = write_run(tmp_path / "other", label="_hidden", seeds=(0, 1), methods=("<b>",))
    page = report([run, other], tmp_path / "out")
    text = check(page)
    assert "&lt;script&gt;alert" in text
    assert "<b>" not in text
    assert "<script" not in (page.parent / "report.md").read_text()


def test_unwritable_folder_is_named_in_the_error(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", until=0)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunFolderError, match=r"cannot write .*file.*: Not a directory"):
        report([run], tmp_path / "file")
    assert (tmp_path / "file").read_text() == "in the way"


@without_figures
def test_page_replaces_a_page_and_no_other_file(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", until=0)
    out = tmp_path / "out"
    out.mkdir()
    (out / "index.html").write_text("mine")
    with pytest.raises(RunFolderError, match=r"has a file index.html that is of no report"):
        report(run, out)
    assert [path.name for path in out.iterdir()] == ["index.html"]
    (out / "index.html").unlink()
    assert report(run, out) == report(run, out)


@without_figures
def test_page_that_cannot_be_replaced_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run", until=0)
    page = report([run], tmp_path / "out")
    before = page.read_bytes()

    def full(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(RunFolderError, match=r"cannot write .*: No space left on device"):
        report([run], tmp_path / "out")
    assert page.read_bytes() == before
    assert not list((tmp_path / "out").rglob(".*")), "something half written is left"


def test_damaged_results_write_no_file(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "results.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"results\.json: .* line 1"):
        report([run], tmp_path / "out")
    assert not (tmp_path / "out").exists()


ANATOMY = {
    "seed": 0, "step": None, "multiple": 1, "length": 10, "part": "state", "cause": "right",
    "share": 1,
}  # fmt: skip


def write_tables(run: Path, trained: int | None = None) -> None:
    write_analyses(run, seeds=(0,))
    table = {"format": 2, "analysis": "anatomy", "trained": trained, "rows": [ANATOMY]}
    (run / "analysis/anatomy.json").write_text(json.dumps(table))


def test_damaged_tables_and_checkpoints_of_some_arms_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "s"
    arms = {name: write_run(study / name, name, (0,), until=0) for name in "abcd"}
    write_study(study, [(name, name.upper(), "g") for name in arms], [])
    for name, run in arms.items():
        write_tables(run, trained=5 if name == "c" else None)
    (arms["b"] / "analysis/anatomy.json").write_text("{")
    (arms["c"] / "checkpoint.safetensors").write_bytes(b"garbage")
    for name in HEADLINES:
        (arms["d"] / f"analysis/{name}.json").write_text("{")
    assert main(["report", str(study), "--out", str(tmp_path / "out")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 + len(HEADLINES)
    assert lines[0].startswith(f"error: anatomy of “B” is left out: cannot read {arms['b']}/")
    assert lines[0].endswith(f"'outlast analyse {arms['b']} --only anatomy' makes it again")
    assert f"anatomy of “C” is left out: {arms['c']}/checkpoint.safetensors is damaged" in lines[1]
    assert all(f"{name} of “D” is left out: cannot read " in "".join(lines) for name in HEADLINES)
    text = check(tmp_path / "out/index.html").replace("<wbr>", "")
    assert text.count(" is left out: ") == len(lines)
    assert 'id="figure-anatomy"' in text
    assert "anatomy of “B” is left out" in (tmp_path / "out/report.md").read_text()


@without_figures
@pytest.mark.parametrize("name", ["run.json", "results.json", "metrics.jsonl"])
@pytest.mark.parametrize("in_study", [True, False], ids=["study", "grid"])
def test_arm_with_a_damaged_file_is_left_out(
    tmp_path: Path, name: str, in_study: bool, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "s"
    for arm in "ab":
        write_run(folder / arm, f"arm {arm}", until=0)
    if in_study:
        arms = [("a", "arm a", "g"), ("b", "b", "g")]
        write_study(folder, arms, [claim("It holds", "b", low=0.9)])
    (folder / "b" / name).write_text("[]\n{}\n")
    text = check(report([folder], tmp_path / "out")).replace("<wbr>", "")
    assert re.search(rf"“b” is left out: .*b/{name}", caplog.text)
    assert f"“b” is left out: cannot read {folder}/b/{name}" in text
    assert "Left out: a file is damaged." in text
    assert "“arm a” gets" in text
    (folder / "a" / name).write_text("[]")
    with pytest.raises(RunFolderError, match=f"cannot read .*a/{name}"):
        report([folder], tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_damaged_table_of_a_lone_run_writes_no_file(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", until=0)
    write_tables(run)
    (run / "analysis/gradients.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"gradients\.json: damaged JSON"):
        report([run], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_import_of_reporting_loads_nothing_heavy() -> None:
    code = (
        "import sys, outlast.reporting\n"
        "heavy = {'matplotlib', 'jinja2', 'torch', 'numpy'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
