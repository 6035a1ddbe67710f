"""The numbers of docs/findings/why.md are those of docs/data/why-paper.csv."""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Iterator

import pytest

from docs_site import DOCS
from findings.seed_table import read
from outlast.studies.why import why

PAGE = (DOCS / "findings/why.md").read_text(encoding="utf-8")
TABLE = {
    (row.arm, row.times, row.part): list(row.seeds.values())
    for row in read(DOCS / "data/why-paper.csv")
}
DAT = ("parallel2-dat", "serial2-dat", "serial4-dat")
CONVOLUTION = ("serial2-conv", "serial4-conv")
ARMS = {
    "jointly": "joint",
    "only the losses ordered": "control",
    "DAT": "dat",
    "DAT, values fixed": "values",
    "DAT, queries and keys fixed": "qk",
    "DAT, hard weights": "hard",
    "DAT, uniform weights": "uniform",
    "jointly, convolution": "conv-joint",
    "DAT, convolution": "conv",
}
COLUMNS = (("state", 3), ("recall", 3), ("joint", 10))
#: shares of the CSV, and most of those of the page, have three digits
ROUNDING = 0.0005


def cells() -> Iterator[tuple[str, float, str, str]]:
    """Arm, length, part and text of each cell of the table of arms."""
    _, _, section = PAGE.partition("## Arm by arm")
    design = ""
    for line in section.partition("Share of keys")[0].splitlines():
        words = [word.strip() for word in line.strip("|").split("|")]
        if len(words) != 5 or words[1] not in ARMS:
            continue
        design = words[0].strip("`") or design
        for (part, times), text in zip(COLUMNS, words[2:], strict=True):
            yield f"{design}-{ARMS[words[1]]}", times, part, text


def test_every_arm_that_was_run_is_in_the_table() -> None:
    assert {arm for arm, *_ in cells()} == {arm for arm, *_ in TABLE}


@pytest.mark.parametrize(("arm", "times", "part", "text"), list(cells()))
def test_cell_is_mean_worst_and_best_of_the_seeds(
    arm: str, times: float, part: str, text: str
) -> None:
    shares = TABLE[arm, times, part]
    expected = (sum(shares) / len(shares), min(shares), max(shares))
    numbers = [(float(word), len(word.partition(".")[2])) for word in re.findall(r"[\d.]+", text)]
    for (number, digits), share in zip(numbers, expected, strict=True):
        written = 0.5 * 10 ** -(digits or 3)  # 0 and 1 stand for .000 and 1.000
        assert abs(number - share) <= ROUNDING + written + 1e-9


def holds(arm: str, times: float, part: str, least: float) -> int:
    """How many seeds have at least this share."""
    return sum(share >= least for share in TABLE[arm, times, part])


def test_least_sum_with_dat_is_the_one_that_is_named() -> None:
    words = re.search(r"the sum is right in ([\d.]+) or more on (\d+) of (\d+) seeds", PAGE)
    assert words is not None
    least, number, of = float(words[1]), int(words[2]), int(words[3])
    assert sum(len(TABLE[arm, 10, "state"]) for arm in DAT) == of
    assert sum(holds(arm, 10, "state", least) for arm in DAT) == number
    assert min(min(TABLE[arm, 10, "state"]) for arm in DAT) == least


def test_seeds_that_recall_with_dat_are_counted() -> None:
    assert "at 1 x on 30 of 30 seeds; at 3 x on 10 of 10 seeds in `parallel2`, 0 in `seri" in PAGE
    assert sum(holds(arm, 1, "recall", 0.99) for arm in DAT) == 30
    assert [holds(arm, 3, "recall", 0.99) for arm in DAT] == [10, 0, 2]
    assert "partly; with a convolution 20 of 20" in PAGE
    assert sum(holds(arm, 3, "recall", 0.99) for arm in CONVOLUTION) == 20


