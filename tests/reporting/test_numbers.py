"""Numbers, claims and tables, worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_folders import claim, write_run, write_study

from outlast.reporting import formatting
from outlast.reporting.accuracy_by_length import accuracy_figure
from outlast.reporting.claims import headline, judge, tally
from outlast.reporting.groups import MOST, grouped
from outlast.reporting.load import read
from outlast.reporting.page import report
from outlast.reporting.panels import WIDE
from outlast.reporting.summary import ArmSummary, summarise_arm
from outlast.reporting.tables import (
    Cell,
    Table,
    claims_table,
    plain,
    results_table,
    seeds_table,
    setup_table,
)

without_figures = pytest.mark.usefixtures("no_figures")


def set_joint(folder: Path, values: dict[float, list[float | None]]) -> Path:
    """Replace the results by these joint accuracies: multiple -> one value a seed."""
    rows = [
        {
            "seed": seed,
            "variant": None,
            "length": 10 * m,
            "multiple": m,
            "exact": None if value is None else {"joint": value},
            "answers": None,
            "reason": "too long" if value is None else None,
        }
        for m, column in values.items()
        for seed, value in enumerate(column)
    ]
    (folder / "results.json").write_text(json.dumps({"format": 1, "sequences": 2048, "rows": rows}))
    return folder


def summaries(tmp_path: Path, claims: list[dict[str, Any]]) -> tuple[list[ArmSummary], Any]:
    base = tmp_path / "study"
    good = {1: [1.0, 1.0], 3: [0.96, 0.84], 4: [None, None]}
    set_joint(write_run(base / "a", seeds=(0, 1)), good)
    set_joint(write_run(base / "b", seeds=(0, 1), methods=()), {1: [1.0, 1.0], 3: [0.2, 0.4]})
    arms = [("a", "A", "g"), ("b", "B", "g"), ("c", "C", "g")]
    study = read([write_study(base, arms, claims)])[0]
    return [summarise_arm(arm) for arm in study.arms], study


@pytest.mark.parametrize(
    ("asked", "verdict", "measured", "expected"),
    [
        (claim("", "a", low=0.9), "holds", "90 %", "≥ 90 %"),
        (claim("", "a", "min", low=0.9), "does not hold", "84 %", "≥ 90 %"),
        (claim("", "a", "max", low=0.5, high=0.95), "does not hold", "96 %", "50 to 95 %"),
        (claim("", "b", high=0.5), "holds", "30 %", "≤ 50 %"),
        (claim("", "a", "success", low=1.0), "does not hold", "50 % of seeds", "100 % of seeds"),
        (claim("", "a", "difference", versus="b", low=0.6), "holds", "60 points", "≥ 60 points"),
        (claim("", "a", "difference", versus="c", low=0.6), "not measured", "–", "≥ 60 points"),
        (claim("", "c", low=0.9), "not measured", "–", "≥ 90 %"),
        (claim("", "gone", low=0.9), "not measured", "–", "≥ 90 %"),
        (claim("", "a", multiple=4, low=0.9), "not measured", "–", "≥ 90 %"),
        (claim("", "a", part="state", low=0.9), "not measured", "–", "≥ 90 %"),
        (claim("", "a", low=0.9001), "does not hold", "90.00 %", "≥ 90.01 %"),
    ],
)
def test_claim_has_its_verdict_value_and_band(
    tmp_path: Path, asked: dict[str, Any], verdict: str, measured: str, expected: str
) -> None:
    arms, study = summaries(tmp_path, [asked])
    judged = judge(study.record.claims, arms)[0]
    assert (judged.verdict, judged.measured, judged.expected) == (verdict, measured, expected)


def test_claim_is_open_if_the_claim_it_rests_on_fails(tmp_path: Path) -> None:
    good, bad = claim("good", "a", low=0.9), claim("bad", "b", low=0.9)
    resting = [
        claim(f"rests on {t}", "a", low=0.5, condition=t) for t in ("good", "bad", "nowhere")
    ]
    arms, study = summaries(tmp_path, [good, bad, *resting])
    verdicts = judge(study.record.claims, arms)
    assert [v.verdict for v in verdicts[2:]] == ["holds", "cannot say", "holds"]
    assert tally(verdicts) == "3 of 5 claims hold, 1 cannot be judged"


def test_condition_of_an_older_study_is_read_by_its_older_name(tmp_path: Path) -> None:
    bad, resting = claim("bad", "b", low=0.9), claim("resting", "a", low=0.5, given="bad")
    arms, study = summaries(tmp_path, [bad, resting])
    assert [claim.condition for claim in study.record.claims] == [None, "bad"]
    assert judge(study.record.claims, arms)[1].verdict == "cannot say"


@without_figures
def test_claim_stated_after_the_numbers_is_marked_and_explained(tmp_path: Path) -> None:
    asked = [
        claim("first", "a", low=0.9, stated="before"),
        claim("late", "a", low=0.8, stated="after"),
        claim("late and wrong", "a", low=0.99, stated="after"),
        claim("from an older file", "a", low=0.9),
    ]
    arms, study = summaries(tmp_path, asked)
    verdicts = judge(study.record.claims, arms)
    marks = [row[1].note for row in claims_table(verdicts).rows]
    assert marks == ["", *["(stated after the numbers)"] * 2, ""]
    assert tally(verdicts) == "3 of 4 claims hold (1 of them stated after the numbers)"
    assert tally(verdicts[1:2]) == "the one claim holds (stated after the numbers)"
    page = report([tmp_path / "study"], tmp_path / "out")
    for text in (page.read_text(), (tmp_path / "out" / "report.md").read_text()):
        assert text.count("(stated after the numbers)") == 2
        assert "Fresh seeds would have to test it." in text
        assert "(1 of them stated after the numbers)" in text
    written = json.loads((tmp_path / "out" / "results.json").read_text())["studies"][0]["claims"]
    assert [claim["stated"] for claim in written] == ["before", "after", "after", None]


@without_figures
def test_page_does_not_explain_a_mark_that_no_claim_has(tmp_path: Path) -> None:
    _, study = summaries(tmp_path, [claim("first", "a", low=0.9, stated="before")])
    assert study.record.claims[0].stated == "before"
    page = report([tmp_path / "study"], tmp_path / "out").read_text()
    assert "stated after" not in page.lower()


def park(folder: Path, seeds: tuple[int, ...] = (0, 1)) -> None:
    """Both seeds, as a run does that has diverged; or some alone."""
    with (folder / "metrics.jsonl").open("a") as file:
        for seed in seeds:
            event = {"step": 50, "seed": seed, "event": "parked", "since": 0}
            file.write(json.dumps(event) + "\n")


@pytest.mark.parametrize(
    ("asked", "verdict", "detail"),
    [
        (
            claim("", "b", high=0.5),
            "cannot say",
            "95 % interval [4.5, 89.0], every seed of B diverged",
        ),
        (
            claim("", "b", low=0.9),
            "does not hold",
            "95 % interval [4.5, 89.0], every seed of B diverged",
        ),
        (
            claim("", "a", "difference", versus="b", low=0.5),
            "cannot say",
            "90.0 − 30.0, every seed of B diverged",
        ),
        (claim("", "a", low=0.9), "holds", "95 % interval [14.2, 98.7]"),
    ],
)
def test_diverged_arm_makes_no_claim_hold(
    tmp_path: Path, asked: dict[str, Any], verdict: str, detail: str
) -> None:
    summaries(tmp_path, [asked])
    park(tmp_path / "study" / "b")
    study = read([tmp_path / "study"])[0]
    arms = [summarise_arm(arm) for arm in study.arms]
    assert [d.diverged for d in arms] == [False, True, False]
    (judged,) = judge(study.record.claims, arms)
    assert (judged.verdict, judged.detail) == (verdict, detail)
    assert "“B” 30.0 % (diverged)" in headline(arms, [])


def test_diverged_arm_is_not_named_as_best(tmp_path: Path) -> None:
    summaries(tmp_path, [])
    park(tmp_path / "study" / "a")
    arms = [summarise_arm(arm) for arm in read([tmp_path / "study"])[0].arms]
    said = headline(arms, [])
    assert said.startswith("At 3× the training length, “B” gets 30.0 %")
    assert said.endswith("“A” 90.0 % (diverged).")


def test_headline_has_the_key_numbers(tmp_path: Path) -> None:
    claims = [claim("", "a", low=0.9), claim("", "a", "difference", versus="b", low=0.6)]
    arms, study = summaries(tmp_path, [*claims, claim("", "c")])
    verdicts = judge(study.record.claims, arms)
    assert headline(arms, verdicts) == (
        "At 3× the training length, “A” gets 90.0 % of the sequences entirely right (84.0 to 96.0 "
        "over 2 seeds), “B” 30.0 % (20.0 to 40.0 over 2 seeds); 2 of 3 claims hold, 1 was not "
        "measured."
    )
    assert tally(verdicts[2:]) == "none of the claims has been measured"
    assert headline(arms[2:], []) == "Nothing has been evaluated yet."


@without_figures
def test_seeds_that_agree_still_have_an_interval(tmp_path: Path) -> None:
    folder = set_joint(write_run(tmp_path / "run", seeds=range(4)), {1: [1.0] * 4, 3: [1.0] * 4})
    arm = summarise_arm(read([folder])[0].arms[0])
    cell = results_table([arm]).rows[0][1]
    assert (cell.text, cell.note, cell.aside) == ("100", "[39.8, 100]", "4/4")
    assert headline([arm], []).endswith(
        "gets 100 % of the sequences entirely right (each of 4 seeds)."
    )
    page = report([folder], tmp_path / "out").read_text()
    assert "4 of 4 at 100 % give 39.8 to 100" in page
    assert "bootstrap over seeds" not in page


def test_unfinished_run_is_named_in_headline_claims_and_table(tmp_path: Path) -> None:
    _, study = summaries(tmp_path, [claim("", "a", low=0.9), claim("", "b", high=0.5)])
    results = tmp_path / "study" / "a" / "results.json"
    results.write_text(json.dumps({**json.loads(results.read_text()), "step": 600}))
    arms = [summarise_arm(arm) for arm in read([tmp_path / "study"])[0].arms]
    assert headline(arms, []) == (
        "At 3× the training length, “A” gets 90.0 % of the sequences entirely right (84.0 to 96.0 "
        "over 2 seeds, at step 600 of 2,500), “B” 30.0 % (20.0 to 40.0 over 2 seeds)."
    )
    details = [verdict.detail for verdict in judge(study.record.claims, arms)]
    assert details == [
        "95 % interval [14.2, 98.7], A at step 600 of 2,500",
        "95 % interval [4.5, 89.0]",
    ]
    table = setup_table(arms[:2])
    assert table.columns[-1] == "status"
    assert [row[-1].text for row in table.rows] == ["unfinished: step 600 of 2,500", "evaluated"]


def test_effective_length_and_cliff_of_the_mean(tmp_path: Path) -> None:
    arms, _ = summaries(tmp_path, [])
    a, b = arms[0].ladders[0], arms[1].ladders[0]
    assert formatting.effective(a, 0.9) == "3×"  # not "≥": 4x could not be tested
    assert formatting.effective(b, 0.9) == "1×"
    assert formatting.fall(b) == ("−70.0", "1× → 3×")


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "100"), (0.9999, "99.9"), (0.0, "0"), (0.0001, "0.1"), (0.9944, "99.4")],
)
def test_percentages_do_not_round_to_0_or_100(value: float, text: str) -> None:
    assert formatting.percent(value) == text


def test_phase_1_names_the_seeds_that_failed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", seeds=(0, 1, 2), failed=(2,))
    with (folder / "metrics.jsonl").open("a") as file:
        for event in ("restart", "not converged"):
            file.write(json.dumps({"step": 2000, "seed": 1, "event": event}) + "\n")
    arm = summarise_arm(read([folder])[0].arms[0])
    assert formatting.phase(arm.phase) == ("1 of 3 converged", "not: seeds 1, 2; 1 restart")
    assert [row[2].text for row in seeds_table([arm]).rows].count("not converged") == 2
    assert setup_table([arm]).columns[-1] == "phase 1"


@without_figures
@pytest.mark.parametrize("older", [False, True], ids=["recorded as scheduled", "as converged"])
@pytest.mark.parametrize("line", ["dat(mode=skip, switch=100)", "dat(switch=0.04)"])
def test_scheduled_switch_is_not_shown_as_converged(tmp_path: Path, line: str, older: bool) -> None:
    """Older runs recorded a scheduled switch as converged; the method's line tells."""
    folder = write_run(tmp_path / "run", seeds=(0, 1), methods=(line,), until=50)
    reason = {"converged": True} if older else {"reason": "schedule"}
    event = {"step": 100, "event": "switch", "method": "dat", "loss": 0.7}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(event | reason | {"seed": 0}) + "\n")
    arm = summarise_arm(read([folder])[0].arms[0])
    assert formatting.phase(arm.phase) == (
        "scheduled switch",
        "at step 100; no switch yet: seed 1",
    )
    assert [row[2].text for row in seeds_table([arm]).rows] == [
        "switched at step 100 (scheduled)",
        "no switch yet",
    ]
    assert "converged" not in " ".join(cell.text for cell in setup_table([arm]).rows[0])
    page = report([folder], tmp_path / "out").read_text()
    assert "switched at step 100 (scheduled)" in page
    (written,) = json.loads((tmp_path / "out" / "results.json").read_text())["studies"][0]["arms"]
    assert (written["phase1"]["converged"], written["phase1"]["scheduled"]) == ([], {"0": 100})


