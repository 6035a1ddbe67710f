"""Time and memory of several sides of one question, measured in the same process and run.

The sides take turns, so that a clock or a neighbour that changes meets all of them alike, and each
time is the median over at least twenty turns. Beside a time stands the error of what was timed.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from outlast.errors import TrainingError, bad_value

Side = Callable[[], Any]
REPEATS, WARM_UP = 20, 2
MOST_REPEATS = 100_000
#: clock cycles the GPU idles before a measurement, so that the host can queue all of it
HEAD_START = 6_000_000
#: what may go wrong on one side without ending the others
FAILURES = (RuntimeError, ImportError, MemoryError, TrainingError)


@dataclass
class Row:
    """One line of the table; `against` is the time as a multiple of the first peer's."""

    section: str
    what: str
    side: str
    ms: float | None
    against: float | None = None
    error: float | None = None
    mib: float | None = None
    note: str = ""


@dataclass
class Bench:
    """Where the rows go, on which device, and until when."""

    device: torch.device
    seconds: float
    repeats: int = REPEATS
    say: Callable[[str], None] = lambda text: None
    #: the folder of a trained run, for what measures one
    run: Path | None = None
    #: of the hybrid, for what measures one
    layout: str = "serial"
    rows: list[Row] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise bad_value("budget", self.seconds, "seconds > 0, a finite number")
        if not 1 <= self.repeats <= MOST_REPEATS:
            accepted = f"a whole number from 1 to {MOST_REPEATS:,}"
            raise bad_value("repeats", self.repeats, accepted)

    def left(self) -> float:
        """Seconds of the budget that remain."""
        return self.seconds - (time.perf_counter() - self.started)

    def spent(self, section: str, what: str) -> bool:
        """Whether there is no time left, which is said."""
        over = self.left() <= 0
        if over:
            self.add(Row(section, what, "all", None, note="skipped: the budget is spent"))
        return over

    def add(self, row: Row) -> None:
        """Keep a row, and say it at once: a run that is stopped has told what it knew."""
        self.rows.append(row)
        self.say(line(row))

    def records(self) -> list[dict[str, Any]]:
        """The rows for a JSON file."""
        return [asdict(row) for row in self.rows]

    def compare(
        self,
        section: str,
        what: str,
        sides: Mapping[str, Side],
        errors: Mapping[str, float] | None = None,
        note: str | Callable[[float], str] = "",
        steps: int = 1,
    ) -> None:
        """Time the sides in turns and add a row for each, against the first.

        The time of a row is that of one of the `steps` of a side; a note may be made from it.
        """
        if self.spent(section, what):
            return
        times, failed = self.times(sides)
        first = times.get(next(iter(sides)))
        for side in sides:
            row = Row(section, what, side, None, error=(errors or {}).get(side))
            if side in times:
                row.ms = times[side] / steps
                row.against = times[side] / first if first else None
                row.note = note if isinstance(note, str) else note(row.ms)
            else:
                row.note = failed[side]
            self.add(row)

    def times(self, sides: Mapping[str, Side]) -> tuple[dict[str, float], dict[str, str]]:
        """Median milliseconds of the sides that run, and why the others do not."""
        failed: dict[str, str] = {}
        times: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(-1, self.repeats):  # the first is to warm up
            for name, side in sides.items():
                if name in failed:
                    continue
                try:
                    if turn < 0:
                        self.warm_up(side)
                    else:
                        times[name].append(self.once(side))
                except FAILURES as error:
                    failed[name] = not_run(error)
        return {n: statistics.median(times[n]) for n in sides if n not in failed}, failed

    def warm_up(self, side: Side) -> None:
        """What is made but once is made before anything is timed."""
        for _ in range(WARM_UP if self.repeats > 1 else 1):
            side()
        self.wait()

    def once(self, side: Side) -> float:
        """Milliseconds of one run."""
        if self.device.type != "cuda":
            begun = time.perf_counter()
            side()
            return 1e3 * (time.perf_counter() - begun)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(HEAD_START)
        start.record()
        side()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    def wait(self) -> None:
        """Until the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def on_cpu(self) -> Bench:
        """The same on the CPU: rows go to the same table, within the same budget."""
        return replace(self, device=torch.device("cpu"))

    def peak(self, side: Side) -> float | None:
        """MiB that one run needs beyond what was there before it; None where it cannot be seen."""
        if self.device.type == "cuda":
            self.wait()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            side()
            self.wait()
            return (torch.cuda.max_memory_allocated() - before) / 2**20
        _give_back()
        resident = _resident("VmRSS")
        reset = Path("/proc/self/clear_refs")
        if resident is None or not reset.exists():
            return None
        reset.write_text("5")  # forget the highest mark
        side()
        return (_resident("VmHWM") or resident) - resident


def _give_back() -> None:
    """Return freed memory to the system, or an earlier run would hide what this one needs."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def _resident(name: str) -> float | None:
    """A line of the kernel's account of this process, in MiB; None where there is no such thing."""
    account = Path("/proc/self/status")
    if not account.exists():
        return None
    match = re.search(rf"^{name}:\s+(\d+) kB", account.read_text(), re.MULTILINE)
    return int(match[1]) / 1024 if match else None


def not_run(error: Exception) -> str:
    """The note of a side that cannot be had: the first line of why."""
    return f"n/a: {(str(error) or repr(error)).splitlines()[0][:80]}"


def line(row: Row) -> str:
    """One row as text."""
    cells = (
        f"{row.section:9s} {row.what:30s} {row.side:12s}",
        "        -   " if row.ms is None else f"{row.ms:9.3f} ms",
        "" if row.against is None else f"x{row.against:.2f}",
        "" if row.mib is None else f"{row.mib:.0f} MiB",
        "" if row.error is None else f"error {row.error:.0e}",
        row.note,
    )
    return "  ".join(cell for cell in cells if cell).rstrip()