def test_seeds_of_the_other_sentences_are_counted() -> None:
    assert "nine of ten seeds have 0.94 or more there, and one has 0.68" in PAGE
    assert sorted(TABLE["serial4-conv-joint", 3, "joint"])[:2] == [0.68, 0.94]
    assert "At 10 x eight of ten hold jointly, and all ten with DAT" in PAGE
    assert holds("serial4-conv-joint", 10, "joint", 0.9) == 8
    assert holds("serial4-conv", 10, "joint", 0.9) == 10
    words = (
        "right in 0.902 [0.053, 0.999] of the sequences. The seed with 0.053 had not learned the "
        "task at 1 x (0.670), all others have 0.99 or more"
    )
    assert words in " ".join(PAGE.split())
    assert holds("chained2-dat", 3, "joint", 0.99) == 9
    assert "the sum is right in 0.25 (`parallel2`), 0.46 (`serial2`), 0.75 (`serial4`)" in PAGE
    means = [sum(TABLE[f"{d}-joint", 3, "state"]) / 10 for d in ("parallel2", "serial2", "serial4")]
    assert [round(mean, 2) for mean in means] == [0.25, 0.46, 0.75]


def test_every_part_of_the_paper_s_explanation_has_a_verdict() -> None:
    _, _, claims = PAGE.partition("## The claims of the paper")
    assert "gradients that come through\nattention push the recurrence away from the state" in PAGE
    assert "| attention's gradients push the recurrence away from the state |" in claims
    assert "and attention finds shortcuts." in PAGE
    assert re.search(r"\| attention finds shortcuts \|.*\| holds \|", claims)


ANALYSES = {
    tuple(line[key] for key in ("analysis", "arm", "what", "part", "step", "times")): [
        float(share) for name, share in line.items() if name.startswith("seed_") and share
    ]
    for line in csv.DictReader((DOCS / "data/why-analysis.csv").read_text().splitlines())
}
WAYS = {"jointly": "joint", "DAT": "dat", "losses ordered": "control"}


def analysed(head: str) -> Iterator[tuple[str, list[str]]]:
    """Arm and cells of the lines of a table of analyses, which begins with these words."""
    _, _, table = PAGE.partition(head)
    arm = ""
    for line in table.splitlines()[2:]:
        if not line.startswith("|"):
            break
        name, *words = [word.strip() for word in line.strip("|").split("|")]
        if name:
            design, way = name.split(", ")
            arm = f"{design.strip('`')}-{WAYS[way]}"
        yield arm, words


def agrees(text: str, key: tuple[str, ...]) -> None:
    """A cell has the mean, the lowest and the highest seed of a line of the CSV."""
    values = ANALYSES.get(key)
    if values is None:
        assert text == "-", key
        return
    expected = (sum(values) / len(values), min(values), max(values))
    for word, value in zip(re.findall(r"-?[\d.]+", text), expected, strict=True):
        written = 0.5 * 10 ** -(len(word.partition(".")[2]) or 3)
        assert abs(float(word) - value) <= written + 0.005 * abs(value), (key, text)  # 3 digits


def test_gradients_are_those_of_the_seeds() -> None:
    whats = (
        "cosine", "norm, attention over direct", "attention to final", "direct to final",
    )  # fmt: skip
    lines = list(analysed("| training | step | cosine of the two |"))
    assert len(lines) == 27
    for arm, (step, *cells) in lines:
        for what, text in zip(whats, cells, strict=True):
            agrees(text, ("gradients", arm, what, "all", step.replace(",", ""), ""))


def test_sums_without_a_part_are_those_of_the_seeds() -> None:
    whats = ("whole", "attention off", "uniform", "recurrence off")
    lines = list(analysed("| | whole | attention off |"))
    assert len(lines) == 9
    for arm, cells in lines:
        for what, text in zip(whats, cells, strict=True):
            agrees(text, ("ablation", arm, what, "state", "", "1"))


def test_seeds_of_four_blocks_that_fail_jointly_need_attention_for_the_sum() -> None:
    alone = ANALYSES["ablation", "serial4-joint", "attention off", "state", "", "1"]
    holding = [
        share >= 0.99 for share in ANALYSES["anatomy", "serial4-joint", "right", "state", "", "3"]
    ]
    assert "The sum of six seeds survives without attention (0.969 or more)" in PAGE
    assert [share >= 0.969 for share in alone] == holding
    assert sorted(round(share, 2) for share in alone)[:4] == [0.18, 0.58, 0.67, 0.84]
    assert "The other four have 0.18, 0.58, 0.67 and 0.84" in PAGE


