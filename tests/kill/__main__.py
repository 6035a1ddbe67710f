"""`make kill`: SIGKILL commands at many moments, resume them, and compare bit for bit.

It prints a table: each case, its kills, how often it was resumed, and the bits that differ from the
case that nobody killed. The exit code is 1 if anything differs, is missing or is left over.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(1, str(Path(__file__).parents[1]))

from kill_cases import CASES, Case
from kill_harness import Harness, Tally, kill_cases


def main() -> int:
    """Read the command line, and kill."""
    parser = argparse.ArgumentParser(prog="make kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="at least so many")
    parser.add_argument("--seed", type=int, default=0, help="the moments are drawn from it")
    parser.add_argument("--cases", nargs="*", default=["*"], help="names or patterns of cases")
    parser.add_argument("--json", type=Path, help="a file for the numbers of each case")
    options = parser.parse_args()
    cases = [c for c in CASES if any(fnmatch.fnmatchcase(c.name, p) for p in options.cases)]
    if not cases:
        parser.error(f"no such case; there are: {', '.join(case.name for case in CASES)}")
    began, tallies = time.monotonic(), dict[str, Tally]()
    with TemporaryDirectory(prefix="kill") as home:
        for case, tally in kill_cases(Harness(Path(home), options.seed), cases, options.kills):
            tallies[case.name] = tally
            _say(f"{time.monotonic() - began:6.0f} s  {_line(case, tally)}")
            for fault in tally.faults:
                _say(f"    {fault}")
    _say(f"\n{'case':44} {'kills':>6} {'resumes':>8} {'errors':>7} {'bits':>6} {'faults':>7}")
    for case in cases:
        _say(_line(case, tallies[case.name]))
    total = sum((tally.moments for tally in tallies.values()), Counter())
    faults = sum(len(tally.faults) for tally in tallies.values())
    bits = sum(tally.bits for tally in tallies.values())
    _say("\nkills by moment: " + ", ".join(f"{word} {n}" for word, n in total.most_common()))
    _say(
        f"{total.total()} kills of {len(cases)} cases in {time.monotonic() - began:.0f} s: "
        f"{bits} differing bits, {faults} faults"
    )
    if options.json:
        numbers = {name: vars(tally) | {"kills": tally.kills} for name, tally in tallies.items()}
        options.json.write_text(json.dumps(numbers))
    return int(bool(faults or bits))


def _line(case: Case, tally: Tally) -> str:
    name = case.name if len(case.name) <= 44 else f"{case.name[:41]}..."
    counts = (tally.kills, tally.resumes, tally.errors, tally.bits, len(tally.faults))
    return "{:44} {:>6} {:>8} {:>7} {:>6} {:>7}".format(name, *counts)


def _say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
