"""Kills commands again and again, gives them again, and compares with those that nobody killed.

A command that was killed is given again, and then what its error advises: as a user would.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import re
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kill_cases import Case, Command
from kill_compare import differences
from kill_jobs import (
    BLOCK_ERROR,
    ENDED,
    MOMENTS,
    STARTED,
    Job,
    draw_moment,
    read_notes,
    run_job,
)

#: seconds after which a command hangs
PATIENCE = 600
#: at any moment, to all processes of the command, to its first one alone, or to another one
ANY_MOMENT = ("all processes", "the first process", "another process")
#: the exit code of a command that is refused
MISTAKE = 2
GRID_WAS_KILLED = "the command that made the grid was killed. Give it again with --overwrite"


class Fault(Exception):
    """Something that must not come of a kill."""


@dataclass
class Tally:
    """What came of a case."""

    tries: int = 0
    resumes: int = 0
    errors: int = 0
    bits: int = 0
    moments: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return self.moments.total()


@dataclass(frozen=True)
class Ending:
    """How a command ended: its exit code, what it printed, and what killed its processes."""

    code: int
    output: str
    kills: list[str]
    notes: list[tuple[int, str]]
    seconds: float


@dataclass(frozen=True)
class Reference:
    """Commands that nobody killed: their folder, and how each ended."""

    folder: Path
    endings: list[Ending]


class Harness:
    """Gives commands in folders of `home`; everything is drawn from the seed."""

    def __init__(self, home: Path, seed: int = 0) -> None:
        self.home, self.seed = home, seed
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # the server is a program of its own
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["kill_preload"])
        self.references: dict[str, Reference] = {}
        self.folders = 0

    def try_case(self, case: Case, kills: int, tally: Tally) -> None:
        """Give the commands of a case, kill them at most some times, and compare."""
        chance = random.Random(f"{self.seed} {case.name} {tally.tries}")
        tally.tries += 1
        before = tally.kills
        try:
            reference = self._reference(case)
            folder = self._new_folder(case)
            pairs = zip(case.commands, reference.endings, strict=True)
            for number, (command, ending) in enumerate(pairs, 1):
                most = before + math.ceil(kills * number / len(case.commands))
                self._give_until_done(case, command, folder, ending, most, chance, tally)
            bits, faults = differences(folder, reference.folder)
            tally.bits += bits
            tally.faults += faults
        except Fault as fault:
            tally.faults.append(str(fault))

    def _give_until_done(
        self,
        case: Case,
        command: Command,
        folder: Path,
        expected: Ending,
        most: int,
        chance: random.Random,
        tally: Tally,
    ) -> None:
        words = command
        for _ in range(10 * case.most):
            moment, delay = None, math.inf
            if tally.kills < most and chance.random() < 0.5:
                delay = chance.random() ** 1.5 * expected.seconds
            elif tally.kills < most:
                kinds = [kind for kind in MOMENTS if kind in {word for _, word in expected.notes}]
                kinds += [BLOCK_ERROR] * (len(kinds) if case.errors else 0)
                moment = draw_moment(expected.notes, chance, kinds)
            target = chance.choice(ANY_MOMENT)
            ending = self._give(Job(case, words, folder, *self._files(), moment), delay, target)
            tally.moments.update(ending.kills)
            failed = moment is not None and moment.kind == BLOCK_ERROR and ending.code == 1
            tally.errors += failed
            if ending.code == 0:
                return
            if ending.kills or failed:
                tally.resumes += 1
                words = command
            else:
                words = self._advised(command, words, ending)
        raise Fault(f"{shlex.join(command)} does not come to an end")

    def _advised(self, command: Command, words: Command, ending: Ending) -> Command:
        """The command that an error names; any other error is a fault."""
        text = " ".join(ending.output.split())
        resume = re.search("go on with 'outlast (resume [^']*)'", text)
        if ending.code == MISTAKE and resume and words[0] != "resume":
            return (*shlex.split(resume[1]), "--device", "cpu")
        if ending.code == MISTAKE and resume and "--seeds" in words:
            return (*shlex.split(resume[1]), "--device", "cpu")
        if ending.code == MISTAKE and GRID_WAS_KILLED in text and command[0] == "train":
            return (*command, "--overwrite")
        raise Fault(f"{shlex.join(words)} ends with {ending.code}: {ending.output[-2000:]}")

    # ---- processes -------------------------------------------------------------------------------

    def _give(self, job: Job, delay: float = math.inf, target: str = "") -> Ending:
        """Run a command in a process, and kill it after a delay."""
        began, kills = time.monotonic(), []
        process = self.context.Process(target=run_job, args=(job,))
        process.start()
        process.join(min(delay, PATIENCE))
        if process.is_alive() and delay < PATIENCE:
            kills = self._kill(process, job, target)
            process.join(PATIENCE)
        if process.is_alive():
            process.kill()
            raise Fault(f"{shlex.join(job.command)} hangs: {job.output.read_text()[-2000:]}")
        seconds = time.monotonic() - began
        if process.exitcode != -signal.SIGKILL and kills != ["another process"]:
            kills = []  # it had ended before
        self._wait_for_helpers(job)
        notes = read_notes(job.notes)
        if job.moment is not None:
            kills += [job.moment.kind] * sum(word == ENDED for _, word in notes)
        output = job.output.read_text() if job.output.exists() else ""
        return Ending(process.exitcode, output, kills, notes, seconds)

    def _kill(self, process: Any, job: Job, target: str) -> list[str]:
        """Send SIGKILL to some processes of a command; returns a word for each that was alive."""
        helpers = [pid for pid in self._pids(job) if pid != process.pid and is_alive(pid)]
        if target == "another process" and helpers:
            with suppress(ProcessLookupError):
                os.kill(helpers[-1], signal.SIGKILL)
                return [target]
        process.kill()
        for pid in helpers if target == "all processes" else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return ["all processes" if target == "all processes" and helpers else "the first process"]

    def _pids(self, job: Job) -> list[int]:
        return [pid for pid, word in read_notes(job.notes) if word == STARTED]

    def _wait_for_helpers(self, job: Job) -> None:
        """Arms of a study whose first process is gone save and leave; a worker just leaves."""
        end = time.monotonic() + PATIENCE
        while any(is_alive(pid) for pid in self._pids(job)):
            if time.monotonic() > end:
                raise Fault(f"{shlex.join(job.command)} has left a process behind")
            time.sleep(0.01)

    # ---- folders ---------------------------------------------------------------------------------

    def _reference(self, case: Case) -> Reference:
        """The folder of a case whose commands nobody kills, made once."""
        if case.name not in self.references:
            folder = self._new_folder(case)
            endings = []
            for command in case.commands:
                endings.append(self._give(Job(case, command, folder, *self._files())))
                if endings[-1].code != 0:
                    raise Fault(f"{shlex.join(command)} fails: {endings[-1].output[-2000:]}")
            self.references[case.name] = Reference(folder, endings)
        return self.references[case.name]

    def _new_folder(self, case: Case) -> Path:
        """A new folder, with a run in it that was stopped half way, if the case has one."""
        self.folders += 1
        folder = self.home / f"{self.folders}"
        folder.mkdir(parents=True)
        if case.half is not None:
            ending = self._give(Job(case, case.half, folder, *self._files(), until=12))
            if ending.code != 130:
                raise Fault(f"{shlex.join(case.half)} is not stopped: {ending.output[-2000:]}")
        return folder

    def _files(self) -> tuple[Path, Path]:
        """Files for the notes and the output of one command, beside the folders."""
        self.folders += 1
        return self.home / f"{self.folders}.notes", self.home / f"{self.folders}.output"


def is_alive(pid: int) -> bool:
    """Whether there is such a process; one that has ended and waits to be asked after is none."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def kill_cases(harness: Harness, cases: Sequence[Case], kills: int) -> Iterator[tuple[Case, Tally]]:
    """Try every case until there are enough kills, and each case has one; yields after each try."""
    tallies = {case.name: Tally() for case in cases}
    while True:
        done = sum(tally.kills for tally in tallies.values())
        if done >= kills and all(tally.kills or tally.faults for tally in tallies.values()):
            return
        if any(tally.tries > kills for tally in tallies.values()):
            raise Fault(f"only {done} of {kills} kills in {kills} tries of each case")
        each = max(1, math.ceil((kills - done) / len(cases)))
        for case in cases if done < kills else [c for c in cases if not tallies[c.name].kills]:
            harness.try_case(case, min(case.most, each), tallies[case.name])
            yield case, tallies[case.name]
