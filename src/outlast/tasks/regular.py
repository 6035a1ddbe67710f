"""Regular languages: does the row belong to the language? The state is that of a finite automaton.

Languages by name, or any automaton. `tomita1` to `tomita7` are the languages of Tomita (1982), on
which recurrent networks have been tested since; `even_pairs` is from arXiv 2207.02098 (Neural
Networks and the Chomsky Hierarchy); `parity` is the task `parity` as a language. All are over the
letters 0 and 1:

- `tomita1`: ones alone. `tomita2`: 10 again and again. `tomita3`: no odd run of ones is followed by
  an odd run of zeros. `tomita4`: never three zeros in a row. `tomita5`: zeros and ones are both
  even in number. `tomita6`: the number of zeros less that of ones is a multiple of three.
  `tomita7`: zeros, then ones, then zeros, then ones, each run possibly empty.
- `parity`: an odd number of ones. `even_pairs`: the first letter is also the last one.
- `own`: the automaton of `transitions` and `accepting`. Row s of `transitions` has the next state
  for each letter in state s. The start is state 0.

How rows are drawn is our choice, as random letters soon leave most languages for good. A letter is
uniform among those after which the row may still become a word of the language. In half of the rows
this ends at a random place, and letters are uniform from there on.

Length n is the number of letters; tensors are (batch, n + 1). Token ids: letters, ``=``, padding.
Due is 1 if the letters so far are a word of the language, and else 0: at ``=`` (part `state`) and,
with aligned supervision, at each letter (part `running`, not counted in a test). A guess is right
half the time. Constant answers do better where one is more frequent: `tomita2` and `tomita5` have
no words of odd length. Examples::

    regular
    tokens  1 0 0 1 0 0 0 1 =
    labels  1 1 1 1 1 1 0 0 0

    regular(language=own, transitions=[[1, 0, 0], [1, 0, 1]], accepting=[1], supervision=outcome)
    tokens  1 0 2 =
    labels  . . . 1
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch

from outlast.arguments import as_whole, check_choice
from outlast.errors import require
from outlast.registry import tasks
from outlast.tasks.base import Batch, Length, Supervision
from outlast.tasks.sampling import bernoulli, randint, randint_below
from outlast.tasks.tracking import DeviceTable, Tracking, follow, prefixes

Language = Literal[
    "tomita1", "tomita2", "tomita3", "tomita4", "tomita5", "tomita6", "tomita7",
    "parity", "even_pairs", "own",
]  # fmt: skip
#: row s has the state after each letter in state s
Transitions = tuple[tuple[int, ...], ...]
#: the automata by name: transitions, and the states in which the letters so far are a word
AUTOMATA: dict[str, tuple[Transitions, tuple[int, ...]]] = {
    "tomita1": (((1, 0), (1, 1)), (0,)),
    "tomita2": (((2, 1), (0, 2), (2, 2)), (0,)),
    "tomita3": (((0, 1), (2, 0), (3, 4), (2, 1), (4, 4)), (0, 1, 3)),
    "tomita4": (((1, 0), (2, 0), (3, 0), (3, 3)), (0, 1, 2)),
    "tomita5": (((1, 2), (0, 3), (3, 0), (2, 1)), (0,)),
    "tomita6": (((1, 2), (2, 0), (0, 1)), (0,)),
    "tomita7": (((0, 1), (2, 1), (2, 3), (4, 3), (4, 4)), (0, 1, 2, 3)),
    "parity": (((0, 1), (1, 0)), (1,)),
    "even_pairs": (((1, 3), (1, 2), (1, 2), (4, 3), (4, 3)), (0, 1, 3)),
}
MOST_STATES, MOST_LETTERS = 64, 8


@tasks.register("regular")
class Regular(Tracking):
    """Whether a row belongs to a regular language, asked at the end or all along.

    Args:
        language: The name of the language, or `own`.
        transitions: For `own`: a list for each state, with the next state for each letter.
        accepting: For `own`: the states in which a row is a word of the language.
        supervision: `aligned` asks at each letter; `outcome` at the end alone.
        length: The longest length trained on, in letters.
    """

    paper = "2207.02098 Neural Networks and the Chomsky Hierarchy"
    samples_jointly = True

    def __init__(
        self,
        language: Language = "tomita4",
        transitions: Transitions = (),
        accepting: tuple[int, ...] = (),
        supervision: Supervision = "aligned",
        length: int = 24,
    ) -> None:
        check_choice("language", language, Language)
        if language == "own":
            _check_automaton(transitions, accepting)
        else:
            for field, value in (("transitions", transitions), ("accepting", accepting)):
                require(not value, field, list(value), f"none with language={language}, but own")
            transitions, accepting = AUTOMATA[language]
        self.transitions, self.accepting = transitions, frozenset(accepting)
        self.letters = len(transitions[0])
        self._set_up(self.letters, 2, supervision, length)
        #: a draw below this picks a letter: it is divided by the number of letters to choose from
        self._draws = math.lcm(*range(1, self.letters + 1))
        self._make_tables()

    def _make_tables(self) -> None:
        """For each draw: the letter and the next state in each state, hopeful and free."""
        states, draws = range(len(self.transitions)), range(self._draws)
        hopeful = [self._hopeful_letters(state) for state in states]
        every = list(range(self.letters))
        picked = [[some[draw * len(some) // len(draws)] for some in hopeful] for draw in draws]
        free = [every[draw * len(every) // len(draws)] for draw in draws]
        next_state = self.transitions
        self._picked, self._free = DeviceTable(picked), DeviceTable(free)
        self._picked_steps = DeviceTable(
            [[next_state[s][row[s]] for s in states] for row in picked]
        )
        self._free_steps = DeviceTable([[next_state[s][letter] for s in states] for letter in free])
        self._answers = DeviceTable([self.answer(state) for state in states])

    def _hopeful_letters(self, state: int) -> list[int]:
        """The letters after which the row may still become a word; all, if there are none."""
        row = self.transitions[state]
        letters = range(self.letters)
        hopeful = [a for a in letters if self.accepting & _reached(self.transitions, row[a])]
        return hopeful or list(letters)

    def word(self, token: int) -> str:
        token = as_whole("token", token, 0, self.vocabulary - 1)
        return str(token) if token < self.items else self.symbols[token - self.items]

    def sample(self, length: Length, batch: int, generator: torch.Generator) -> Batch:
        lengths, longest = self.draw_lengths(length, batch, generator)
        device = lengths.device
        place = torch.arange(longest, device=device)
        broken = randint_below(lengths[:, None], generator)
        hopes = bernoulli(0.5, (batch, 1), generator) | (place < broken)
        draws = randint(0, self._draws, (batch, longest), generator)
        hoping, free = self._picked_steps.on(device)[draws], self._free_steps.on(device)[draws]
        after = prefixes(torch.where(hopes[..., None], hoping, free), follow)[..., 0]
        before = torch.nn.functional.pad(after[:, :-1], (1, 0))
        picked = self._picked.on(device)[draws, before]
        letters = torch.where(hopes, picked, self._free.on(device)[draws])
        return self._written(letters, self._answers.on(device)[after], lengths)

    def states(self, items: Sequence[int]) -> list[int]:
        states = [0]
        for letter in items:
            states.append(self.transitions[states[-1]][letter])
        return states

    def answer(self, state: int) -> int:
        return int(state in self.accepting)


def _reached(transitions: Transitions, start: int) -> set[int]:
    """The states that can be reached from one, itself included."""
    reached, left = {start}, [start]
    while left:
        new = set(transitions[left.pop()]) - reached
        reached |= new
        left += new
    return reached


def _check_automaton(transitions: Transitions, accepting: tuple[int, ...]) -> None:
    """Refuse what is no automaton, or one that takes every row or none."""
    states = len(transitions)
    letters = {len(row) for row in transitions} or {0}
    kind = f"2 to {MOST_STATES} lists with a state each for the same 2 to {MOST_LETTERS} letters"
    fits = 2 <= states <= MOST_STATES and len(letters) == 1 and 2 <= max(letters) <= MOST_LETTERS
    fits = fits and all(0 <= state < states for row in transitions for state in row)
    require(fits, "transitions", [list(row) for row in transitions], kind)
    fits = all(0 <= state < states for state in accepting)
    met = len(set(accepting) & _reached(transitions, 0)) if fits else 0
    mixed = 0 < met < len(_reached(transitions, 0))
    some = f"some states below {states}: some of those that are reached from state 0, and not all"
    require(mixed, "accepting", list(accepting), some)
