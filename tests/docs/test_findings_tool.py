"""The table and the figure of a page of findings, from a folder of a study."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from docs_site import DOCS, ROOT
from docs_site.code_blocks import read_blocks
from findings import page_table
from findings.__main__ import command_parser
from findings.analysis_table import write_analyses
from findings.causes_figure import draw_causes, read_shares
from findings.copy_errors import _ambiguous
from findings.gradients_figure import MEASURES, draw_gradients, mean_curve, read_gradients
from findings.page_figure import draw_table
from findings.page_table import Cell
from findings.seed_figure import draw
from findings.seed_table import Row, join, read, short, write


@pytest.fixture
def study(tmp_path: Path) -> Path:
    shares = {3: (1.0, 0.25), 7: (0.99999, 0.0)}
    rows = [
        {"multiple": times, "length": 5 * times, "seed": seed, "exact": {"joint": share[index]}}
        for seed, share in shares.items()
        for index, times in enumerate((1, 3))
    ]
    rows.append(rows[0] | {"variant": "dense", "exact": {"joint": 0.5}})
    rows.append(rows[2] | {"variant": "dense", "exact": None})
    (tmp_path / "dat").mkdir()
    (tmp_path / "dat" / "results.json").write_text(json.dumps({"rows": rows}))
    switches = [{"step": step, "seed": 7, "event": "switch", "method": "dat"} for step in (50, 450)]
    lines = "".join(f"{json.dumps(line)}\n" for line in switches)
    (tmp_path / "dat" / "metrics.jsonl").write_text(lines)
    arms = [{"name": "dat"}, {"name": "not-run"}]
    (tmp_path / "study.json").write_text(json.dumps({"arms": arms}))
    return tmp_path


def test_table_has_every_seed_by_its_name_and_is_read_back(study: Path) -> None:
    write([study], study / "seeds.csv")
    assert (study / "seeds.csv").read_text().splitlines() == [
        "arm,variant,times,items,part,seed_3,seed_7",
        "dat,,1,5,joint,1,0.999990",
        "dat,,3,15,joint,0.25,0",
        "dat,dense,1,5,joint,0.5,",
        "dat,,0,0,switch step,,450",
    ]
    first, second, dense, switch = read(study / "seeds.csv")
    assert (switch.part, switch.seeds) == ("switch step", {7: 450})
    assert first == Row("dat", "", 1, 5, "joint", {3: 1.0, 7: 0.99999})
    assert second.seeds == {3: 0.25, 7: 0.0}
    assert (dense.variant, dense.seeds) == ("dense", {3: 0.5})
    write([study, study], study / "twice.csv")
    assert (study / "twice.csv").read_text() == (study / "seeds.csv").read_text()
    more = Row("dat", "", 1, 5, "joint", {8: 0.75})
    assert join([first, second, more])[0] == Row(
        "dat", "", 1, 5, "joint", {3: 1, 7: 0.99999, 8: 0.75}
    )
    with pytest.raises(SystemExit, match="expected the folder of a study"):
        write([study / "dat"], study / "other.csv")


def test_share_that_is_not_quite_all_does_not_look_like_it() -> None:
    assert [short(share) for share in (1.0, 0.99996, 0.5, 0.00004, 0.0)] == [
        "1", "0.999960", "0.5", "0.000040", "0",
    ]  # fmt: skip


def test_figure_shows_the_arms_that_match_and_names_what_there_is(tmp_path: Path) -> None:
    rows = [Row(arm, "", 3, 15, "joint", {0: 0.1, 1: 1.0}) for arm in ("dat", "joint")]
    draw(rows, ["joint", "d*"], [3], "joint", tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match="arms=jiont: expected one of dat, joint"):
        draw(rows, ["jiont"], [3], "joint", tmp_path / "other.png")
    with pytest.raises(SystemExit, match="times=7, part=joint: expected one of 3"):
        draw(rows, ["joint"], [7], "joint", tmp_path / "other.png")
    with pytest.raises(SystemExit, match="labels: 1 for 2 arms; give one for each arm"):
        draw(rows, ["*"], [3], "joint", tmp_path / "other.png", ["delayed"])
    assert not (tmp_path / "other.png").exists()


PAGE = """Words.
| | `1 x` | lr |
|---|---|---|
| no | 1 | 2 |

