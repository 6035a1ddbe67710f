"""Each named automaton takes the words of its language, and rows of both kinds are drawn."""

import re
from collections.abc import Callable
from itertools import pairwise, product

import pytest
import torch

import outlast
from outlast.tasks.regular import AUTOMATA


def matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


def no_odd_ones_before_odd_zeros(text: str) -> bool:
    runs = [(run[0], len(run) % 2) for run in re.findall("0+|1+", text)]
    return (("1", 1), ("0", 1)) not in pairwise(runs)


LANGUAGES: dict[str, Callable[[str], bool]] = {
    "tomita1": matches("1*"),
    "tomita2": matches("(10)*"),
    "tomita3": no_odd_ones_before_odd_zeros,
    "tomita4": lambda text: "000" not in text,
    "tomita5": lambda text: text.count("0") % 2 == text.count("1") % 2 == 0,
    "tomita6": lambda text: (text.count("0") - text.count("1")) % 3 == 0,
    "tomita7": matches("0*1*0*1*"),
    "parity": lambda text: text.count("1") % 2 == 1,
    "even_pairs": lambda text: text[:1] == text[-1:],
}


@pytest.mark.parametrize("name", AUTOMATA)
def test_automaton_takes_the_words_of_its_language(name: str) -> None:
    task = outlast.task(f"regular(language={name}, supervision=outcome)")
    for length in range(10):
        for letters in product((0, 1), repeat=length):
            answer = task.solve([*letters, 2])[-1]
            assert answer == LANGUAGES[name]("".join(map(str, letters))), letters


@pytest.mark.parametrize("name", AUTOMATA)
@pytest.mark.parametrize("length", [24, 200])
def test_long_rows_are_in_the_language_and_not(name: str, length: int) -> None:
    task = outlast.task(f"regular(language={name}, supervision=outcome)")
    batch = task.sample(length, 1000, torch.Generator().manual_seed(1))
    assert 0.25 < batch.targets[:, -1].float().mean() < 0.75
    rows = {tuple(row) for row in batch.inputs.tolist()}
    assert len(rows) > 200  # of tomita1 and tomita2, half of the rows are the one word there is


def test_letters_of_an_automaton_without_hopeless_states_are_uniform() -> None:
    line = "regular(language=own, transitions=[[1, 0, 0], [1, 0, 1]], accepting=[1])"
    letters = outlast.task(line).sample(30, 500, torch.Generator().manual_seed(1)).inputs[:, :-1]
    shares = letters.flatten().bincount() / letters.numel()
    assert (shares - 1 / 3).abs().max() < 0.02
