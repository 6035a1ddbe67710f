"""The failure anatomy in a browser: from a share down to a single sequence, and back."""

from __future__ import annotations

import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from view_polling import until

from outlast.analysis.anatomy import CAUSES
from outlast.view.router import Router
from outlast.view.server import Server
from view_runs import library_of, write_causes

OPEN = "tab=anatomy&a=study--dat"
LINKS = "Array.from(document.querySelectorAll('#examples a')).map(a => a.textContent)"


def links(page: Any) -> list[str]:
    """The list of examples, once it is there."""
    return list(until(page, f"(links => links.length ? links : null)({LINKS})"))


def test_failure_anatomy_leads_down_to_a_single_sequence(show: Any) -> None:
    page = show(OPEN)
    page.wait_for_selector("#causes .main-svg")
    bars = page.evaluate(
        "document.getElementById('causes').data.map(t => [t.name, Array.from(t.y)])"
    )
    assert bars == [["right", [0.5, 0.5]], ["state wrong", [0.3, 0.3]],
                    ["wrong key attended", [0.2, 0.2]]]  # fmt: skip
    # the fourth cell is what was right at the second length: an untrained model guesses some
    page.locator("#causes-table button").nth(3).click()
    assert page.inner_text("#examples h3") == "right, length 8 (2 ×)"
    link = page.locator("#examples a").first
    link.wait_for()
    seed, sequence, token = re.findall(r"\d+", link.inner_text())
    link.click()
    page.wait_for_selector("#tokens")
    assert page.input_value("#seed-a") == seed
    assert f"seq=draw-8-{sequence}-of-64" in page.url
    assert page.inner_text("#where").startswith(f"token {token} of")
    assert page.inner_text("#answer-a").startswith("✓ recall")


def test_opened_example_names_its_cause_and_marks_the_heads_that_retrieve(show: Any) -> None:
    page = show("")
    table = table_of({"recall": {"right": [0.5, 0.5], "unfocused": [0.5, 0.5]}})
    page.route("**/data/anatomy/*.json", lambda route: route.fulfill(json=table))
    page.evaluate(f"location.hash = '{OPEN}&cause=unfocused&of=4'")
    page.locator("#examples a").first.click()
    page.wait_for_selector("#attention-a .yaxislayer-above")
    assert re.fullmatch(
        r"attention spread out: the retrieving heads 0, 1 of layer 2\.attention together look most "
        r"at token \d+, but it stands out too little",
        page.inner_text("#answer-a .cause"),
    )
    labels = page.locator("#attention-a .ytick").all_text_contents()
    assert sorted(labels) == [f"2.attention · {head} retrieves" for head in (0, 1)]
    options = page.locator("#head-a option").all_text_contents()
    assert options[1:] == [f"2.attention, head {head}, retrieves" for head in (0, 1)]
    assert page.is_visible("text=retrieves: looks answers up, at the training length with weight")
    page.click("#to-first")
    assert page.locator("#answer-a .cause").count() == 0


def test_unknown_cause_in_the_address_changes_nothing_of_a_sequence(show: Any) -> None:
    page = show("tab=sequence&a=study--dat&seq=draw-8-1-of-64&cause=nonsense&of=8")
    page.wait_for_selector("#tokens")
    assert "nonsense" not in page.inner_text("#sequence")


def test_bar_of_the_anatomy_can_be_clicked(show: Any) -> None:
    page = show(OPEN)
    page.wait_for_selector("#causes .main-svg")
    page.evaluate("""document.getElementById('causes').emit('plotly_click',
      {points: [{curveNumber: 2, pointIndex: 0}]})""")
    assert page.inner_text("#examples h3") == "wrong key attended, length 4 (1 ×)"


