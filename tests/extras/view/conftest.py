"""A real browser, the page of a few runs, and a watch over what the browser complains about."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.view.router import Router
from outlast.view.server import Server
from tiny_runs import tiny, trained
from view_runs import library_of, write_runs

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright")

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)
DESK = (1280, 900)
#: a run whose sequences reach 2,000 tokens
LONG_TASK = "composite(modulus=2, keys=1000, queries=8, length=4)"
LONG_MODEL = "lstm > attention(heads=4) > mlp > attention(heads=4) @ 16, head=2"

Open = Callable[..., Any]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = write_runs(tmp_path_factory.mktemp("view"))
    changes = {"steps": 1, "warmup": 0, "probe_every": 0, "checkpoint_every": 1}
    trained(tiny(task=LONG_TASK, model=LONG_MODEL, steps_per_block=1, **changes), home / "long")
    return home


@pytest.fixture(scope="session")
def address(runs: Path) -> Iterator[str]:
    with Server(Router(library_of(runs))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.address
        server.shutdown()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if BROWSER is None:
        pytest.skip("no Chromium")
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox", "--disable-gpu"]
        running = driver.chromium.launch(executable_path=BROWSER, args=options)
        yield running
        running.close()


@pytest.fixture
def show(browser: Any, address: str) -> Iterator[Open]:
    """Opens the page at a state: ``show("tab=sequence")``. No error may reach the console.

    A message of the server that a test expects is named by ``refused``.
    """
    pages: list[Any] = []
    complaints: list[str] = []
    allowed: list[str] = []

    def open_page(
        state: str = "",
        size: tuple[int, int] = DESK,
        refused: bool = False,
        home: str = address,
        **options: Any,
    ) -> Any:
        page = browser.new_page(viewport={"width": size[0], "height": size[1]}, **options)
        page.set_default_timeout(120_000)
        pages.append(page)
        if refused:
            allowed.append("Failed to load resource: the server responded with a status of 4")
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{home}#{state}")
        return page

    yield open_page
    for page in pages:
        page.close()
    assert [c for c in complaints if not any(c.startswith(words) for words in allowed)] == []
