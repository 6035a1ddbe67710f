"""The seed of the fuzzers of API and TRA, how long they go on, and the time of one call."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SEED = int(os.environ.get("FUZZ_SEED", "0"))
#: for all tests of a file together; 0: a fixed number of calls
SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
#: seconds of one call
LIMIT = 20


class TooSlow(BaseException):
    """A call took more than `LIMIT` seconds."""


@contextmanager
def time_limit() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
