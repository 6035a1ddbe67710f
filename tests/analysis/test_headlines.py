"""What a terminal shows of a table."""

from __future__ import annotations

import pytest

from outlast.analysis.headlines import DETAILS, HEADLINES, headline, over_steps
from outlast.analysis.runs import ANALYSES
from outlast.runs.analyses import ROWS, Row


def covariance_rows(margins: list[tuple[float, float]], multiple: float = 1.0) -> list[Row]:
    """For each seed the margin of the part that matches identity, and of the whole logit."""
    common: Row = {"step": None, "multiple": multiple, "layer": "2.attention", "head": 0}
    return [
        {**common, "seed": seed, "token": "value", "feature": feature, "identity_margin": margin}
        | {"identity_share": part / whole}
        for seed, (part, whole) in enumerate(margins)
        for feature, margin in (("logit", whole), ("identity", part), ("bias", 9.0))
    ]


def test_every_analysis_has_a_headline_and_a_check_of_its_rows() -> None:
    assert set(HEADLINES) == set(ROWS) == set(ANALYSES)


def test_share_of_the_margin_is_one_of_mean_margins() -> None:
    rows = covariance_rows([(1.5, 2.0), (0.5, 0.01), (1.0, 1.99)])
    (line,) = headline(HEADLINES["covariance"], rows)
    assert line.names == ("2.attention", "0", "value")
    assert line.values == {1.0: [pytest.approx(3.0 / 4.0)]}


def test_share_is_above_one_if_another_part_works_against_it_and_the_title_says_so() -> None:
    (line,) = headline(HEADLINES["covariance"], covariance_rows([(3.0, 2.0)]))
    assert line.values == {1.0: [1.5]}
    assert "above 1 if another part opposes it" in HEADLINES["covariance"].title


def test_margin_near_zero_has_no_share() -> None:
    rows = covariance_rows([(0.5, 0.1), (0.3, -0.12)]) + covariance_rows([(1.0, 2.0)], 3.0)
    (line,) = headline(HEADLINES["covariance"], rows)
    assert line.values == {3.0: [0.5]}
    assert headline(HEADLINES["covariance"], covariance_rows([(0.5, 0.01)])) == []
    assert HEADLINES["covariance"].nothing == "no head has a margin of 0.1 or more for identity"


def test_task_without_keys_has_no_share_of_identity() -> None:
    row: Row = {"seed": 0, "step": None, "multiple": 1.0, "layer": "2.attention", "head": 0}
    assert headline(HEADLINES["covariance"], [{**row, "token": "any", "feature": "logit"}]) == []


def test_lines_are_named_by_columns() -> None:
    row: Row = {"seed": 0, "step": None, "multiple": 1.0, "part": "joint", "exact": 0.5}
    kept = [{**row, "ranking": "answers", "masked": "all", "share": share} for share in (1.0, 0.05)]
    assert [line.names for line in headline(HEADLINES["token-filter"], kept)] == [
        ("answers", "all", "100 %"),
        ("answers", "all", "5 %"),
    ]
    head: Row = {"seed": 0, "step": None, "multiple": 1.0, "layer": "3.attention", "head": 0}
    assert [line.names for line in headline(HEADLINES["sharpness"], [{**head, "weight": 0.5}])] == [
        ("3.attention", "0")
    ]


def test_single_layers_and_heads_are_details_of_ablation() -> None:
    row: Row = {"seed": 0, "step": None, "multiple": 1.0, "part": "joint", "exact": 1.0}
    layer: Row = {**row, "ablation": "layer off", "layer": "2.attention", "head": None}
    head: Row = {**row, "ablation": "head off", "layer": "2.attention", "head": 1}
    rows = [{**row, "ablation": "whole", "layer": None, "head": None}, layer, head]
    assert [line.names for line in headline(HEADLINES["ablation"], rows)] == [("whole",)]
    assert [line.names for line in headline(DETAILS["ablation"], rows)] == [
        ("2.attention", "all"),
        ("2.attention", "1"),
    ]


def test_several_steps_are_shown_at_the_last_one_and_over_steps_at_the_shortest_length() -> None:
    row: Row = {"seed": 0, "layer": "2.attention", "head": 0}
    rows = [
        {**row, "step": step, "multiple": multiple, "weight": step / multiple}
        for step in (50, 100)
        for multiple in (2.0, 4.0)
    ]
    wanted = HEADLINES["sharpness"]
    assert [line.values for line in headline(wanted, rows)] == [{2.0: [50], 4.0: [25]}]
    shortest, (line,) = over_steps(wanted, rows)
    assert (shortest, line.values) == (2.0, {50.0: [25], 100.0: [50]})


def test_ablation_that_leaves_nothing_right_is_shown() -> None:
    row: Row = {"seed": 0, "step": None, "multiple": 1.0, "part": "joint", "layer": None}
    rows = [{**row, "ablation": "whole", "exact": 1.0}, {**row, "ablation": "hard", "exact": 0.0}]
    shown = {line.names: line.values for line in headline(HEADLINES["ablation"], rows)}
    assert shown == {("whole",): {1.0: [1.0]}, ("hard",): {1.0: [0.0]}}


def test_cause_that_no_answer_has_is_not_shown() -> None:
    row: Row = {"seed": 0, "step": None, "multiple": 1.0, "part": "recall"}
    rows = [{**row, "cause": "right", "share": 1.0}, {**row, "cause": "key", "share": 0.0}]
    shown = [line.names for line in headline(HEADLINES["anatomy"], rows)]
    assert shown == [("recall", "right")]
