"""Hostile values: numbers, words and texts that something, somewhere, did not expect."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

SMALL = (
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "7",
    "8",
    "16",
    "25",
    "0.0",
    "0.1",
    "0.5",
    "0.9",
    "1.0",
    "1.5",
)
ODD = ("-1", "-0", "-0.0", "+3", ".5", "1.", "00012", "1e0", "1e-3", "-2.5", "1e5", "99")
#: larger or smaller than any number that is accepted
TOO_LARGE = (
    "1e13", "1e38", "1e300", "1e308", "1e400", "-1e400", "1e-320", "1e-16", "1e16", "9" * 13,
    "9" * 19, "1" + "0" * 20, str(2**63), str(2**64), "-" + str(2**63), "9" * 49, "9" * 60,
    "9" * 500, "9" * 5000, "0." + "3" * 500, "1e99999999999",
)  # fmt: skip
#: accepted as numbers, and far too large for memory
HUGE = (
    "1000",
    "1000000",
    "16777216",
    "16777217",
    str(2**31 - 1),
    str(2**31),
    str(2**40),
    "999999999999",
)
NO_NUMBERS = (
    "nan", "inf", "-inf", "1_000", "0x10", "٣", "１２", "²", "1e", "1e+", "--1", "1,5", "true",
    "false", "none", "None", "", " ", "[]", "[1]", "[1, 2]", "x", "f(1)", '"3"', "1j", "½",
)  # fmt: skip
WORDS = (
    "", " ", "x", "none", "all", "auto", "-", "--", "=", ",", "..", "/", "~", "$HOME", "%s", "{}",
    "'", '"', "\\", "\n", "\t", "\r", "\0", "\x1b[31m", "\x7f", "é", "日本", "🙂", "\u202e",
    "\ufeff", "\udcff", "a" * 300, "a" * 5000, "../x", "[bold]", "[/]", "[red", "<b>", "a b", "*",
)  # fmt: skip
SIGNS = "()[]{},=>|@×x'\"\\.+-*/#$%&!?;: \t\n\0٣é🙂\udcff0123456789eE_ab"


def number(random: Random, huge: bool = True) -> str:
    """A number as it may be typed; half of them are small and plain."""
    pools: Sequence[Sequence[str]] = (SMALL, ODD, TOO_LARGE, NO_NUMBERS, HUGE if huge else ODD)
    return random.choice(random.choices(pools, (10, 4, 3, 3, 2))[0])


def word(random: Random) -> str:
    """A word that is no name of anything."""
    return random.choice(WORDS)


def mutated(random: Random, text: str) -> str:
    """A text with some signs deleted, doubled, swapped or put in, or cut short."""
    signs = list(text)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        place = random.randrange(len(signs) + 1)
        match random.randrange(6):
            case 0:
                del signs[place : place + random.choice((1, 1, 3, 10))]
            case 1:
                signs[place:place] = random.choice(SIGNS)
            case 2:
                signs[place:place] = signs[place : place + 8] * random.choice((1, 1, 2, 200))
            case 3 if len(signs) > 1:
                other = random.randrange(len(signs))
                signs[place - 1], signs[other] = signs[other], signs[place - 1]
            case 4:
                signs[place:place] = number(random)
            case 5:
                del signs[place:]
    return "".join(signs)


def raw(random: Random) -> str:
    """Bytes without a meaning, as a terminal hands them over."""
    length = random.choice((1, 2, 5, 20, 100, 1000))
    return random.randbytes(length).decode("utf-8", "surrogateescape")


def nested(random: Random, inside: str) -> str:
    """Brackets in brackets, some left open."""
    depth = random.choice((2, 10, 49, 51, 200, 1000, 20_000))
    left, right = random.choice((("(", ")"), ("[", "]"), ("f(", ")"), ("2 x (", ")"), ("2 x ", "")))
    return left * depth + inside + right * random.choice((depth, depth, depth - 1, 0))
