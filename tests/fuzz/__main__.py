"""``make fuzz``: inputs of every kind in turn, for as long as one likes.

python tests/fuzz --minutes 10 --seed 3
python tests/fuzz --kind specs --seed 3 --only 137     one case again
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from kinds import KINDS, run_case  # noqa: E402

#: cases of a kind that are run before the next kind has its turn
TURN = {"specs": 40, "flags": 5, "folders": 10, "checkpoints": 10}


def main() -> int:
    """Run cases until the time is over; the exit code is 1 if any went wrong."""
    parser = argparse.ArgumentParser(prog="python tests/fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=list(KINDS), action="append")
    parser.add_argument("--only", type=int, help="the number of one case to run again")
    options = parser.parse_args()
    kinds = options.kind or list(KINDS)
    counts: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    wrong, start = 0, time.monotonic()
    while time.monotonic() - start < 60 * options.minutes:
        for kind in kinds:
            for _ in range(TURN[kind]):
                number = numbers[kind] if options.only is None else options.only
                numbers[kind] += 1
                failure = run_case(kind, options.seed, number, counts)
                if failure is not None:
                    wrong += 1
                    sys.stdout.write(f"\n{failure}\n")
                    sys.stdout.flush()
                if options.only is not None:
                    return int(wrong > 0)
    seconds = time.monotonic() - start
    for name, count in sorted(counts.items()):
        sys.stdout.write(f"{name} {count}\n")
    sys.stdout.write(f"{counts.total()} inputs in {seconds:.0f} s, {wrong} went wrong\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
