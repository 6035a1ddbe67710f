"""Captions tell what the data show, and no more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from report_folders import write_run, write_study

from outlast.reporting import captions, formatting
from outlast.reporting.load import read
from outlast.reporting.summary import ArmSummary, summarise_arm

Shares = Mapping[float, Sequence[float | None]]  # by multiple; one for each seed


def arms_of(
    folder: Path, tests: Mapping[str, Shares | None], parts: Sequence[str] = ("joint",)
) -> list[ArmSummary]:
    """An arm for each label. None: it was not run, or a seed was not tested there."""
    for label, test in tests.items():
        if test is None:
            continue
        count = max(map(len, test.values()), default=1)
        run = write_run(folder / label, label, seeds=range(count), methods=(), until=2500)
        rows: list[dict[str, Any]] = [
            {"seed": seed, "variant": None, "length": 10 * multiple, "multiple": multiple,
             "exact": None if share is None else dict.fromkeys(parts, share)}
            for multiple, shares in test.items()
            for seed, share in enumerate(shares)
        ]  # fmt: skip
        (run / "results.json").write_text(json.dumps({"format": 1, "rows": rows}))
    study = write_study(folder, [(label, label, "") for label in tests], [])
    return [summarise_arm(arm) for arm in read([study])[0].arms]


GOOD: Shares = {1: [1.0, 1.0], 3: [1.0, 0.95]}
CASES: list[tuple[Mapping[str, Shares | None], str]] = [
    (
        {"dat": GOOD, "joint": {1: [1.0, 0.96], 3: [0.5, 0.2]}},
        "“dat” holds 90 % to length 30 (3×), the longest tested (2 of 2 seeds hold it); “joint” "
        "holds 90 % to length 10 (1×) and falls below it at length 30 (3×) (2 of 2 seeds hold it).",
    ),
    (  # the mean holds, a seed does not
        {"a": {1: [1.0, 1.0, 0.8], 2: [1.0, 1.0, 0.8]}},
        "“a” holds 90 % to length 20 (2×), the longest tested (2 of 3 seeds hold it).",
    ),
    ({"a": {1: [0.95]}}, "“a” holds 90 % to length 10 (1×), the longest tested (1 seed)."),
    (
        {"a": {1: [0.5], 3: [0.95]}},  # a later recovery does not count
        "“a” is below 90 % at length 10 (1×), the shortest tested: 50.0 % (1 seed).",
    ),
    (  # a length that could not be tested is neither held nor failed
        {"a": {1: [1.0], 3: [None]}},
        "“a” holds 90 % to length 10 (1×), the longest tested (1 seed).",
    ),
    (
        {"a": GOOD, "b": None},
        "“a” holds 90 % to length 30 (3×), the longest tested (2 of 2 seeds hold it); “b” was not "
        "tested.",
    ),
    (
        {**{f"a{i}": GOOD for i in range(5)}, "z": {1: [0.5, 0.5], 3: [0.1, 0.1]}},
        "At 3×, 5 of 6 arms reach 90 % on the mean over seeds; “a4” holds 90 % to length 30 (3×), "
        "the longest tested (2 of 2 seeds hold it); “z” is below 90 % at length 10 (1×), the "
        "shortest tested: 50.0 % (0 of 2 seeds hold it).",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("tests", "caption"), CASES)
def test_accuracy_caption_says_how_far_each_arm_holds(
    tmp_path: Path, tests: Mapping[str, Shares | None], caption: str
) -> None:
    assert captions.accuracy_finding(arms_of(tmp_path, tests)) == caption


def test_accuracy_that_chance_reaches_is_not_said_to_hold(tmp_path: Path) -> None:
    write_run(tmp_path / "run", label="an arm", seeds=(0,), methods=(), until=2500)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    about["chance"] = {"joint": 0.906}
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    (arm,) = [summarise_arm(arm) for arm in read([tmp_path / "run"])[0].arms]
    caption = captions.accuracy_finding([arm])
    assert "hold" not in caption
    assert caption.endswith(" % at length 100 (10×) (chance at 1×: 90.6 %).")
    assert formatting.effective(arm.ladders[0], 0.9) == "chance is 90.6 %"
    assert arm.ladders[0].effective(0.9) is None
    assert arm.ladders[0].effective(0.99) is not None


def test_accuracy_caption_names_parked_and_unfinished_seeds(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", label="an arm", seeds=(0, 1), until=500)
    events = [{"step": 500, "seed": 1, "event": "parked", "since": 450}]
    with (run / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(event) + "\n" for event in events))
    arms = [summarise_arm(arm) for arm in read([run])[0].arms]
    caption = captions.accuracy_finding(arms)
    assert caption.endswith("(2 of 2 seeds hold it, 1 parked, step 500 of 2,500).")
    assert captions.loss_finding(arms).endswith("1 of 2 seeds was parked.")


def test_diverged_arm_is_called_so_and_not_measured_as_one_that_falls(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", label="an arm", seeds=(0,), until=500)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 500, "seed": 0, "event": "parked", "since": 450}) + "\n")
    arms = [summarise_arm(arm) for arm in read([run])[0].arms]
    assert captions.accuracy_finding(arms) == "“an arm” diverged on every seed."


def test_seeds_caption_counts_seeds_at_the_length_nearest_three_times(tmp_path: Path) -> None:
    few = {"dat": GOOD, "joint": {1: [1.0, 1.0], 3: [0.95, 0.2]}}
    caption = captions.seeds_finding(arms_of(tmp_path / "few", few))
    assert caption == "Seeds that reach 90 % at 3×: “dat” on 2 of 2, “joint” on 1 of 2."
    many = {**few, **{f"z{i}": {1: [0.1, 0.1], 3: [0.1, 0.1]} for i in range(4)}}
    caption = captions.seeds_finding(arms_of(tmp_path / "many", many))
    assert caption == "At 3×, 1 of 6 arms reaches 90 % on every seed, 1 on some seeds, 4 on none."


def test_parts_caption_counts_arms_or_gives_the_shares_of_one(tmp_path: Path) -> None:
    parts = ["joint", "state", "recall"]
    two = arms_of(tmp_path / "two", {"a": GOOD, "b": {1: [1.0], 3: [0.2]}}, parts)
    caption = captions.parts_finding(two, parts[1:])
    assert caption == "At 3×, 90 % is reached on state by 1 of 2 arms, recall by 1 of 2 arms."
    one = arms_of(tmp_path / "one", {"a": GOOD}, parts)
    assert captions.parts_finding(one, parts[1:]) == "At 3×, “a”: state 97.5 %, recall 97.5 %."


def test_training_captions_give_the_last_values_and_how_phase_1_ended(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", label="an arm", failed=(3,), until=2500)
    (arm,) = arms = [summarise_arm(arm) for arm in read([run])[0].arms]
    assert arm.run is not None
    last = [curve[2500] for curve in arm.run.losses["state"].values()]
    text = captions.loss_finding(arms)
    assert text.startswith(f"The last mean loss: state {sum(last) / 4:.2g}; recall ")
    assert text.endswith("Phase 1 converged on 3 of 4 seeds.")
    last = [curve[2500] for curve in arm.run.probes[3].values()]
    assert captions.probe_finding(arms) == f"The last probe at 3×: “an arm” {25 * sum(last):.1f} %."


def test_caption_does_not_judge_convergence_of_a_scheduled_switch(tmp_path: Path) -> None:
    scheduled = write_run(tmp_path / "a", "a", (0, 1), methods=("dat(switch=800)",))
    judged = write_run(tmp_path / "b", "b", (0, 1, 2), failed=(2,))
    alone, both = (
        [summarise_arm(arm) for group in read(folders) for arm in group.arms]
        for folders in ([scheduled], [scheduled, judged])
    )
    ending = "Phase 1 switched as scheduled on 2 seeds."
    text = captions.loss_finding(alone)
    assert text.endswith(f". {ending}")
    assert "converged" not in text
    assert captions.loss_finding(both).endswith(f" Phase 1 converged on 2 of 3 seeds. {ending}")


def test_caption_speaks_of_a_length_at_which_every_arm_was_tested(tmp_path: Path) -> None:
    arms = arms_of(tmp_path, {"a": GOOD, "b": {1: [1.0, 0.5]}})
    assert captions.seeds_finding(arms).startswith("Seeds that reach 90 % at 1×: “a” on 2 of 2,")


def test_losses_that_are_not_finite_are_left_out_of_the_caption(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", label="an arm", seeds=(0,), methods=(), until=0)
    lines = [
        {"step": s, "seed": 0, "loss": {"state": v}} for s, v in ((50, 0.5), (100, float("nan")))
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    arms = [summarise_arm(arm) for arm in read([run])[0].arms]
    assert captions.loss_finding(arms) == "The last mean loss: state 0.5."