def test_older_run_scheduled_for_its_last_step_has_not_switched(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", seeds=(0,), methods=("dat(switch=2500)",), until=50)
    event = {"step": 2500, "seed": 0, "event": "switch", "method": "dat", "converged": True}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")
    assert summarise_arm(read([folder])[0].arms[0]).phase is None


def test_mean_over_a_parked_seed_is_noted_everywhere(tmp_path: Path) -> None:
    difference = claim("", "a", "difference", versus="b", low=0.6)
    summaries(tmp_path, [claim("", "a", low=0.9), difference, claim("", "b", high=0.5)])
    park(tmp_path / "study" / "a", (1,))
    study = read([tmp_path / "study"])[0]
    arms = [summarise_arm(arm) for arm in study.arms]
    assert headline(arms, []).endswith(
        "(84.0 to 96.0 over 2 seeds, 1 of them parked), “B” 30.0 % (20.0 to 40.0 over 2 seeds)."
    )
    notes = [row[3].note for row in claims_table(judge(study.record.claims, arms)).rows]
    assert notes == [
        "95 % interval [14.2, 98.7], 1 of 2 seeds of A parked, 2 seeds",
        "90.0 − 30.0, 1 of 2 seeds of A parked, 2 seeds",
        "95 % interval [4.5, 89.0], 2 seeds",
    ]
    notes = [row[0].note for row in results_table(arms).rows]
    assert notes == ["(1 of 2 seeds parked)", "", ""]


def test_parked_seed_does_not_count_as_waiting(tmp_path: Path) -> None:
    """One that was parked after its switch has had its phase 1."""
    folder = write_run(tmp_path / "run", seeds=(0, 1, 2, 3))
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    switched = [
        line
        for line in lines
        if json.loads(line).get("event") != "switch" or json.loads(line)["seed"] < 2
    ]
    (folder / "metrics.jsonl").write_text("".join(switched))
    park(folder, (1, 2))
    arm = summarise_arm(read([folder])[0].arms[0])
    assert formatting.phase(arm.phase) == (
        "2 of 4 converged",
        "no switch yet: seed 3; parked: seed 2",
    )
    phases = {row[1].text: row[2].text for row in seeds_table([arm]).rows}
    assert phases == {
        "0": "converged",
        "1, parked at step 0": "converged",
        "2, parked at step 0": "parked",
        "3": "no switch yet",
    }


def test_many_arms_are_split_into_groups(tmp_path: Path) -> None:
    arms = [(f"a{i}", f"{'xy'[i % 2]} hybrid, role {i // 2}", "xy"[i % 2]) for i in range(10)]
    clear = [summarise_arm(arm) for arm in read([write_study(tmp_path / "s", arms, [])])[0].arms]
    groups = grouped(clear)
    assert [group.title for group in groups] == ["x", "y"]
    assert [a.index for a in groups[0].arms] == [a.index for a in groups[1].arms] == list(range(5))
    loose = [(f"a{i}", f"arm {i}", "") for i in range(16)]
    flat = grouped(
        [summarise_arm(a) for a in read([write_study(tmp_path / "t", loose, [])])[0].arms]
    )
    assert [len(group.arms) for group in flat] == [6, 6, 6]  # the first arm in each
    assert max(len(group.arms) for group in flat) <= MOST


def test_arms_of_different_tasks_do_not_share_a_panel(tmp_path: Path) -> None:
    arms = [(f"{task}-{scheme}", scheme, task) for task in ("copy", "recall") for scheme in "ab"]
    for name, label, task in arms:
        write_run(tmp_path / name, label, task=task)
    study = read([write_study(tmp_path, arms, [])])[0]
    groups = grouped([summarise_arm(arm) for arm in study.arms])
    assert [group.title for group in groups] == ["copy", "recall"]
    assert [[a.label for a in group.arms] for group in groups] == [["a", "b"], ["a", "b"]]


def test_chance_is_drawn_only_for_the_trained_version(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", variants=(None, "sparse"))
    figure = accuracy_figure([summarise_arm(read([folder])[0].arms[0])], ["joint"], WIDE)
    assert figure is not None
    drawn = {
        ax.get_title(loc="left") or ax.get_title(): [list(line.get_ydata()) for line in ax.lines]
        for ax in figure.axes
    }
    assert {title: [0.03125] * 2 in lines for title, lines in drawn.items()} == {
        "plain": True,
        "sparse": False,
    }


def test_chance_is_drawn_only_over_trained_lengths(tmp_path: Path) -> None:
    """Longer sequences may ask for more answers, and then a guess is right less often."""
    figure = accuracy_figure(
        [summarise_arm(read([write_run(tmp_path / "run")])[0].arms[0])], ["joint"], WIDE
    )
    assert figure is not None
    (ax,) = figure.axes
    (line,) = [line for line in ax.lines if list(line.get_ydata()) == [0.03125] * 2]
    assert list(line.get_xdata()) == [ax.get_xlim()[0], 1.0]
    assert any("chance at 1×: 3" in text.get_text() for text in ax.texts)


def test_band_goes_from_the_worst_to_the_best_seed(tmp_path: Path) -> None:
    values: dict[float, list[float | None]] = {1: [1.0, 0.9, 0.95], 3: [0.2, 0.7, 0.4]}
    folder = set_joint(write_run(tmp_path / "run", seeds=range(3)), values)
    figure = accuracy_figure([summarise_arm(read([folder])[0].arms[0])], ["joint"], WIDE)
    assert figure is not None
    (band,) = figure.axes[0].collections
    corners = {tuple(corner) for path in band.get_paths() for corner in path.vertices.tolist()}
    assert corners == {(1, 0.9), (1, 1.0), (3, 0.2), (3, 0.7)}


def test_markdown_tables_are_escaped() -> None:
    table = Table(("arm",), ((Cell("a | b <script> *x* $y$"),),))
    assert table.markdown.splitlines()[2] == r"| a \| b &lt;script&gt; \*x\* \$y\$ |"
    assert plain("two\nlines") == "two lines"


def test_neighbouring_seeds_are_written_as_a_range() -> None:
    assert formatting.numbered([3, 0, 1, 2, 7]) == "0–3, 7"
    assert formatting.numbered([0, 1]) == "0, 1"
