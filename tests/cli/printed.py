"""What a command has printed."""

from __future__ import annotations

import re

import pytest


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The output on one line: tables and boxes break lines where it suits them."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
