"""Regular languages: does the row belong to the language? The state is that of a finite automaton.

Languages by name, or any automaton. Letters are 0, 1, 2 and so on.

- `tomita1` to `tomita7`, from Tomita (1982): ones alone. 10 again and again. No odd run of ones is
  followed by an odd run of zeros. Never three zeros in a row. Zeros and ones are both even in
  number. The number of zeros less that of ones is a multiple of three. Zeros, then ones, then
  zeros, then ones, each run possibly empty.
- `parity`: an odd number of ones. `even_pairs`: the first letter is also the last one. Both, and
  the next two, are from arXiv 2207.02098 (Neural Networks and the Chomsky Hierarchy).
- `cycle_navigation`: the place on a circle of five after steps 0 (stay), 1 (on) and 2 (back).
  `modular_arithmetic`: the sum of digits modulo five. In 2207.02098 it has - and * as well; the
  authors of 2605.26035 describe their version as a sum, and we follow them.
- `d2`, `d3`, `d4`, `d6`, `d8`, `d12`: 0 opens a bracket and 1 closes one. All are closed at the
  end, and never more than so many are open. All six are star-free.
- `p1_2`, `p2_2`, `p3_2`, `p4_2`, `p2_3`, `p2_4`: which the first letters were. `p4_2` asks for the
  first 4, of 2 letters. The answer is 0 if there are fewer; else it is one more than their number,
  the first letter being the highest digit.
- From 2009.11264, with a, b, c as 0, 1, 2: `aa` is (aa)*, `aaaa` is (aaaa)*, `abab` is (abab)*,
  `abcde` is aa*bb*cc*dd*ee*, `ab_d_bc` is {a,b}*d{b,c}*, and `any_0_2` is {0,1,2}*02*.
- `own`: the automaton of `transitions` and `accepting`. Row s of `transitions` has the next state
  for each letter in state s. The start is state 0.

arXiv 2605.26035 (Log-Depth Recurrent Units) tests on 21 languages. Its text was not available to
us. Its authors' code names `tomita3` to `tomita7`, the four of 2207.02098, the six `d`, and prefix
languages. That leaves six prefix languages. The code names `p4_2`; the other five are our guess.

How rows are drawn is our choice, as random letters soon leave most languages for good. A letter is
uniform among those after which the row may still become a word of the language. In half of the rows
this ends at a random place, and letters are uniform from there on. Random brackets are seldom all
closed at the end of a row. So in the `d` languages a letter is uniform among those after which the
row may still end in a word.

Length n is the number of letters; tensors are (batch, n + 1). Token ids: letters, ``=``, padding.
Due is 1 if the letters so far are a word of the language, and else 0: at ``=`` (part `state`) and,
with aligned supervision, at each letter (part `running`, not counted in a test). Some languages
tell more than two kinds of rows apart; then the number of the kind is due. If there are more kinds
than letters, tokens for them stand after the letters; no input has them. A guess is right once in
as many times as there are answers. Constant answers do better where one is more frequent.

In `tomita2`, `tomita5`, `aa` and the `d` languages every word has an even number of letters; in
`aaaa` and `abab` it has a multiple of four. Rows of other lengths would all have the answer 0. So
the lengths of these languages are multiples of two, or of four. Examples::

    regular
    tokens  1 0 0 1 0 0 0 1 =
    labels  1 1 1 1 1 1 0 0 0

    regular(language=own, transitions=[[1, 0, 0], [1, 0, 1]], accepting=[1], supervision=outcome)
    tokens  1 0 2 =
    labels  . . . 1

    regular(language=cycle_navigation)
    tokens  1 1 0 2 2 2 =
    labels  1 2 2 1 0 4 4

    regular(language=p2_2, supervision=outcome)
    tokens  1 0 1 1 =
    labels  . . . . 3
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from outlast.arguments import as_whole, check_choice
from outlast.errors import require
from outlast.registry import tasks
from outlast.tasks.automata import AUTOMATA, WORD_MULTIPLES, Automaton, Language, Transitions
from outlast.tasks.base import Batch, Length, Supervision
from outlast.tasks.sampling import bernoulli, randint, randint_below, shuffle_items
from outlast.tasks.tracking import DeviceTable, Tracking, follow, prefixes

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
            automaton = _read_automaton(transitions, accepting)
        else:
            for field, value in (("transitions", transitions), ("accepting", accepting)):
                accepted = f"nothing with language={language}; give it with language=own alone"
                require(not value, field, list(value), accepted)
            automaton = AUTOMATA[language]
        self.automaton, self.letters = automaton, automaton.letters
        classes = max(automaton.answers) + 1
        self._set_up(max(self.letters, classes), classes, supervision, length)
        self.multiple = WORD_MULTIPLES.get(language, 1)
        kind = f"a multiple of {self.multiple}, as {language} has no words of other lengths"
        require(length % self.multiple == 0, "length", length, kind)
        self.shortest = self.multiple
        self.lengths = (max(2, self.multiple), length)
        #: how many answers rows of `length` letters may have
        self.different_answers = len({automaton.answers[s] for s in automaton.after(length)})
        #: a draw below this picks a letter: it is divided by the number of letters to choose from
        self._draws = math.lcm(*range(1, self.letters + 1))
        self._make_tables()

    def chance_level(self, part: str) -> float:
        """For the longest rows trained on; if they all have one answer, still one of two."""
        super().chance_level(part)
        return 1 / max(2, self.different_answers)

    def _make_tables(self) -> None:
        """For each phase and draw: the letter and the next state in each state, hopeful and free.

        The phase says how many letters are left. There is only one, unless rows must close.
        """
        step, draws = self.automaton.transitions, range(self._draws)
        states, every = range(len(step)), list(range(self.letters))
        endings: list[set[int]] = [set()]
        self._period = 1
        if self.automaton.closes:
            endings, self._period = self.automaton.endings()
        self._phases = len(endings)
        picked = []
        for ending in endings:
            hopeful = [self._hopeful_letters(state, ending) for state in states]
            picked.append([[_pick(some, draw, self._draws) for some in hopeful] for draw in draws])
        free = [_pick(every, draw, self._draws) for draw in draws]
        self._picked, self._free = DeviceTable(picked), DeviceTable(free)
        self._picked_steps = DeviceTable(
            [[[step[s][row[s]] for s in states] for row in rows] for rows in picked]
        )
        self._free_steps = DeviceTable([[step[s][letter] for s in states] for letter in free])
        self._answers = DeviceTable(self.automaton.answers)

    def _hopeful_letters(self, state: int, ending: set[int]) -> list[int]:
        """The letters that lead to a state of `ending`; if there are none, those after which the
        row may still become a word; and all, if there are none of these."""
        row, letters = self.automaton.transitions[state], range(self.letters)
        words = {s for s, answer in enumerate(self.automaton.answers) if answer}
        closing = [a for a in letters if row[a] in ending]
        hopeful = closing or [a for a in letters if words & self.automaton.reached(row[a])]
        return hopeful or list(letters)

    def _phase(self, left: Tensor) -> Tensor:
        """The phase in which so many letters are left after the next one; below 0: padding."""
        first = self._phases - self._period
        return torch.where(left < first, left, first + (left - first) % self._period).clamp_min(0)

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
        phase = self._phase(lengths[:, None] - 1 - place)
        hoping = self._picked_steps.on(device)[phase, draws]
        free = self._free_steps.on(device)[draws]
        after = prefixes(torch.where(hopes[..., None], hoping, free), follow)[..., 0]
        before = torch.nn.functional.pad(after[:, :-1], (1, 0))
        picked = self._picked.on(device)[phase, draws, before]
        letters = torch.where(hopes, picked, self._free.on(device)[draws])
        return self._written(letters, self._answers.on(device)[after], lengths)

    def shuffled(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """The letters in another order: fewer rows are words of the language than before."""
        return shuffle_items(inputs, inputs < self.letters, generator)

    def states(self, items: Sequence[int]) -> list[int]:
        states = [0]
        for letter in items:
            row = self.automaton.transitions[states[-1]]
            states.append(row[letter] if letter < self.letters else states[-1])
        return states

    def answer(self, state: int) -> int:
        return self.automaton.answers[state]


def _pick(letters: Sequence[int], draw: int, draws: int) -> int:
    """The letter that a draw below `draws` stands for."""
    return letters[draw * len(letters) // draws]


def _read_automaton(transitions: Transitions, accepting: tuple[int, ...]) -> Automaton:
    """Refuses what is no automaton, or one that takes every row or none."""
    states = len(transitions)
    letters = {len(row) for row in transitions} or {0}
    kind = f"2 to {MOST_STATES} lists with a state each for the same 2 to {MOST_LETTERS} letters"
    kind += f"; a state is the number of a list, below {states} here" if states >= 2 else ""
    fits = 2 <= states <= MOST_STATES and len(letters) == 1 and 2 <= max(letters) <= MOST_LETTERS
    fits = fits and all(0 <= state < states for row in transitions for state in row)
    require(fits, "transitions", [list(row) for row in transitions], kind)
    automaton = Automaton.accepting(transitions, *accepting)
    reached = automaton.reached(0)
    mixed = 0 < len(set(accepting) & reached) < len(reached)
    fits = mixed and all(0 <= state < states for state in accepting)
    some = f"some states below {states}: some of those that are reached from state 0, and not all"
    require(fits, "accepting", list(accepting), some)
    return automaton
