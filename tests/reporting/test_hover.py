"""Values on hover: every point of a figure has a title, at its place."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from report_folders import MULTIPLES, write_run

from outlast.reporting import pictures
from outlast.reporting.accuracy_by_length import accuracy_figure
from outlast.reporting.formatting import percent
from outlast.reporting.hover import HoverFigure
from outlast.reporting.learning_curves import loss_figure, probe_figure
from outlast.reporting.load import read
from outlast.reporting.page import report
from outlast.reporting.panels import NARROW, WIDE, Form
from outlast.reporting.seed_dots import seed_dots_figure
from outlast.reporting.style import svg
from outlast.reporting.summary import ArmSummary, summarise_arm
from outlast.runs.spec import read_seeds

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def only_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report with one of its figures: each takes a while to draw."""
    plans_of = pictures._plans

    def accuracy_alone(arms: list[ArmSummary]) -> list[pictures.Plan]:
        return [plan for plan in plans_of(arms) if plan.name == "accuracy"]

    monkeypatch.setattr(pictures, "_plans", accuracy_alone)


def summaries(*runs: Path) -> list[ArmSummary]:
    return [summarise_arm(arm) for arm in read(runs)[0].arms]


def shapes(figure: HoverFigure | None) -> dict[str, ElementTree.Element]:
    """The shapes of a figure that have a title, by it."""
    assert figure is not None
    root = ElementTree.fromstring(svg(figure))
    pairs = [(shape.find(f"{SVG}title"), shape) for shape in root.iter()]
    return {title.text or "": shape for title, shape in pairs if title is not None}


def lines(figure: HoverFigure | None) -> list[str]:
    return [line for title in shapes(figure) for line in title.split("\n")]


@pytest.mark.parametrize("form", [WIDE, NARROW])
def test_every_seed_and_mean_of_the_accuracy_figure_has_a_title(tmp_path: Path, form: Form) -> None:
    (arm,) = arms = summaries(write_run(tmp_path / "run", label="an arm", reach=3, until=0))
    titles = lines(accuracy_figure(arms, ["joint"], form))
    ladder = arm.ladder(None)
    assert ladder is not None
    for multiple in MULTIPLES:
        measure = ladder.at(multiple)
        assert measure is not None
        place = f"{multiple}× (length {10 * multiple})"
        assert any(t.startswith(f"an arm, mean of 4 seeds, {place}: ") for t in titles)
        for share in measure.seeds.values():
            value = re.escape(f"{place}: {percent(share)} %")
            assert any(re.fullmatch(rf"an arm, seeds? [0-9, –]+, {value}", t) for t in titles)


def test_seed_dots_have_titles_and_equal_seeds_share_one(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", label="an arm", until=0)
    rows = [
        {"seed": s, "variant": None, "length": 30, "multiple": 3, "exact": {"joint": share}}
        for s, share in enumerate((1.0, 1.0, 1.0, 0.25))
    ]
    (run / "results.json").write_text(json.dumps({"format": 1, "rows": rows}))
    arms = summaries(run)
    curves = lines(accuracy_figure(arms, ["joint"], WIDE))
    assert "an arm, seeds 0–2, 3× (length 30): 100 %" in curves
    titles = lines(seed_dots_figure(arms, WIDE))
    assert "an arm, seed 3, 3× (length 30): 25.0 %" in titles
    named = [
        match[1] for title in titles if (match := re.match(r"an arm, seeds? ([^a-z]+), ", title))
    ]
    assert sorted(seed for text in named for seed in read_seeds(text.replace("–", "-"))) == [
        0,
        1,
        2,
        3,
    ]


def test_titles_stand_where_the_marks_are(tmp_path: Path) -> None:
    figure = accuracy_figure(
        summaries(write_run(tmp_path / "run", seeds=(0,), reach=3, until=0)), ["joint"], WIDE
    )
    assert figure is not None
    circles = [s for s in shapes(figure).values() if s.tag == f"{SVG}circle"]
    root = ElementTree.fromstring(svg(figure))
    marks = [(float(u.get("x", 0)), float(u.get("y", 0))) for u in root.iter(f"{SVG}use")]
    assert len(circles) == len(MULTIPLES)
    for circle in circles:
        x, y = float(circle.get("cx", 0)), float(circle.get("cy", 0))
        assert any(abs(x - a) < 0.2 and abs(y - b) < 0.2 for a, b in marks)


def test_learning_curves_have_a_column_of_values_for_their_steps(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", label="an arm", seeds=(0, 1), until=2500)
    arms = summaries(run)
    probes = shapes(probe_figure(arms, WIDE))
    at_500 = next(title for title in probes if title.startswith("step 500\n"))
    assert re.search(r"\nan arm: mean [\d.]+ %, seed 0: [\d.]+ %, seed 1: [\d.]+ %", at_500)
    losses = shapes(loss_figure(arms, WIDE))
    columns = [title for title in losses if title.startswith("step ")]
    assert 30 <= len(columns) <= 120  # three panels
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    step = int(columns[0].split("\n")[0].removeprefix("step ").replace(",", ""))
    loss = next(m["loss"]["state"] for m in metrics if (m["step"], m["seed"]) == (step, 0))
    assert f"seed 0: {loss:.3g}" in columns[0]
    switches = [title for title in losses if "switch to phase 2" in title]
    assert any("an arm, seed" in title for title in switches)


@pytest.mark.usefixtures("only_accuracy")
def test_titles_are_escaped_and_keep_their_text(tmp_path: Path) -> None:
    label = '</title><script>alert("1")</script> & #0072b2 url(#x) id="y"'
    run = write_run(tmp_path / "run", label=label, seeds=(0, 1), until=100)
    page = report([run], tmp_path / "out")
    assert "<script" not in page.read_text()
    assert "&#35;0072b2 url(&#35;x) id=&quot;y&quot;" in page.read_text()  # no colour, no reference
    drawn = ElementTree.parse(page.parent / "figures" / "accuracy.svg")
    titles = [title.text or "" for title in drawn.iter(f"{SVG}title")]
    assert any(title.startswith(label) for title in titles)


@pytest.mark.usefixtures("only_accuracy")
def test_control_characters_in_a_label_leave_the_svg_valid(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", label="a\x01b", seeds=(0, 1), until=100)
    page = report([run], tmp_path / "out")
    ElementTree.parse(page.parent / "figures" / "accuracy.svg")


@pytest.mark.usefixtures("only_accuracy")
def test_share_of_nan_answers_is_said_on_hover_and_on_the_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", label="an arm", seeds=(0, 1), until=0)
    results = json.loads((run / "results.json").read_text())
    for row in results["rows"]:
        if row["seed"] == 1 and row["multiple"] in (3, 10):
            row["nan"] = 0.125 if row["multiple"] == 3 else 1.0
        else:
            row["nan"] = 0.0
    (run / "results.json").write_text(json.dumps(results))
    page = report([run], tmp_path / "out")
    text = page.read_text()
    assert "(12.5 % of answers NaN)" in text
    note = "NaN answers of “an arm”, seed 1: 12.5 % at 3×, 100 % at 10×"
    assert note in text
    assert note in (page.parent / "report.md").read_text()
    assert "seed 0: 0 %" not in text
    sound = report([write_run(tmp_path / "sound", until=0)], tmp_path / "2").read_text()
    assert "NaN" not in sound