def table_of(shares: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """A failure anatomy that is made up: by part and cause, the share of each seed."""
    rows = [
        {"seed": seed, "length": length, "part": part, "cause": cause, "share": share}
        for part, causes in shares.items()
        for cause, by_seed in causes.items()
        for length in (4, 12)
        for seed, share in enumerate(by_seed)
    ]
    return {"rows": rows, "note": "Made up.", "wanting": False}


#: the state is right, and recall fails
FAILING = {"state": {"right": [1.0, 1.0]}, "recall": {"right": [0.6, 0.2], "key": [0.4, 0.8]}}


def test_part_that_fails_most_is_shown_first_with_its_spread(show: Any) -> None:
    page = show("")
    page.route("**/data/anatomy/*.json", lambda route: route.fulfill(json=table_of(FAILING)))
    page.evaluate(f"location.hash = '{OPEN}'")
    page.wait_for_selector("#causes .main-svg")
    assert page.input_value("#anatomy-part") == "recall"
    assert page.locator("#causes-table tbody th").all_inner_texts() == ["4 (1 ×)", "12 (3 ×)"]
    assert page.evaluate("document.getElementById('causes').data[0].x") == ["4 (1 ×)", "12 (3 ×)"]
    cell = page.locator("#causes-table td").first.inner_text()
    assert cell.split("\n") == ["40.0\u00a0%", "20.0\u00a0% to 60.0\u00a0%"]
    layout = "document.getElementById('causes').layout.legend"
    assert page.evaluate(f"[{layout}.itemclick, {layout}.itemdoubleclick]") == [False, False]
    page.locator("#causes-table button").first.click()
    until(page, "location.hash.includes('cause=right')")
    page.select_option("#anatomy-part", "state")
    until(page, "document.getElementById('causes')?.data?.length === 1")
    assert page.inner_text("#examples") == ""


def test_seed_with_most_of_a_cause_is_looked_at(show: Any) -> None:
    page = show("")
    page.route("**/data/anatomy/*.json", lambda route: route.fulfill(json=table_of(FAILING)))
    found = {"sequences": 64, "most": 8, "examples": []}
    page.route("**/data/examples/**", lambda route: route.fulfill(json=found))
    page.evaluate(f"location.hash = '{OPEN}&cause=key&of=4'")
    none = "None of 64 sequences of seed 1 has such an answer. The table counts some of seed 0."
    page.get_by_text(none).wait_for()
    assert page.input_value("#anatomy-seed") == "1"
    page.get_by_role("link", name="seed 0").click()
    page.get_by_text("None of 64 sequences of seed 0 has such an answer.").wait_for()
    assert page.input_value("#anatomy-seed") == "0"


def test_anatomies_of_two_runs_stand_side_by_side(show: Any) -> None:
    page = show("")
    other = table_of({"recall": {"right": [0.9, 0.9], "diluted": [0.1, 0.1]}})
    page.route("**/data/anatomy/study--tra.json", lambda route: route.fulfill(json=other))
    page.evaluate(f"location.hash = '{OPEN}'")
    page.wait_for_selector("#causes .main-svg")
    page.select_option("#anatomy-other", "study--tra")
    page.wait_for_selector("#causes-b .main-svg")
    left, right = (page.locator(f"#anatomy-{side}").bounding_box() for side in "ab")
    assert (left["y"], left["x"] < right["x"]) == (right["y"], True)
    page.select_option("#anatomy-seed-b", "1")
    page.locator("#causes-b-table button").first.click()
    assert page.inner_text("#examples h3") == "hybrid <b>TRA</b>: right, length 4 (1 ×)"
    assert page.locator("#anatomy button[aria-pressed=true]").count() == 1
    assert all(words.startswith("seed 1,") for words in links(page))
    page.locator("#examples a").first.click()
    page.wait_for_selector("#answer-b")
    assert page.inner_text("#panel-a h2") == "hybrid <b>TRA</b>, seed 1"
    assert page.inner_text("#panel-b h2") == "hybrid, DAT, seed 0"
    page.go_back()
    page.wait_for_selector("#examples a")
    page.select_option("#anatomy-other", "")
    until(page, "!document.getElementById('causes-b')")
    assert page.inner_text("#examples") == ""


def test_list_of_examples_is_in_the_address_and_back_returns_to_it(show: Any) -> None:
    page = show(OPEN)
    page.locator("#causes-table button").nth(3).click()
    before = links(page)
    assert "cause=right" in page.url
    assert "of=8" in page.url
    assert page.locator("#causes-table button[aria-pressed=true]").count() == 1
    other = show(page.url.split("#")[1])
    assert links(other) == before
    page.locator("#examples a").first.click()
    page.wait_for_selector("#tokens")
    page.go_back()
    page.wait_for_selector("#examples a")
    until(page, f"was => {LINKS}.join() === was", ",".join(before))  # the list is drawn anew
    page.go_back()
    until(page, "!document.querySelector('#examples').textContent")


def test_list_of_examples_follows_the_seed(show: Any) -> None:
    page = show(f"{OPEN}&cause=right&of=8")
    assert all(words.startswith("seed 0,") for words in links(page))
    page.select_option("#anatomy-seed", "1")
    until(page, f"{LINKS}.some(words => words.startsWith('seed 1,'))")
    until(page, f"{LINKS}.every(words => words.startsWith('seed 1,'))")
    page.go_back()
    until(page, f"{LINKS}.some(words => words.startsWith('seed 0,'))")
    assert page.input_value("#anatomy-seed") == "0"


def test_unknown_run_seed_and_length_are_named(show: Any) -> None:
    page = show("tab=anatomy&a=gone")
    page.get_by_text("There is no run gone on this page.").wait_for()
    assert page.locator("#causes").count() == 0
    page.select_option("#anatomy-run", "study--dat")
    page.wait_for_selector("#causes .main-svg")
    page.click("#tab-sequence")
    page.wait_for_selector("#tokens")
    page = show("tab=sequence&a=gone")
    page.get_by_text("There is no run gone on this page.").wait_for()
    page.select_option("#run-a", "study--dat")
    page.wait_for_selector("#tokens")
    page = show("tab=sequence&a=study--dat&b=gone&seq=draw-4-0")
    page.locator("#panel-b", has_text="There is no run gone on this page.").wait_for()
    page = show("runs=gone,lstm")
    page.get_by_text("There is no run gone on this page.").wait_for()
    page = show(f"{OPEN}&cause=right&of=8&aseed=7")
    page.get_by_text("There is no seed 7 of this run.").wait_for()
    page = show(f"{OPEN}&cause=right&of=9")
    page.get_by_text("This anatomy has no length 9.").wait_for()


def test_run_without_anatomy_says_how_to_make_one(show: Any, runs: Path) -> None:
    page = show("tab=anatomy&a=lstm")
    page.get_by_text("No failure anatomy yet. This command computes it:").wait_for()
    assert page.inner_text("#anatomy code") == f"outlast analyse {runs / 'lstm'} --only anatomy"
    page.select_option("#anatomy-run", "new")
    page.get_by_text("No failure anatomy: this run has no checkpoint yet.").wait_for()
    assert page.locator("#anatomy code").count() == 0


def test_anatomy_that_is_made_later_shows_without_a_reload(
    show: Any, runs: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(runs / "study/dat", tmp_path / "dat"))
    shutil.rmtree(folder / "analysis")
    with Server(Router(library_of(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = show("tab=anatomy", home=server.address)
        page.get_by_text("No failure anatomy yet.").wait_for()
        write_causes(folder)
        page.click("#tab-curves")
        page.click("#tab-anatomy")
        page.wait_for_selector("#causes .main-svg")
        shutil.rmtree(folder / "analysis")
        page.click("#tab-curves")
        page.click("#tab-anatomy")
        page.get_by_text("No failure anatomy yet.").wait_for()
        write_causes(folder)
        page.evaluate("dispatchEvent(new Event('focus'))")
        page.wait_for_selector("#causes .main-svg")
        page.close()
        server.shutdown()


#: pairs of the figure's parts whose boxes intersect
CROSSINGS = """() => {
  const names = ['.legend', '.xtitle', '.ytitle', '.barlayer', '.xaxislayer-above'];
  const boxes = names.map(
    name => document.querySelector('#causes ' + name).getBoundingClientRect());
  const crossed = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  return names.flatMap((name, i) => names.slice(i + 1)
    .filter((_, j) => crossed(boxes[i], boxes[i + 1 + j])).map(other => [name, other]));
}"""


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("causes", [CAUSES[:3], CAUSES])
def test_legend_lies_on_nothing_else(show: Any, width: int, causes: tuple[str, ...]) -> None:
    rows = [
        {"seed": 0, "length": length, "part": "recall", "cause": cause, "share": 1 / len(causes)}
        for length in (4, 8, 16)
        for cause in causes
    ]
    page = show("", (width, 844))
    table = {"rows": rows, "note": "All causes.", "wanting": False}
    page.route("**/data/anatomy/study--dat.json", lambda route: route.fulfill(json=table))
    page.evaluate(f"location.hash = '{OPEN}'")
    page.wait_for_selector("#causes .legend")
    assert page.locator("#causes .legendtext").count() == len(causes)
    assert page.evaluate(CROSSINGS) == []
    height = page.locator("#causes .barlayer").bounding_box()["height"]
    assert height > 120
