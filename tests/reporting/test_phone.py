"""The page in a browser, on a phone and a desk. Without Chromium these tests are skipped."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest
from report_folders import write_demo, write_run, write_study

from outlast.reporting.page import report

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)
PHONE, DESK = 375, 1200  # CSS pixels

#: finds words that stand in more than one line, and how wide the page is
MEASURE = """
const split = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode;
  if (node.parentElement.closest("svg, pre, details:not([open])")) continue;
  for (const word of node.data.matchAll(/\\S+/g)) {
    const range = document.createRange();
    range.setStart(node, word.index); range.setEnd(node, word.index + word[0].length);
    const tops = new Set(Array.from(range.getClientRects(), (box) => Math.round(box.top)));
    if (tops.size > 1) split.push(word[0]);
  }
}
const boxes = Array.from(document.querySelectorAll(".box"));
const scrolled = boxes.filter((box) => box.scrollWidth > box.clientWidth).length;
const page = document.documentElement;
const sizes = {width: innerWidth, taken: page.scrollWidth};
parent.postMessage(JSON.stringify({split, scrolled, ...sizes}), "*");
"""

# a frame, as the browser's own window cannot be so narrow
FRAME = """<!doctype html><iframe src="page.html" style="width: {width}px; height: 800px"></iframe>
<pre id="measured"></pre>
<script>addEventListener("message", (event) => {{ measured.textContent = event.data; }});</script>
"""


def measure(page: Path, folder: Path, width: int = PHONE) -> dict[str, object]:
    """What the browser says of the page at a width, by default that of a phone."""
    folder.mkdir()
    text = page.read_text().replace("</body>", f"<script>{MEASURE}</script></body>")
    (folder / "page.html").write_text(text)
    (folder / "frame.html").write_text(FRAME.format(width=width))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    options += [f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    command = [str(BROWSER), *options, (folder / "frame.html").as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout
    (measured,) = re.findall(r'<pre id="measured">(.*?)</pre>', dom, re.DOTALL)
    values: dict[str, object] = json.loads(unescape(measured))
    return values


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
@pytest.mark.parametrize("long", [False, True])
def test_phone_splits_no_word_and_scrolls_tables_instead_of_the_page(
    tmp_path: Path, long: bool
) -> None:
    label = "1 x (lstm | attention(random_positions(10000),heads=4)>mlp), unbreakable_configuration"
    folder = write_run(tmp_path / "run", label=label) if long else write_demo(tmp_path / "study")
    seen = measure(report([folder], tmp_path / "out"), tmp_path / "browser")
    assert seen["width"] == PHONE
    assert int(str(seen["taken"])) <= PHONE
    assert seen["split"] == []
    assert seen["scrolled"], "no table is wide enough to be scrolled: this test shows nothing"


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_desk_shows_whole_tables_of_unfinished_arms(tmp_path: Path) -> None:
    lengths = (1, 1.2, 2, 3, 4, 6, 8, 10)
    study = tmp_path / "study"
    write_run(study / "a", "a", multiples=lengths, methods=("dat(switch=800)",))
    write_run(study / "b", "b", multiples=lengths, methods=(), reach=3)
    write_run(study / "c", "c", until=1500, evaluated=False)
    write_study(study, [(name, f"serial hybrid, {name}", "") for name in "abcd"], [])
    seen = measure(report([study], tmp_path / "out"), tmp_path / "browser", DESK)
    assert seen["width"] == DESK
    assert seen["scrolled"] == 0
