"""Each named automaton takes the words of its language, and rows of both kinds are drawn."""

import math
import re
from collections.abc import Callable
from itertools import pairwise, product

import pytest
import torch

import outlast
from outlast.evaluation.ladder import rungs
from outlast.runs.spec import LADDER
from outlast.tasks.automata import AUTOMATA


def matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


def no_odd_ones_before_odd_zeros(text: str) -> bool:
    runs = [(run[0], len(run) % 2) for run in re.findall("0+|1+", text)]
    return (("1", 1), ("0", 1)) not in pairwise(runs)


def is_closed(most: int) -> Callable[[str], bool]:
    """Brackets, taken away pair by pair; so many pairs at most lie one in another."""

    def check(text: str) -> bool:
        for _ in range(most):
            text = re.sub("0(x*)1", "x", text)
        return set(text) <= {"x"}

    return check


LANGUAGES: dict[str, Callable[[str], int]] = {
    "tomita1": matches("1*"),
    "tomita2": matches("(10)*"),
    "tomita3": no_odd_ones_before_odd_zeros,
    "tomita4": lambda text: "000" not in text,
    "tomita5": lambda text: text.count("0") % 2 == text.count("1") % 2 == 0,
    "tomita6": lambda text: (text.count("0") - text.count("1")) % 3 == 0,
    "tomita7": matches("0*1*0*1*"),
    "parity": lambda text: text.count("1") % 2 == 1,
    "even_pairs": lambda text: text[:1] == text[-1:],
    "cycle_navigation": lambda text: (text.count("1") - text.count("2")) % 5,
    "modular_arithmetic": lambda text: sum(map(int, text)) % 5,
    **{f"d{depth}": is_closed(depth) for depth in (2, 3, 4, 6, 8, 12)},
    **{
        f"p{p}_{q}": lambda text, p=p, q=q: int(text[:p], q) + 1 if len(text) >= p else 0  # type: ignore[misc]
        for p, q in ((1, 2), (2, 2), (3, 2), (4, 2), (2, 3), (2, 4))
    },
    "aa": matches("(00)*"),
    "aaaa": matches("(0000)*"),
    "abab": matches("(0101)*"),
    "abcde": matches("0+1+2+3+4+"),
    "ab_d_bc": matches("[01]*3[12]*"),
    "any_0_2": matches("[012]*02*"),
}
#: those that tell several kinds of words apart, and the others
KINDS = [name for name in AUTOMATA if max(AUTOMATA[name].answers) > 1]
WORDS = [name for name in AUTOMATA if name not in KINDS]


def test_every_language_has_a_second_definition() -> None:
    assert LANGUAGES.keys() == AUTOMATA.keys()


@pytest.mark.parametrize("name", AUTOMATA)
def test_automaton_takes_the_words_of_its_language(name: str) -> None:
    task = outlast.task(f"regular(language={name}, supervision=outcome)")
    letters = AUTOMATA[name].letters
    longest = 10 if letters == 2 else 6 if letters < 5 else 5
    found = set()
    for length in range(longest):
        for row in product(range(letters), repeat=length):
            answer = task.solve([*row, task.equals])[-1]
            assert answer == LANGUAGES[name]("".join(map(str, row))), row
            found.add(answer)
    assert name == "abcde" or found == set(range(task.classes))


@pytest.mark.parametrize("name", ["abcde", "d6", "d8", "d12"])
def test_automaton_takes_the_long_words_of_its_language(name: str) -> None:
    task = outlast.task(f"regular(language={name}, supervision=outcome)")
    batch = task.sample(30, 200, torch.Generator().manual_seed(1))
    answers = batch.targets[:, -1].tolist()
    for row, answer in zip(batch.inputs[:, :-1].tolist(), answers, strict=True):
        assert LANGUAGES[name]("".join(map(str, row))) == answer
    assert set(answers) == {0, 1}


@pytest.mark.parametrize("depth", [2, 3, 4, 6, 8, 12])
def test_brackets_are_as_deep_as_the_name_says(depth: int) -> None:
    task = outlast.task(f"regular(language=d{depth}, supervision=outcome)")
    for deep, is_word in ((depth, 1), (depth + 1, 0)):
        assert task.solve([*[0] * deep, *[1] * deep, task.equals])[-1] == is_word


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("length", [24, 200])
def test_long_rows_are_in_the_language_and_not(name: str, length: int) -> None:
    task = outlast.task(f"regular(language={name}, supervision=outcome)")
    batch = task.sample(length, 1000, torch.Generator().manual_seed(1))
    assert 0.25 < batch.targets[:, -1].float().mean() < 0.75
    rows = {tuple(row) for row in batch.inputs.tolist()}
    assert len(rows) > 200  # of tomita1 and tomita2, half of the rows are the one word there is


@pytest.mark.parametrize("name", WORDS)
def test_no_tested_length_has_one_answer_alone(name: str) -> None:
    task = outlast.task(f"regular(language={name}, supervision=outcome)")
    assert task.chance_level("state") == 0.5
    assert task.different_answers == 2
    for length in {task.lengths[0] + 4, *(length for _, length in rungs(task, LADDER))}:
        batch = task.sample(length, 100, torch.Generator().manual_seed(1))
        assert set(batch.targets[:, -1].tolist()) == {0, 1}, length


@pytest.mark.parametrize("name", WORDS)
def test_lengths_are_multiples_of_all_lengths_of_words(name: str) -> None:
    words = {s for s, answer in enumerate(AUTOMATA[name].answers) if answer}
    lengths = [length for length in range(1, 40) if AUTOMATA[name].after(length) & words]
    assert outlast.task(f"regular(language={name})").multiple == math.gcd(*lengths)


def test_states_after_many_letters_are_those_followed_one_by_one() -> None:
    for automaton in AUTOMATA.values():
        states = {0}
        for steps in range(30):
            assert automaton.after(steps) == states
            states = {after for state in states for after in automaton.transitions[state]}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_row_is_drawn_alike(name: str) -> None:
    task = outlast.task(f"regular(language={name})")
    answers = task.sample(24, 4000, torch.Generator().manual_seed(1)).targets[:, -1]
    shares = answers.bincount(minlength=task.classes) / len(answers)
    seen = shares[shares > 0]
    assert len(seen) == round(1 / task.chance_level("state"))
    assert (seen * len(seen) - 1).abs().max() < 0.25


def test_letters_of_an_automaton_without_hopeless_states_are_uniform() -> None:
    line = "regular(language=own, transitions=[[1, 0, 0], [1, 0, 1]], accepting=[1])"
    letters = outlast.task(line).sample(30, 500, torch.Generator().manual_seed(1)).inputs[:, :-1]
    shares = letters.flatten().bincount() / letters.numel()
    assert (shares - 1 / 3).abs().max() < 0.02
