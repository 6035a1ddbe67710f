"""Finite automata by name, for the task `regular`.

An automaton has an answer for each state. 0 says that the letters so far are no word of the
language. 1 says that they are one; some automata tell several kinds of words apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal

#: row s has the state after each letter in state s
Transitions = tuple[tuple[int, ...], ...]
Language = Literal[
    "tomita1", "tomita2", "tomita3", "tomita4", "tomita5", "tomita6", "tomita7",
    "parity", "even_pairs", "cycle_navigation", "modular_arithmetic",
    "d2", "d3", "d4", "d6", "d8", "d12",
    "p1_2", "p2_2", "p3_2", "p4_2", "p2_3", "p2_4",
    "aa", "aaaa", "abab", "abcde", "ab_d_bc", "any_0_2",
    "own",
]  # fmt: skip


@dataclass(frozen=True)
class Automaton:
    """Transitions and answers; the start is state 0.

    `closes` asks for rows that end in a word, where random letters would seldom end in one.
    """

    transitions: Transitions
    answers: tuple[int, ...]
    closes: bool = False

    @classmethod
    def accepting(cls, transitions: Transitions, *states: int) -> Automaton:
        """The answer is 1 in these states, and else 0."""
        return cls(transitions, tuple(int(s in states) for s in range(len(transitions))))

    @property
    def letters(self) -> int:
        return len(self.transitions[0])

    def reached(self, start: int) -> set[int]:
        """The states that can be reached from one, itself included."""
        reached, left = {start}, [start]
        while left:
            new = set(self.transitions[left.pop()]) - reached
            reached |= new
            left += new
        return reached

    def after(self, steps: int) -> set[int]:
        """The states in which a row of exactly so many letters may end."""
        states, stride = {0}, [set(row) for row in self.transitions]  # of 1, 2, 4, ... letters
        while steps:
            if steps % 2:
                states = set[int]().union(*(stride[state] for state in states))
            stride = [set[int]().union(*(stride[state] for state in row)) for row in stride]
            steps //= 2
        return states

    def endings(self) -> tuple[list[set[int]], int]:
        """States from which some word ends after exactly 0, 1, 2, ... letters more.

        As the states for one more letter follow from those before, the list comes to repeat
        itself. Returns it up to there, and the number of its last entries that come again.
        """
        lists: list[set[int]] = []
        states = {state for state, answer in enumerate(self.answers) if answer}
        while states not in lists:
            lists.append(states)
            rows = enumerate(self.transitions)
            states = {state for state, row in rows if set(row) & lists[-1]}
        return lists, len(lists) - lists.index(states)


def _brackets(depth: int) -> Automaton:
    """Brackets that are closed in order, never more than `depth` open: 0 opens, 1 closes."""
    dead = depth + 1
    rows = [(min(d + 1, dead), d - 1 if d else dead) for d in range(depth + 1)]
    rows.append((dead, dead))
    return Automaton(tuple(rows), (1, *[0] * dead), closes=True)


def _cycle(steps: tuple[int, ...], places: int) -> Automaton:
    """A walk on a circle: letter a goes `steps[a]` places on; the answer is the place."""
    rows = [tuple((place + step) % places for step in steps) for place in range(places)]
    return Automaton(tuple(rows), tuple(range(places)))


def _prefix(length: int, letters: int) -> Automaton:
    """Which are the first `length` letters: 0 if there are fewer, else one more than their number.

    The first letter is the highest digit of the number.
    """
    seen = [row for n in range(length + 1) for row in product(range(letters), repeat=n)]
    state = {row: index for index, row in enumerate(seen)}
    every = range(letters)
    rows = [tuple(state[(*row, a)[:length]] for a in every) for row in seen]
    full = state[(0,) * length]
    return Automaton(tuple(rows), tuple(max(0, index - full + 1) for index in range(len(seen))))


def _chain(*follows: str) -> Automaton:
    """State s has a sign for each letter: the next state, or - for a row that is lost.

    The states whose text ends in ! are those of words.
    """
    dead = len(follows)
    rows = [tuple(dead if sign == "-" else int(sign) for sign in f.strip("!")) for f in follows]
    rows.append((dead,) * len(rows[0]))
    words = [state for state, follow in enumerate(follows) if follow.endswith("!")]
    return Automaton.accepting(tuple(rows), *words)


AUTOMATA: dict[str, Automaton] = {
    "tomita1": Automaton.accepting(((1, 0), (1, 1)), 0),
    "tomita2": Automaton.accepting(((2, 1), (0, 2), (2, 2)), 0),
    "tomita3": Automaton.accepting(((0, 1), (2, 0), (3, 4), (2, 1), (4, 4)), 0, 1, 3),
    "tomita4": Automaton.accepting(((1, 0), (2, 0), (3, 0), (3, 3)), 0, 1, 2),
    "tomita5": Automaton.accepting(((1, 2), (0, 3), (3, 0), (2, 1)), 0),
    "tomita6": Automaton.accepting(((1, 2), (2, 0), (0, 1)), 0),
    "tomita7": Automaton.accepting(((0, 1), (2, 1), (2, 3), (4, 3), (4, 4)), 0, 1, 2, 3),
    "parity": Automaton.accepting(((0, 1), (1, 0)), 1),
    "even_pairs": Automaton.accepting(((1, 3), (1, 2), (1, 2), (4, 3), (4, 3)), 0, 1, 3),
    "cycle_navigation": _cycle((0, 1, -1), 5),
    "modular_arithmetic": _cycle((0, 1, 2, 3, 4), 5),
    **{f"d{depth}": _brackets(depth) for depth in (2, 3, 4, 6, 8, 12)},
    **{f"p{p}_{q}": _prefix(p, q) for p, q in ((1, 2), (2, 2), (3, 2), (4, 2), (2, 3), (2, 4))},
    "aa": _chain("1-!", "0-"),
    "aaaa": _chain("1-!", "2-", "3-", "0-"),
    "abab": _chain("1-!", "-2", "3-", "-0"),
    "abcde": _chain("1----", "12---", "-23--", "--34-", "---45", "----5!"),
    "ab_d_bc": _chain("00-1", "-11-!"),
    "any_0_2": _chain("100", "101!"),
}
#: languages all of whose words have a multiple of so many letters
WORD_MULTIPLES: dict[str, int] = {
    **dict.fromkeys(("tomita2", "tomita5", "aa"), 2),
    **{f"d{depth}": 2 for depth in (2, 3, 4, 6, 8, 12)},
    **dict.fromkeys(("aaaa", "abab"), 4),
}
