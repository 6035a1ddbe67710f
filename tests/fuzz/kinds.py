"""The kinds of inputs, and how a case is found again: by its kind, the seed and its number."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fuzz_checkpoints import checkpoint_case
from fuzz_flags import flag_case
from fuzz_folders import folder_case
from fuzz_specs import spec_case
from oracle import Generator, judge

KINDS: dict[str, Generator] = {
    "specs": spec_case,
    "flags": flag_case,
    "folders": folder_case,
    "checkpoints": checkpoint_case,
}


@dataclass(frozen=True)
class Failure:
    """A case that went wrong, and the command that shows it again."""

    kind: str
    seed: int
    number: int
    line: str
    problem: str

    def __str__(self) -> str:
        again = f"python tests/fuzz --kind {self.kind} --seed {self.seed} --only {self.number}"
        return f"{self.problem}\n  input: {self.line[:2000]}\n  again: {again}"


def run_case(kind: str, seed: int, number: int, counts: Counter[str]) -> Failure | None:
    """Run one case in a new folder. The same numbers always give the same case."""
    case = KINDS[kind](Random(f"{kind} {seed} {number}"))
    with tempfile.TemporaryDirectory(prefix="outlast-fuzz-") as home:
        (inner := Path(home, "in", "here")).mkdir(parents=True)  # so that .. is empty, too
        accepted, problem = judge(case, inner)
    counts[f"{kind}: {'accepted' if accepted else 'refused'}"] += 1
    return None if problem is None else Failure(kind, seed, number, case.line, problem)
