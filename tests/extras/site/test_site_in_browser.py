"""The site is built as `make docs` builds it, and looked at in a browser.

Every page on a phone, and some on a desk and in the dark: nothing scrolls sideways, nothing is
loaded from elsewhere, and no script complains. Tables can be searched and sorted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("zensical")
playwright = pytest.importorskip("playwright.sync_api", reason="no playwright")

ROOT = Path(__file__).parents[3]
SITE = ROOT / "build" / "site"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)
PHONE, DESK = 390, 1280
#: a page of each kind
SOME = ("index.html", "notation.html", "reference/tasks.html", "data/dat-paper.html",
        "reproduce-dat.html", "reference/run-folder.html")  # fmt: skip


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT / "src"), "tools"]))
    command = [sys.executable, "-m", "docs_site"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if BROWSER is None:
        pytest.skip("no Chromium")
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox", "--disable-gpu"]
        running = driver.chromium.launch(executable_path=BROWSER, args=options)
        yield running
        running.close()


@pytest.mark.parametrize(
    ("width", "colours", "whole"),
    [(PHONE, "light", True), (PHONE, "dark", False), (DESK, "light", False), (DESK, "dark", False)],
)
def test_pages_fit_and_load_nothing_from_elsewhere(
    width: int, colours: str, whole: bool, browser: Any, address: str
) -> None:
    pages = [p.relative_to(SITE).as_posix() for p in SITE.rglob("*.html")] if whole else SOME
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=colours)
    complaints: list[str] = []
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda r: complaints.append(r.url) if _is_outside(r.url, address) else None)
    for name in pages:
        page.goto(address + name)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    page.close()
    assert complaints == []


def _is_outside(url: str, address: str) -> bool:
    return not url.startswith((address, "data:", "blob:"))


def test_mkdocs_with_material_builds_the_same_pages(address: str, tmp_path: Path) -> None:
    """The configuration is read by both, so that the site does not hang on one young builder."""
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    command += ["--config-file", str(SITE.parent / "mkdocs.yml"), "--site-dir", str(tmp_path)]
    environment = dict(os.environ, NO_MKDOCS_2_WARNING="1")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    pages, theirs = (
        {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
        for site in (SITE, tmp_path)
    )
    assert len(pages) > 30
    assert theirs == pages


def test_table_is_searched_and_sorted(browser: Any, address: str) -> None:
    page = browser.new_page(viewport={"width": DESK, "height": 900})
    page.goto(address + "data/dat-paper.html")
    rows = page.locator("article tbody tr")
    count = rows.count()
    assert count > 100
    field = page.locator(".table-search input")
    field.fill("parallel2-dat 10")
    shown = page.locator("article tbody tr:not([hidden])")
    assert 0 < shown.count() < count
    assert "parallel2-dat" in shown.first.inner_text()
    field.fill("")
    page.locator("th button", has_text="items").click()
    first, last = rows.first.locator("td").nth(2), rows.last.locator("td").nth(2)
    assert float(first.inner_text()) < float(last.inner_text())
    page.locator("th button", has_text="items").click()
    assert float(first.inner_text()) > float(last.inner_text())
    page.close()


def test_table_is_there_without_scripts(browser: Any, address: str) -> None:
    context = browser.new_context(
        java_script_enabled=False, viewport={"width": PHONE, "height": 900}
    )
    page = context.new_page()
    page.goto(address + "data/dat-paper.html")
    assert page.locator("article tbody tr").count() > 100
    assert page.locator(".table-search").count() == 0
    context.close()
