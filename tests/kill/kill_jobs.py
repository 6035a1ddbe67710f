"""A command in a process of its own, which is killed at a write, or by whoever started it.

The process is forked from a server that has everything loaded (`kill_preload.py`). So are the
processes that it starts itself. Each notes in a file who it is and what it writes. This module
loads no torch by itself.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kill_cases import Case, Command

#: moments at which a process ends itself: in the middle of a file or of a line of the metrics,
#: before and after a rename, before a file is deleted
MOMENTS = ("torn file", "before rename", "after rename", "torn line", "before delete")
#: how a block fails without a kill
BLOCK_ERROR = "error in a block"
#: words of the notes that are no moments
STARTED, ENDED = "started", "killed"
#: how often each kind of moment has come in this process
_COUNTS: Counter[str] = Counter()


@dataclass(frozen=True)
class Moment:
    """The `at`-th time that something is about to happen; of what is written, a share is."""

    kind: str
    at: int
    share: float = 0.5


@dataclass(frozen=True)
class Job:
    """A command of a case in a folder; `notes` is the file that its processes write to."""

    case: Case
    command: Command
    folder: Path
    notes: Path
    output: Path
    moment: Moment | None = None
    #: train until this step only
    until: int | None = None


def run_job(job: Job) -> None:
    """Give the command in this process, and exit as it does."""
    _prepare(job)
    with job.output.open("a") as output:
        for number in (1, 2):
            os.dup2(output.fileno(), number)
    os.chdir(job.folder)
    sys.argv = ["outlast", *job.command]
    from outlast.cli import main

    code = main(job.command)
    sys.stdout.flush()
    sys.exit(code)


class Helper:
    """A process that the command starts, a worker or an arm of a study, in the place of a `Popen`.

    It is a fork of the command's own process, with nothing open but its end of the pipe.
    """

    def __init__(self, job: Job, far_end: Connection, graceful: bool) -> None:
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code: Any = 1
            try:
                os.setsid()
                os.closerange(3, far_end.fileno())
                os.closerange(far_end.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
                _COUNTS.clear()
                _note(job.notes, STARTED)
                run_forked(far_end, graceful)
                code = 0
            except SystemExit as end:
                code = end.code or 0
            finally:
                os._exit(code)

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int | None:
        return self._wait(0)

    def _wait(self, options: int) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, options)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def run_forked(far_end: Connection, graceful: bool) -> None:
    """As `processes.PROGRAM` does."""
    import tiny_runs

    tiny_runs.run_forked(far_end, graceful)


def _prepare(job: Job) -> None:
    import torch

    from outlast.workflow import create
    from outlast.workflow.evaluate import Evaluation

    torch.set_num_threads(1)
    create.datetime = _Clock  # type: ignore[attr-defined]
    Evaluation.__init__.__defaults__ = ((1, 3), 64, "fp32", None)  # short, as the runs are
    _note(job.notes, STARTED)
    _fork_helpers(job)
    _hook_writes(job)
    _break_rows(job)
    if job.command[0] == "reproduce":
        _register_study(job.case.page)
    if job.until is not None:
        _stop_at(job.until)


class _Clock(datetime):
    """Records are written at the same second, whenever that is."""

    @classmethod
    def now(cls, tz: Any = None) -> _Clock:
        return cls(2026, 1, 1, tzinfo=UTC)


def _note(notes: Path, word: str) -> None:
    """One line of the notes, in one write: no other process's comes between."""
    handle = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{os.getpid()} {word}\n".encode())
    os.close(handle)


# ---- what is changed in the process --------------------------------------------------------------


def _fork_helpers(job: Job) -> None:
    """Processes of the command are forked as well: they need not load torch."""
    from outlast import processes

    def start(far_end: Connection, graceful: bool, environment: Any) -> Helper:
        return Helper(job, far_end, graceful)

    processes.start_program = start  # type: ignore[assignment]