def test_ordered_losses_are_as_the_page_says() -> None:
    def mean(*key: str) -> float:
        values = ANALYSES[key]
        return sum(values) / len(values)

    designs = ("parallel2", "serial2", "serial4")
    direct, ratio = (
        [mean("gradients", f"{design}-control", what, "all", "500", "") for design in designs]
        for what in ("direct to final", "norm, attention over direct")
    )
    first, second, third = (f"{number:.3f}" for number in direct)
    assert f"{first} in `parallel2`, {second} in `serial2`, {third} in `serial4`" in PAGE
    assert "{:.1f}, {:.1f} and {:.1f} times as large".format(*ratio) in PAGE
    keys = mean("key-probe", "serial2-control", "5.attention, stream", "", "", "1")
    with_dat = mean("key-probe", "serial2-dat", "5.attention, stream", "", "", "1")
    assert f"a probe reads {100 * keys:.0f} %" in PAGE
    assert f"With DAT it reads {100 * with_dat:.0f} % there" in PAGE
    three = mean("key-probe", "serial2-dat", "5.attention, stream", "", "", "3")
    assert f"97 % of the keys at 1 x, {100 * three:.0f} % at 3 x and" in PAGE
    wrong = mean("anatomy", "serial2-control", "key", "recall", "", "1")
    assert f"{100 * wrong:.0f} %\nof the answers look at a wrong key there" in PAGE


def test_causes_of_wrong_sums_are_shares_of_the_seeds() -> None:
    def mean(arm: str, cause: str) -> float:
        values = ANALYSES["anatomy", arm, cause, "state", "", "3"]
        return sum(values) / len(values)

    arms = ("parallel2-joint", "serial2-joint", "serial4-joint")
    wrong, right = (
        [round(100 * mean(arm, cause) / (1 - mean(arm, "right"))) for arm in arms]
        for cause in ("state", "output")
    )
    rest = [100 - sum(parts) for parts in zip(wrong, right, strict=True)]
    lines = {
        "| the probe reads a wrong state": wrong,
        "| it reads the right one": right,
        "| no recurrence has the sum to be read, not even at 1 x": rest,
    }
    for words, numbers in lines.items():
        cells = " | ".join(f"{number} %" if number else "0" for number in numbers)
        assert f"{words} | {cells} |" in PAGE
    assert f"for {wrong[2]} % of the wrong sums of `serial4` at 3 x" in PAGE
    trusted = [
        round(100 * mean(arm, "output") / (mean(arm, "output") + mean(arm, "state")))
        for arm in arms
    ]
    words = (
        "| right states where a probe can be trusted (10 % would be chance) | {} % | {} % | {} % |"
    )
    assert words.format(*trusted) in PAGE


def test_sharpness_falls_with_length_on_every_seed() -> None:
    heads: dict[str, dict[str, list[list[float]]]] = {}
    for (analysis, arm, what, _, _, times), weights in ANALYSES.items():
        if analysis == "sharpness" and times in ("1", "10"):
            heads.setdefault(arm, {}).setdefault(what, []).append(weights)
    falls = [
        near > far
        for by_head in heads.values()
        for seed in range(10)
        for near, far in [max((pair[0][seed], pair[1][seed]) for pair in by_head.values())]
    ]
    assert "falls on all 90 seeds" in PAGE
    assert len(falls) == 90
    assert all(falls)
    diluted, right = (
        statistics.mean(ANALYSES["anatomy", "serial2-joint", cause, "recall", "", "10"])
        for cause in ("diluted", "right")
    )
    assert f"are diluted: {100 * diluted:.1f} % of {100 * (1 - right):.1f} %" in PAGE


def test_ratios_of_gradients_are_counted_by_seed() -> None:
    def larger(arm: str, step: int) -> int:
        ratios = ANALYSES["gradients", arm, "norm, attention over direct", "all", str(step), ""]
        return sum(ratio > 1 for ratio in ratios)

    assert "on all ten seeds at step 500, on three at step 1,500" in PAGE
    assert [larger("serial4-joint", step) for step in (500, 1500)] == [10, 3]
    later = ANALYSES["gradients", "serial4-joint", "norm, attention over direct", "all", "6000", ""]
    words = (
        f"the mean is {statistics.mean(later):.1f} and the median {statistics.median(later):.1f}"
    )
    assert words in PAGE
    assert all(larger("serial2-joint", step) > 5 for step in range(500, 7501, 500))


