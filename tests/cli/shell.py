"""What comes of a command that is run in this process."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple


class Result(NamedTuple):
    """The exit code of a command, and what it has printed."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The output on one line: tables and boxes break lines where it suits them."""
        return " ".join(re.sub("[│╭╮╰╯─]", " ", self.out).split())


Shell = Callable[..., Result]