def _hook_writes(job: Job) -> None:
    """Note each write, and end the process at the one that is asked for."""
    import outlast.train.trainer as trainer
    from outlast.runs.records import METRICS, _metric_text
    from outlast.train.waves import WaveStepper

    fsync, rename, unlink = os.fsync, Path.replace, Path.unlink
    append, step = trainer.append_metrics, WaveStepper.run

    def has_come(kind: str) -> bool:
        _COUNTS[kind] += 1
        _note(job.notes, kind)
        return job.moment is not None and (job.moment.kind, job.moment.at) == (kind, _COUNTS[kind])

    def end_if(kind: str, spoil: Callable[[float], object] = lambda share: None) -> None:
        if has_come(kind) and job.moment is not None:
            spoil(job.moment.share)
            _note(job.notes, ENDED)
            os.kill(os.getpid(), signal.SIGKILL)

    def fsync_or_end(file: int) -> None:
        end_if("torn file", lambda share: os.ftruncate(file, int(share * os.fstat(file).st_size)))
        fsync(file)

    def rename_or_end(self: Path, target: Path) -> Path:
        end_if("before rename")
        renamed = rename(self, target)
        end_if("after rename")
        return renamed

    def unlink_or_end(self: Path, missing_ok: bool = False) -> None:
        if self.exists():
            end_if("before delete")
        unlink(self, missing_ok=missing_ok)

    def append_or_end(folder: Path, lines: Iterable[Any]) -> None:
        lines, path = list(lines), folder / METRICS

        def write_a_part(share: float) -> None:
            text = _metric_text(lines)
            with path.open("a", encoding="utf-8") as file:
                file.write(text[: int(share * len(text))])

        end_if("torn line", write_a_part)
        append(folder, lines)

    def step_or_fail(self: WaveStepper, *arguments: Any) -> Any:
        metrics = step(self, *arguments)
        if job.case.errors and has_come(BLOCK_ERROR):
            raise RuntimeError("an error at the end of a block")
        return metrics

    os.fsync = fsync_or_end
    Path.replace = rename_or_end  # type: ignore[method-assign, assignment]
    Path.unlink = unlink_or_end  # type: ignore[method-assign]
    trainer.append_metrics = append_or_end
    WaveStepper.run = step_or_fail  # type: ignore[method-assign]


def _break_rows(job: Job) -> None:
    """Make seeds diverge at a step of the optimiser, whenever it is made."""
    if job.case.breaks:
        import pytest

        from tiny_runs import break_rows

        break_rows(pytest.MonkeyPatch(), dict(job.case.breaks))


def _stop_at(step: int) -> None:
    """Ask the run to save and leave as soon as it has come to a step."""
    from outlast.train.trainer import Trainer

    next_block = Trainer.next_block

    def watched(trainer: Trainer) -> Any:
        block = next_block(trainer)
        if trainer.runs[0].step + trainer.runs[0].settings.steps_per_block >= step:
            os.kill(os.getpid(), signal.SIGTERM)
        return block

    Trainer.next_block = watched  # type: ignore[method-assign]


def _register_study(page: bool) -> None:
    """The study `tiny`; its page is left out where it is not what is tested."""
    from outlast.registry import studies
    from outlast.reporting import page as page_module
    from outlast.runs.study import Claim
    from outlast.studies import Arm, Study
    from tiny_runs import tiny

    settings = {"steps": 12, "steps_per_block": 3, "checkpoint_every": 6, "probe_every": 6}
    one = tiny(task="parity(length=4)", model="lstm > attention(heads=2) @ 8", **settings)
    arms = [
        Arm(name, replace(one, methods=specs, label=name))
        for name, specs in {"plain": (), "dat": ("dat(switch=6)",), "ema": ("ema(0.9)",)}.items()
    ]
    claims = [Claim("It is so", "plain", 1, "us", low=0.0)]

    def make(scale: str = "demo"):  # type: ignore[no-untyped-def]
        """A study of seconds."""
        return Study("tiny", scale, "A tiny one", "Is it so?", arms, claims, (1, 3), 32)

    studies.register("tiny")(make)
    if not page:
        page_module.report = lambda folders, out: Path(out)  # type: ignore[assignment]


# ---- notes ---------------------------------------------------------------------------------------


def read_notes(notes: Path) -> list[tuple[int, str]]:
    """Each process and what it has noted, in order."""
    if not notes.exists():
        return []
    lines = [line.split(" ", 1) for line in notes.read_text().splitlines()]
    return [(int(pid), word) for pid, word in lines]


def draw_moment(words: list[tuple[int, str]], chance: random.Random, kinds: list[str]) -> Moment:
    """A moment that an uninterrupted run has come to, by what its processes have noted."""
    kind = chance.choice(kinds)
    by_process = [sum(p == pid and w == kind for p, w in words) for pid in {p for p, _ in words}]
    share = chance.choice((0.0, 1.0, chance.random()))
    # early ones more often: a command that is given again has less to write
    return Moment(kind, 1 + int(chance.random() ** 2 * max(by_process, default=0)), share)