def test_after_the_switch_the_gradients_of_serial_hybrids_disagree_about_recall() -> None:
    def cosines(design: str, part: str, step: int = 2000) -> list[float]:
        return ANALYSES["gradients", f"{design}-dat", "cosine", part, str(step), ""]

    both = [cosines(design, "all") for design in ("serial2", "serial4")]
    assert max(map(max, both)) < 0
    for part, words in (("recall", "({:.2f} and\n  {:.2f})"), ("state", "({:.2f} and {:.2f})")):
        means = (statistics.mean(cosines(design, part)) for design in ("serial2", "serial4"))
        assert words.format(*means) in PAGE
    later = (
        cosines(design, "all", step)
        for design, first in (("serial2", 2500), ("serial4", 2500), ("parallel2", 1500))
        for step in range(first, 7501, 500)
    )
    assert all(abs(statistics.mean(values)) < 0.05 for values in later)


SERIAL = ("serial2-dat", "serial2-control", "serial4-dat", "serial4-control")
KEYS = {arm: ANALYSES["key-probe", arm, "2.attention, stream", "", "", "3"] for arm in SERIAL}
ANSWERS = {arm: ANALYSES["anatomy", arm, "right", "recall", "", "3"] for arm in SERIAL}


def test_keys_and_answers_are_those_of_the_seeds() -> None:
    section = PAGE.partition("## Why some seeds keep recall")[2].partition("\n- ")[0]
    lines = [[word.strip() for word in line.split("|")[1:-1]] for line in section.splitlines()]
    rows = [words[1:] for words in lines if len(words) == 3 and words[1] in ("keys", "answers")]
    assert len(rows) == 2 * len(SERIAL)
    for arm, (first, second) in zip(SERIAL, zip(rows[::2], rows[1::2], strict=True), strict=True):
        for (what, text), shares in zip((first, second), (KEYS[arm], ANSWERS[arm]), strict=True):
            numbers = [float(word) for word in text.split()]
            assert numbers == pytest.approx(shares, abs=0.00501), (arm, what)


def test_seeds_whose_keys_are_read_recall_at_length() -> None:
    pairs = [pair for arm in SERIAL for pair in zip(KEYS[arm], ANSWERS[arm], strict=True)]
    reading = [answers for keys, answers in pairs if keys > 0.5]
    others = sorted(answers for keys, answers in pairs if keys <= 0.5)
    assert (len(pairs), len(reading), len(others)) == (40, 9, 31)
    assert round(min(reading), 3) == 0.979
    assert (round(others[-1], 3), round(others[-2], 2)) == (0.969, 0.84)
    assert "These nine have .979 or more of the answers right. Of the other 31 one has .969" in PAGE
    orders = [_rank_correlation(KEYS[arm], ANSWERS[arm]) for arm in SERIAL]
    words = "{:.2f}, {:.2f}, {:.2f} and {:.2f}".format(*orders).replace("0.", ".")
    assert f"the rank correlation of keys and answers is {words}" in PAGE


def _rank_correlation(first: list[float], second: list[float]) -> float:
    """Spearman's; equal numbers share the mean of their ranks."""
    ranks = [
        [sum(v < value for v in values) + values.count(value) / 2 for value in values]
        for values in (first, second)
    ]
    return statistics.correlation(*ranks)


def test_sums_that_a_probe_reads_are_those_of_the_seeds() -> None:
    section = PAGE.partition("## Where the sum is")[2].partition("\n- ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    assert len(lines) == 6
    last = {
        "parallel2": "4.lstm, hidden",
        "serial2": "4.lstm, hidden",
        "serial4": "10.lstm, hidden",
    }
    for line in lines:
        head, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        design, _, way = head.replace("`", "").partition(", ")
        arm = f"{design}-{WAYS[way]}"
        places = [(last[design], "1"), ("head, stream", "1")]
        places += [(last[design], "3"), ("head, stream", "3")]
        for (place, times), text in zip(places, cells, strict=True):
            agrees(text, ("state-probe", arm, place, "", "", times))


def test_guide_says_how_to_take_attention_apart_as_the_study_does() -> None:
    guide = (DOCS / "analyse.md").read_text(encoding="utf-8")
    arms = {arm.name: arm for arm in why().arms}
    for name in ("qk", "values"):
        method = arms[f"serial-{name}"].run.methods[-1]
        assert f"+ {method}" in guide, method
    for name in ("uniform", "hard"):
        weights = f"weights={name}"
        assert weights in str(arms[f"serial-{name}"].run.model)
        assert f"heads=2, {weights}" in guide
