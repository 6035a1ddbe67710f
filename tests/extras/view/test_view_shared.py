"""The page as files, behind a plain web server: a bundle shows the same page."""

from __future__ import annotations

import functools
import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from view_polling import until

from outlast.view.bundle import write_bundle
from view_runs import library_of


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder behind a plain web server."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def shared(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a bundle."""
    folder = tmp_path_factory.mktemp("bundle") / "page"
    write_bundle(library_of(runs / "study"), folder, (1, 2), 1, lambda _: None)
    with served(folder) as address:
        yield address


def test_bundle_shows_the_same_page(show: Any, shared: str) -> None:
    page = show("", home=shared)
    page.wait_for_selector("#learning .main-svg")
    assert page.locator(".legend li").count() == 2
    page.click("#tab-sequence")
    page.wait_for_selector("#tokens")
    asked = page.locator("#computed option").all_inner_texts()
    assert asked[:2] == ["length 4, number 0", "length 8, number 0"]
    page.select_option("#computed", "draw-8-0")
    until(page, "document.querySelectorAll('.token').length === 19")
    page.click("#to-first")
    page.keyboard.press("ArrowRight")
    until(
        page, "document.getElementById('attention-words-a').textContent.startsWith('Token 2 looks')"
    )
    page.select_option("#head-a", "0-1")
    page.wait_for_selector("#map-a image")
    page.click("#tab-anatomy")
    page.wait_for_selector("#causes .main-svg")
    assert "This is a bundle" not in page.inner_text("#anatomy")


def test_point_of_a_bundle_leads_to_the_sequences_that_it_has(
    show: Any, runs: Path, shared: str, tmp_path: Path
) -> None:
    page = show("runs=study--dat&values=accuracy", home=shared)
    page.wait_for_selector("#accuracy-values table")
    assert page.locator("#accuracy-values a").count() == 2
    assert "A click on a point opens" in page.inner_text("#accuracy-caption")
    write_bundle(library_of(runs / "study"), tmp_path / "page", (1,), 0, lambda _: None)
    with served(tmp_path / "page") as address:
        page = show("runs=study--dat&values=accuracy", home=address)
        page.wait_for_selector("#accuracy-values table")
        assert page.locator("#accuracy-values a").count() == 0
        assert "click" not in page.inner_text("#accuracy-caption")
        page.evaluate("""document.getElementById('accuracy').emit('plotly_click',
          {points: [{x: 2, data: {meta: 'study--dat'}}]})""")
        assert "tab=sequence" not in page.url
        page.close()  # before its server


def test_anatomy_of_a_bundle_leads_down_to_a_single_sequence(show: Any, shared: str) -> None:
    page = show("tab=anatomy&a=study--dat", home=shared)
    page.wait_for_selector("#causes .main-svg")
    assert "lists sequences of that cause." in page.inner_text("#anatomy figure")
    page.locator("#causes-table button").nth(3).click()
    link = page.locator("#examples a").first
    link.wait_for()
    assert re.fullmatch(r"\d+ of \d+ are in this bundle.*", page.inner_text("#examples .note"))
    _, sequence, token = re.findall(r"\d+", link.inner_text())
    link.click()
    page.wait_for_selector("#tokens")
    assert page.inner_text("#where").startswith(f"token {token} of")
    assert page.locator("#computed option:checked").inner_text() == (
        f"length 8, number {sequence} of 64"
    )


#: the sequence and the first token of a bundle whose answer has a cause that names heads
RETRIEVED = """async () => {
  const about = await (await fetch('data/runs.json')).json();
  for (const name of about.examples['study--dat'].sequences) {
    const trace = await (await fetch(`data/sequence/study--dat/0/${name}.json`)).json();
    const at = trace.causes.findIndex(cause => cause?.includes('retrieving head'));
    if (at >= 0) return {name, at, cause: trace.causes[at]};
  }
}"""


def test_bundle_names_the_cause_of_a_wrong_answer_and_the_heads_that_retrieve(
    show: Any, shared: str
) -> None:
    page = show("runs=", home=shared)
    example = page.evaluate(RETRIEVED)
    page.evaluate(
        "({name, at}) => location.hash = `tab=sequence&a=study--dat&seq=${name}&at=${at}`", example
    )
    page.wait_for_selector("#attention-a .yaxislayer-above")
    assert page.inner_text("#answer-a .cause") == example["cause"]
    assert "retrieves" in page.locator("#attention-a .yaxislayer-above").text_content()


def test_bundle_offers_the_seeds_that_were_computed(show: Any, shared: str) -> None:
    page = show("tab=anatomy&a=study--dat", home=shared)
    page.wait_for_selector("#anatomy-seed")
    assert page.locator("#anatomy-seed option").all_inner_texts() == ["0"]
    page.click("#tab-sequence")
    page.wait_for_selector("#tokens")
    assert page.locator("#seed-a option").all_inner_texts() == ["0"]


def test_anatomy_of_a_bundle_without_sequences_promises_none(
    show: Any, runs: Path, tmp_path: Path
) -> None:
    write_bundle(library_of(runs / "study"), tmp_path / "page", (1,), 0, lambda _: None)
    with served(tmp_path / "page") as address:
        page = show("tab=anatomy&a=study--dat", home=address)
        page.wait_for_selector("#causes .main-svg")
        assert page.inner_text("#anatomy figure .note") == (
            "Mean over seeds; in the table also the lowest and the highest seed."
        )
        assert page.locator("#causes-table button, #anatomy-seed").count() == 0
        page.evaluate("""document.getElementById('causes').emit('plotly_click',
          {points: [{curveNumber: 2, pointIndex: 0}]})""")
        assert page.inner_text("#examples") == ""
        page.click("#tab-sequence")
        page.get_by_text("Seed 0 is not in this bundle").wait_for()
        page.close()  # before its server


def test_bundle_says_what_it_has_not_got(show: Any, shared: str) -> None:
    page = show("tab=sequence&a=study--dat&aseed=1", home=shared)
    page.get_by_text("Seed 1 is not in this bundle; 'outlast view' computes it").wait_for()
    assert page.is_visible("text=This is a bundle")
    assert page.locator("#own").count() == 0
    page = show("tab=sequence&a=study--dat&seq=draw-5-0", home=shared)
    page.get_by_text("This sequence is not in this bundle").wait_for()
    page = show("tab=anatomy&a=study--tra", home=shared)
    page.get_by_text("No failure anatomy yet.").wait_for()
    assert page.locator("#anatomy code").count() == 0
