"""Waiting for the page. Playwright's own way evaluates text, which the page's policy forbids."""

from __future__ import annotations

import time
from typing import Any


def until(page: Any, script: str, argument: object = None, seconds: float = 180) -> Any:
    """The value of a script in the page, once it is true."""
    end = time.monotonic() + seconds
    while not (value := page.evaluate(script, argument)):
        assert time.monotonic() < end, f"it did not come to pass: {script}"
        page.wait_for_timeout(20)
    return value