| outputs | lr | **steps** | share |
|---|---|---|---|
| **10** | 1e-3 | – 1050 900 | 0.5 [0.1, 0.9] |
| 1,036 | 1e-3 | – – – | 1 [1, 1] |
"""


def test_table_of_a_page_is_read_and_drawn(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    table = page_table.read(page, ["steps", "share"])
    assert table.names == ("10", "1,036")
    assert table.cells[0] == (Cell((1050, 900), 1), Cell(spread=(0.5, 0.1, 0.9)))
    assert table.cells[1][0] == Cell((), 3)
    both = page_table.read(page, ["steps"], ["outputs", "lr"])
    assert both.names == ("outputs 10, lr 1e-3", "outputs 1,036, lr 1e-3")
    draw_table(both, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_table_that_a_page_has_not_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    with pytest.raises(SystemExit, match="expected a table with the columns step, lr"):
        page_table.read(page, ["step"], ["lr"])
    with pytest.raises(SystemExit, match="'1e-3 x': expected a number for each seed"):
        page_table.read_cell("1e-3 x")


def figure_commands() -> Iterator[Any]:
    for page in sorted((DOCS / "findings").glob("*.md")):
        for block in read_blocks(page):
            for words in block.commands() if block.language == "bash" else ():
                if {"figure", "page-figure"} & set(words) and "findings" in words:
                    yield pytest.param(page, words[words.index("findings") + 1 :], id=page.stem)


@pytest.mark.parametrize(("page", "words"), list(figure_commands()))
def test_command_on_a_page_draws_a_picture_of_it(page: Path, words: list[str]) -> None:
    command = command_parser().parse_args(words)
    picture = ROOT / command.png
    assert f"](../img/{picture.name})" in page.read_text(encoding="utf-8")
    assert picture.stat().st_size < 80_000
    if command.verb == "figure":
        arms = {row.arm for row in read(ROOT / command.csv)}
        assert set(command.arms) <= arms
        assert len(command.labels) in (0, len(command.arms))
    else:
        assert ROOT / command.page == page
        assert page_table.read(page, command.columns, command.names).names


def test_signs_are_ambiguous_where_the_same_ones_before_lead_elsewhere() -> None:
    line = [1, 2, 3, 1, 2, 4, 1, 2, 3]
    assert _ambiguous(line, 2) == [2, 5, 8]
    assert _ambiguous(line, 4) == []


def write_rows(study: Path, analysis: str, rows: list[dict[str, Any]]) -> None:
    """A table of one seed of the arm `dat`, at 1 x, at the end of training if no step is named."""
    common = {"seed": 3, "step": None, "multiple": 1}
    table = {
        "format": 2, "outlast": "0.1.0", "analysis": analysis, "settings": {},
        "rows": [common | row for row in rows],
    }  # fmt: skip
    path = study / "dat" / "analysis" / f"{analysis}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(table))


@pytest.fixture
def written(study: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """Writes rows of an analysis of the arm `dat`; the lines of the CSV file from `what` on."""

    def write_and_read(analysis: str, *rows: dict[str, Any]) -> list[list[str]]:
        write_rows(study, analysis, list(rows))
        write_analyses([study], study / "analyses.csv")
        head, *lines = csv.reader((study / "analyses.csv").read_text().splitlines())
        assert head == ["analysis", "arm", "what", "part", "step", "times", "seed_3"]
        assert {tuple(line[:2]) for line in lines} == {(analysis, "dat")}
        return [line[2:] for line in lines]

    monkeypatch.setattr(
        "findings.analysis_table.read_run", lambda _: SimpleNamespace(auxiliary=("running",))
    )
    return write_and_read


def test_ablations_of_single_layers_and_heads_are_written(
    written: Callable[..., list[list[str]]],
) -> None:
    def row(ablation: str, part: str, layer: str | None = None, **more: Any) -> dict[str, Any]:
        return {"ablation": ablation, "part": part, "layer": layer, "head": None} | more

    assert written(
        "ablation",
        row("whole", "running", exact=1),
        row("layer off", "state", "2.attention", exact=0.5),
        row("layer off", "running", "2.attention", exact=0.5),
        row("head off", "state", "2.attention", head=1, exact=0.25),
        row("items shuffled", "state", exact=1, unchanged=0.75),
    ) == [
        ["whole", "running", "", "1", "1"],
        ["layer off, 2.attention", "state", "", "1", "0.5"],
        ["head off, 2.attention, head 1", "state", "", "1", "0.25"],
        ["items shuffled", "state", "", "1", "1"],
        ["items shuffled, unchanged", "state", "", "1", "0.75"],
    ]


def test_one_head_of_a_layer_is_written_in_full_the_same_at_all_lengths(
    written: Callable[..., list[list[str]]],
) -> None:
    common = {"layer": "2.attention", "keys": 9, "entropy": 1.5, "margin": None, "law": 0.5}
    rows = [
        common | {"multiple": times, "head": head, "weight": weight, "kept": head + 2}
        for times, weights in ((1, (0.25, 0.75)), (3, (0.5, 0.125)))
        for head, weight in enumerate(weights)
    ]
    lines = written("sharpness", *rows)
    in_full = "2.attention, sharpest head, "
    assert [line for line in lines if not line[0].startswith(in_full)] == [
        ["2.attention, head 0", "", "", "1", "0.25"],
        ["2.attention, head 1", "", "", "1", "0.75"],
        ["2.attention, head 0", "", "", "3", "0.5"],
        ["2.attention, head 1", "", "", "3", "0.125"],
    ]
    expected = {"keys": "9", "weight": "0.125", "entropy": "1.5", "law": "0.5", "kept": "3"}
    far = [line for line in lines if line[0].startswith(in_full) and line[3] == "3"]
    assert {line[0].removeprefix(in_full): line[4] for line in far} == expected


def test_shares_of_the_logit_of_the_head_that_matches_are_written(
    written: Callable[..., list[list[str]]],
) -> None:
    rows = [
        {"layer": "2.attention", "token": "key", "head": head, "feature": feature}
        | {"identity_margin": head - 1.0, "position_margin": 0.5, "variance_share": share}
        for head in (0, 1)
        for feature, share in (("logit", 1.0), ("identity", 0.75), ("position", 0.25))
    ]
    what = "2.attention, key tokens, matching head"
    assert written("covariance", *rows) == [
        [f"{what}, margin for identity", "", "", "1", "0"],
        [f"{what}, margin for position", "", "", "1", "0.5"],
        [f"{what}, margin for identity by identity", "", "", "1", "0"],
        [f"{what}, share of logit by identity", "", "", "1", "0.75"],
        [f"{what}, share of logit by position", "", "", "1", "0.25"],
    ]


def test_accuracy_by_share_of_tokens_is_written(written: Callable[..., list[list[str]]]) -> None:
    common = {"ranking": "answers", "masked": "all", "share": 0.05, "exact": 0.5}
    rows = [common | {"part": part} for part in ("joint", "running")]
    what = "ranked by answers, masked in all, kept 0.05"
    assert written("token-filter", *rows) == [[what, "joint", "", "1", "0.5"]]


def test_probes_are_written_by_layer_and_step(written: Callable[..., list[list[str]]]) -> None:
    common = {"layer": "2.attention", "place": "stream", "bin": None, "accuracy": 0.5}
    rows = [common, common | {"step": 500}, common | {"bin": 0}]
    assert written("key-probe", *rows) == [
        ["2.attention, stream", "", "", "1", "0.5"],
        ["2.attention, stream", "", "500", "1", "0.5"],
    ]


def test_causes_are_drawn_from_a_table_of_analyses(tmp_path: Path) -> None:
    table = tmp_path / "analyses.csv"
    table.write_text(
        "analysis,arm,what,part,step,times,seed_0,seed_1\n"
        "anatomy,dat,right,state,,3,1,0.5\n"
        "anatomy,dat,state,state,,3,0,0.5\n"
        "anatomy,dat,key,recall,,3,0,0\n"
        "anatomy,dat,right,state,500,3,0,0\n"  # during training
        "ablation,dat,whole,state,,3,1,1\n"
    )
    state, recall = read_shares(table, "dat", "delayed")
    assert (state.label, state.part, state.seeds) == ("delayed", "state", 2)
    assert state.by_multiple == {3.0: {"right": 0.75, "state": 0.25}}
    assert recall.by_multiple == {3.0: {}}
    draw_causes(table, ["dat"], [], 2, tmp_path / "causes.png")
    assert (tmp_path / "causes.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match="no anatomy of joint"):
        draw_causes(table, ["joint"], [], 2, tmp_path / "other.png")
    with pytest.raises(SystemExit, match="labels: expected 1, one for each arm, not 2"):
        draw_causes(table, ["dat"], ["a", "b"], 2, tmp_path / "other.png")
    assert not (tmp_path / "other.png").exists()


def test_gradients_are_drawn_from_a_table_design_by_design(tmp_path: Path) -> None:
    table = tmp_path / "analysis.csv"
    lines = ["analysis,arm,what,part,step,times,seed_0,seed_1,seed_2"]
    for measure in MEASURES:
        lines += [f'gradients,big-dat,"{measure}",all,{step},,0.5,0.25,' for step in (0, 500)]
        lines.append(f'gradients,big-dat,"{measure}",all,650,,,,4')
        lines.append(f'gradients,big-dat,"{measure}",recall,0,,9,9,9')
    table.write_text("\n".join(lines) + "\n")
    curves = read_gradients(table, ["big-dat"])["big-dat"]["cosine"]
    assert curves == {
        "seed_0": {0: 0.5, 500: 0.5},
        "seed_1": {0: 0.25, 500: 0.25},
        "seed_2": {650: 4},
    }
    assert mean_curve(curves) == {0: 0.375, 500: 0.375}  # a step of one seed of three is no mean

    draw_gradients(table, ["big"], ["dat"], ["DAT"], tmp_path / "gradients.png")
    assert (tmp_path / "gradients.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match="no gradients of big-joint"):
        draw_gradients(table, ["big"], ["dat", "joint"], [], tmp_path / "other.png")
    with pytest.raises(SystemExit, match="labels: expected 1, one for each way, not 2"):
        draw_gradients(table, ["big"], ["dat"], ["a", "b"], tmp_path / "other.png")
    assert not (tmp_path / "other.png").exists()
