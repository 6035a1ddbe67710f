"""What the page shows of analyses: attention beside its law, covariance, tokens, gradients."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from report_folders import write_analyses, write_run

from outlast.errors import RunFolderError
from outlast.reporting.ablation_table import ablation_table, layers_table
from outlast.reporting.analysis_by_length import (
    COVARIANCE_LEGEND,
    ENTROPY_LEGEND,
    KEPT_LEGEND,
    LAW_LEGEND,
    analysis_figure,
    analysis_legend,
)
from outlast.reporting.causes import cause_sentence
from outlast.reporting.gradients_by_step import gradients_figure, gradients_table
from outlast.reporting.hover import HoverFigure
from outlast.reporting.keys_by_step import keys_figure
from outlast.reporting.load import read
from outlast.reporting.page import report
from outlast.reporting.panels import NARROW, WIDE, Form
from outlast.reporting.stills import still_of
from outlast.reporting.summary import ArmSummary, summarise_arm
from outlast.reporting.tokens_by_share import tokens_figure, tokens_finding
from outlast.runs.analyses import RetrievingHeads

FORMS = pytest.mark.parametrize("form", [WIDE, NARROW], ids=lambda form: form.name)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write_run(tmp_path / "run", label="hybrid", seeds=(0, 1, 2), until=100)
    write_analyses(folder, seeds=(0, 1, 2), toward="other-dat")
    return folder


def arm_of(folder: Path) -> ArmSummary:
    (study,) = read([folder])
    return summarise_arm(study.arms[0])


def rows_of(folder: Path, name: str, **wanted: object) -> list[dict[str, Any]]:
    rows = json.loads((folder / "analysis" / f"{name}.json").read_text())["rows"]
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def panels(figure: HoverFigure | None) -> dict[str, Axes]:
    assert figure is not None
    titled = {ax.get_title(loc="left"): ax for ax in figure.axes}
    return {title.replace("\n", " "): ax for title, ax in titled.items() if title}


def key_of(figure: HoverFigure | None) -> list[str]:
    assert figure is not None
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def lines(ax: Axes, dashed: bool) -> list[list[float]]:
    drawn = [line for line in ax.lines if (line.get_linestyle() == "--") == dashed]
    return [[float(y) for y in line.get_ydata()] for line in drawn]


@FORMS
def test_law_of_the_best_head_is_dashed_beside_its_weight(run: Path, form: Form) -> None:
    figure = analysis_figure([arm_of(run)], form)
    ax = panels(figure)["weight on the right token"]
    expected = [
        fmean(row["law"] for row in rows_of(run, "sharpness", head=1, multiple=multiple))
        for multiple in (1, 3, 10)
    ]
    (law,) = lines(ax, dashed=True)
    assert law == pytest.approx(expected)
    assert [y / 0.8 for y in law] in [pytest.approx(ys) for ys in lines(ax, dashed=False)]
    assert {to_hex(line.get_color()) for line in ax.lines if line.get_linestyle() == "--"} == {
        to_hex(ax.lines[-1].get_color())
    }
    assert "law of softmax" in key_of(figure)


@FORMS
def test_covariance_is_of_the_head_with_the_largest_margin(run: Path, form: Form) -> None:
    shown = panels(analysis_figure([arm_of(run)], form))
    for title, feature, column in (
        ("margin that matches identity", "identity", "identity_share"),
        ("scores that match the place", "position", "variance_share"),
    ):
        wanted = {"head": 1, "feature": feature}
        expected = [
            fmean(row[column] for row in rows_of(run, "covariance", **wanted, multiple=multiple))
            for multiple in (1, 3, 10)
        ]
        assert expected in [pytest.approx(ys) for ys in lines(shown[title], dashed=False)]
    low, _ = shown["scores that match the place"].get_ylim()
    assert -0.2 < low < -0.1  # a share below 0 is in sight
    assert shown["margin that matches identity"].get_ylim() == (0, 1.02)


@FORMS
def test_entropy_and_kept_keys_are_shares_of_the_sharpest_head(run: Path, form: Form) -> None:
    shown = panels(analysis_figure([arm_of(run)], form))
    entropies = [2 / math.log(20 * multiple) for multiple in (1, 3, 10)]
    assert entropies in [pytest.approx(ys) for ys in lines(shown["entropy of the weights"], False)]
    assert [0.3] * 3 in [pytest.approx(ys) for ys in lines(shown["keys kept"], dashed=False)]


def test_kept_keys_are_of_arms_that_drop_some(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", label="softmax", seeds=(0, 1, 2), until=100)
    write_analyses(other, seeds=(0, 1, 2))
    path = other / "analysis/sharpness.json"
    table = json.loads(path.read_text())
    for row in table["rows"]:
        row["kept"] = 0.95 * row["keys"]  # the mean of some answers beside the median
    path.write_text(json.dumps(table))
    assert "keys kept" not in panels(analysis_figure([arm_of(other)], WIDE))
    both = analysis_figure([arm_of(run), arm_of(other)], WIDE)
    assert both is not None
    kept = panels(both)["keys kept"]
    assert {p.arm for p in both.hover_points if p.ax is kept} == {"hybrid"}


def test_figure_without_law_and_covariance_does_not_speak_of_them(run: Path) -> None:
    arm = arm_of(run)
    of_sharpness = LAW_LEGEND + ENTROPY_LEGEND + KEPT_LEGEND
    assert analysis_legend([arm]) == of_sharpness + COVARIANCE_LEGEND
    (run / "analysis/covariance.json").unlink()
    assert analysis_legend([arm]) == of_sharpness
    gone = {"law": None, "entropy": None, "kept": None}
    rows = [row | gone for row in rows_of(run, "sharpness")]
    table = {"format": 2, "outlast": "0.1.0", "analysis": "sharpness", "rows": rows}
    (run / "analysis/sharpness.json").write_text(json.dumps(table))
    assert analysis_legend([arm]) == ""
    figure = analysis_figure([arm], WIDE)
    assert list(panels(figure)) == ["keys read by a probe", "weight on the right token"]
    assert "law of softmax" not in key_of(figure)


@FORMS
def test_tokens_have_a_panel_for_each_length_by_share(run: Path, form: Form) -> None:
    figure = tokens_figure([arm_of(run)], form)
    shown = panels(figure)
    assert list(shown) == ["at 1×", "at 3×"]
    ax = shown["at 3×"]
    assert [label.get_text() for label in ax.get_xticklabels()] == [
        "5 %", "10 %", "25 %", "50 %", "100 %",
    ]  # fmt: skip
    wanted = {"multiple": 3, "ranking": "answers"}
    expected = [
        fmean(row["exact"] for row in rows_of(run, "token-filter", **wanted, share=share))
        for share in (0.05, 0.1, 0.25, 0.5, 1.0)
    ]
    assert expected in [pytest.approx(ys) for ys in lines(ax, dashed=False)]
    assert figure is not None
    assert {point.place for point in figure.hover_points} >= {"5 %", "100 %"}
    assert "trained lengths" not in key_of(figure)


@FORMS
def test_keys_have_a_panel_for_each_layer_by_step(run: Path, form: Form) -> None:
    shown = panels(keys_figure([arm_of(run)], form))
    assert list(shown) == ["attention layer 1, at 1×", "attention layer 2, at 1×"]
    wanted = {"layer": "5.attention", "bin": None, "multiple": 1}
    expected = [
        fmean(row["accuracy"] for row in rows_of(run, "key-probe", **wanted, step=step))
        for step in (0, 800, None)
    ]
    ax = shown["attention layer 2, at 1×"]
    assert expected in [pytest.approx(ys) for ys in lines(ax, dashed=False)]
    assert max(float(x) for line in ax.lines for x in line.get_xdata()) == 2500  # the end


def test_keys_of_the_end_alone_have_no_figure_by_step(run: Path) -> None:
    rows = rows_of(run, "key-probe", step=None)
    table = {"format": 2, "outlast": "0.1.0", "analysis": "key-probe", "rows": rows}
    (run / "analysis/key-probe.json").write_text(json.dumps(table))
    assert keys_figure([arm_of(run)], WIDE) is None


def test_tokens_caption_has_the_smallest_share_that_suffices(run: Path) -> None:
    assert tokens_finding([arm_of(run)]) == (
        "At 1×, the smallest share of tokens that costs at most one point: “hybrid” 25 % (with all "
        "tokens 99.0 % right)."
    )


def write_anatomy(run: Path, tokens: int, cause: str = "key", **more: object) -> None:
    """A table in which one cause, and of another one fewer answers, have an example."""
    example = {
        "words": [f"k{i}" for i in range(tokens)], "source": 1, "expected": "5", "given": "<3>",
        "read_from": "1.lstm hidden",
        "state": [i % 2 if i else None for i in range(tokens)],
        "read": [(i % 2 if i != 3 else 0) if i else None for i in range(tokens)],
        "heads": {"2.attention, head 0": [0.0, 0.75, 0.001] + [0.0] * (tokens - 4) + [0.249]},
        **more,
    }  # fmt: skip
    row = {"seed": 0, "step": None, "multiple": 3, "length": 30, "part": "recall"}
    rows = [
        {**row, "cause": "state", "share": 0.1, "count": 1, "example": json.dumps(example)},
        {**row, "cause": cause, "share": 0.9, "count": 9, "example": json.dumps(example)},
    ]
    table = {"format": 2, "outlast": "0.1.0", "analysis": "anatomy", "rows": rows}
    (run / "analysis/anatomy.json").write_text(json.dumps(table))


def test_still_shows_tokens_states_attention_and_answer(run: Path, tmp_path: Path) -> None:
    write_anatomy(run, 6)
    still = still_of(arm_of(run))
    assert still is not None
    assert still.finding == (
        "“hybrid”, seed 0, length 30 (3×), recall: wrong key attended. The model says <3>, "
        "expected is 5."
    )
    (piece,) = still.pieces
    lines = {row.name: row.cells for row in piece.rows}
    assert [cell.note for cell in lines["token"]] == ["", "source", "", "", "", "asked"]
    assert [cell.text for cell in lines["true state"]] == ["", "1", "0", "1", "0", "1"]
    assert [cell.tone for cell in lines["state read"]] == ["", "", "", "bad", "", ""]
    weights = lines["2.attention, head 0"]
    assert [cell.text for cell in weights] == ["–", "0.75", "", "–", "–", "0.25"]
    assert weights[1].shade == pytest.approx(0.45)
    text = (report([run], tmp_path / "out").parent / "index.html").read_text()
    assert "One wrong answer of each run" in text
    assert "The model says &lt;3&gt;" in text


def test_still_marks_the_heads_that_retrieve_and_where_they_look(run: Path) -> None:
    heads = {"layer": "2.attention", "heads": [0], "offset": 1, "weight": 0.5}
    write_anatomy(run, 6, retrieving=heads, attended=4)
    still = still_of(arm_of(run))
    assert still is not None
    assert "the retrieving head 0 of layer 2.attention looks most at token 5" in still.finding
    assert "at the training length 0.50 of the best one's weight is on the right" in still.legend
    (piece,) = still.pieces
    lines = {row.name: row.cells for row in piece.rows}
    assert "2.attention, head 0, retrieves" in lines
    notes = [cell.note for cell in lines["token"]]
    assert notes == ["", "source", "", "", "looked at", "asked"]


@pytest.mark.parametrize(
    ("cause", "heads", "words"),
    [
        ("state", [0], "state wrong"),
        ("key", [0], "wrong key attended: WHO 0 of layer 2.attention looks most at token 8, the "
         "answer is at token 3 or carried to the one after it"),
        ("unfocused", [0], "attention spread out: WHO 0 of layer 2.attention looks most at token "
         "8, but it stands out too little"),
        ("value", [1, 2], "right key, value wrong: WHOs 1, 2 of layer 2.attention together look "
         "most at the right token 8"),
    ],
)  # fmt: skip
def test_cause_says_which_heads_look_where(cause: str, heads: list[int], words: str) -> None:
    retrieving = RetrievingHeads(layer="2.attention", heads=heads, offset=1, weight=0.5)
    words = words.replace("WHO", "the retrieving head")
    assert cause_sentence(cause, retrieving, 7, 2) == words
    assert cause_sentence(cause, None, None, 2) == words.split(":")[0]


def test_still_of_a_long_sequence_skips_what_does_not_matter(run: Path) -> None:
    write_anatomy(run, 150)
    still = still_of(arm_of(run))
    assert still is not None
    assert [(piece.first, piece.skipped) for piece in still.pieces] == [(0, 0), (20, 120), (140, 0)]
    assert len(still.pieces[-1].rows[0].cells) == 10


def test_run_whose_table_has_no_example_has_no_still(run: Path, tmp_path: Path) -> None:
    assert still_of(arm_of(run)) is None
    write_anatomy(run, 6)
    path = run / "analysis/anatomy.json"
    table = json.loads(path.read_text())
    for row in table["rows"]:
        del row["example"]
    path.write_text(json.dumps(table))
    assert still_of(arm_of(run)) is None
    assert "One wrong answer" not in (report([run], tmp_path / "out")).read_text()


def test_damaged_example_names_its_file(run: Path) -> None:
    write_anatomy(run, 6)
    path = run / "analysis/anatomy.json"
    path.write_text(path.read_text().replace("given", "taken"))
    with pytest.raises(RunFolderError, match=r"anatomy\.json: example: .*given"):
        still_of(arm_of(run))


def test_ablations_have_a_table_of_arm_ablation_and_part(run: Path, tmp_path: Path) -> None:
    common = {"step": None, "head": None, "layer": None, "multiple": 3}
    rows = [
        {**common, "seed": 0, "ablation": "whole", "part": "joint", "exact": 1.0},
        {**common, "seed": 1, "ablation": "whole", "part": "joint", "exact": 0.5},
        {**common, "seed": 0, "ablation": "whole", "part": "running", "exact": 0.5},
        {**common, "seed": 0, "ablation": "attention off", "part": "recall", "exact": 0.0},
        {**common, "seed": 0, "ablation": "attention off", "part": "recall", "exact": 0.5}
        | {"multiple": 10},
        {**common, "seed": 0, "ablation": "layer off", "part": "joint", "exact": 0.125}
        | {"layer": "2.attention"},
        {**common, "seed": 0, "ablation": "layer off", "part": "joint", "exact": 0.25}
        | {"layer": "1.lstm"},
        {**common, "seed": 1, "ablation": "layer off", "part": "joint", "exact": 0.75}
        | {"layer": "3.mlp"},  # older tables have none: here that of seed 0
        {**common, "seed": 0, "ablation": "head off", "part": "joint", "exact": 0.25}
        | {"layer": "2.attention", "head": 0},
    ]
    table = {"format": 2, "outlast": "0.1.0", "analysis": "ablation", "rows": rows}
    (run / "analysis/ablation.json").write_text(json.dumps(table))
    shown = ablation_table([arm_of(run)])
    assert shown is not None
    assert shown.columns == ("arm", "ablation", "part", "3×", "10×")
    assert [[" ".join(filter(None, (c.text, c.note))) for c in row] for row in shown.rows] == [
        ["hybrid", "whole", "joint", "75.0 [50.0, 100]", "–"],
        ["hybrid", "attention off", "recall", "0", "50.0"],
    ]
    layers = layers_table([arm_of(run)])
    assert layers is not None
    assert layers.columns == ("arm", "layer", "head", "part", "3×")
    assert [[cell.text for cell in row] for row in layers.rows] == [
        ["hybrid", "2.attention", "all", "joint", "12.5"],
        ["hybrid", "2.attention", "0", "joint", "25.0"],
        ["hybrid", "1.lstm", "all", "joint", "25.0"],
        ["hybrid", "3.mlp", "all", "joint", "75.0"],
    ]
    home = report([run], tmp_path / "out").parent
    html = (home / "index.html").read_text()
    assert 'id="ablation-table"' in html
    assert 'id="layers-table"' in html
    assert "| hybrid | 2.attention | 0 | joint | 25.0 |" in (home / "report.md").read_text()
    assert "| hybrid | attention off | recall | 0 | 50.0 |" in (home / "report.md").read_text()


@FORMS
def test_gradients_have_four_panels_with_labels(run: Path, form: Form) -> None:
    shown = panels(gradients_figure([arm_of(run)], form))
    assert {title: ax.get_ylabel() for title, ax in shown.items()} == {
        "attention and direct, cosine": "cosine",
        "attention over direct, norms": "ratio of norms",
        "attention to solution, cosine": "cosine",
        "direct to solution, cosine": "cosine",
    }
    ratio = shown["attention over direct, norms"]
    assert ratio.get_yscale() == "log"
    expected = [
        fmean(row["attention_norm"] / row["direct_norm"] for row in whole_rows(run, step))
        for step in (0, 800, 1600, 2500)
    ]
    assert expected in [pytest.approx(ys) for ys in lines(ratio, dashed=False)]


def whole_rows(folder: Path, step: int) -> list[dict[str, Any]]:
    return rows_of(folder, "gradients", layer="all", part="all", step=step)


def test_gradients_table_has_mean_lowest_and_highest_seed(run: Path) -> None:
    table = gradients_table([arm_of(run)])
    assert table is not None
    assert table.columns == ("arm", "measure", "step 0", "step 800", "step 1,600", "step 2,500")
    assert {(row[0].text, row[0].note) for row in table.rows} == {
        ("hybrid", "(solution: other-dat)")
    }
    by_measure = {row[1].text: row[2:] for row in table.rows}
    values = [row["direct_to_final"] for row in whole_rows(run, 800)]
    cell = by_measure["direct to solution, cosine"][1]
    assert (cell.text, cell.note) == (
        f"{fmean(values):.3f}".replace("-", "−"),
        f"[{min(values):.3f}, {max(values):.3f}]".replace("-", "−"),
    )
    ratios = [row["attention_norm"] / row["direct_norm"] for row in whole_rows(run, 0)]
    assert by_measure["attention over direct, norms"][0].text == f"{fmean(ratios):.2g}"


def test_gradients_table_shows_few_steps_and_gaps(run: Path) -> None:
    whole = {"layer": "all", "part": "all", "direct_norm": 1.0, "cosine": None}
    rows = [
        {"seed": 0, "step": step, **whole, "attention_norm": float(step), "direct_to_final": final}
        for step, final in ((step, None if step else -0.001) for step in range(0, 2000, 100))
    ]
    table = {"format": 2, "outlast": "0.1.0", "analysis": "gradients", "rows": rows}
    (run / "analysis/gradients.json").write_text(json.dumps(table))
    shown = gradients_table([arm_of(run)])
    assert shown is not None
    assert len(shown.columns) == 2 + 8
    assert shown.columns[2] == "step 0"
    assert shown.columns[-1] == "step 1,900"
    ratio, direct = shown.rows
    assert [cell.text for cell in ratio][1:4] == ["attention over direct, norms", "0", "300"]
    assert ratio[-1].text == "1,900"
    assert [cell.text for cell in direct][1:4] == ["direct to solution, cosine", "−0.001", "–"]
    assert gradients_figure([arm_of(run)], WIDE) is not None


def test_gradients_table_averages_each_phase_for_itself(run: Path) -> None:
    whole = {"layer": "all", "part": "all", "direct_norm": 1.0, "attention_norm": None}
    rows = [
        {"seed": seed, "step": step, **whole, "phase": phase, "cosine": cosine}
        for seed, step, phase, cosine in (
            (0, 0, 1, 0.0), (1, 0, 1, 0.0), (0, 9, 1, 0.0), (1, 9, 2, 0.5), (2, 0, 1, 0.0),
            (2, 9, 2, 0.7),
        )
    ]  # fmt: skip
    table = {"format": 2, "outlast": "0.1.0", "analysis": "gradients", "rows": rows}
    (run / "analysis/gradients.json").write_text(json.dumps(table))
    shown = gradients_table([arm_of(run)])
    assert shown is not None
    assert {row[1].text: [(c.text, c.note, c.aside) for c in row[2:]] for row in shown.rows} == {
        "attention and direct, cosine, phase 1": [
            ("0.00", "[0.00, 0.00]", ""), ("0.00", "", "1 of 3 seeds"),
        ],
        "attention and direct, cosine, phase 2": [
            ("–", "", ""), ("0.60", "[0.50, 0.70]", "2 of 3 seeds"),
        ],
    }  # fmt: skip


def test_page_and_markdown_have_the_figures_and_the_table(run: Path, tmp_path: Path) -> None:
    home = report([run], tmp_path / "out").parent
    text = (home / "index.html").read_text()
    for name in ("analyses", "keys", "tokens", "gradients"):
        assert f'<figure id="figure-{name}">' in text
        assert f'href="#{name}"' in text
    assert 'id="gradients-table"' in text
    assert "(solution: other-dat)" in text
    assert "What <code>outlast analyse</code> measured" in text
    assert "`" not in re.sub(r"<(style|pre)[ >].*?</\1>", "", text, flags=re.S)
    markdown = (home / "report.md").read_text()
    assert "## Gradients through attention (mean, lowest and highest seed)" in markdown
    row = re.search(r"^\| hybrid .* attention to solution, cosine \| (.*) \|$", markdown, re.M)
    assert row is not None
    assert len(row[1].split(" | ")) == 4
