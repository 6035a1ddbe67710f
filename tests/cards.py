"""A task so plain that a model for it can be written down by hand, and that model.

A row has n cards, each a key and a value in one token, then ``=``, then questions for keys. At
``=`` the value of the last card is due (part `state`), at a question the value of its key's card
(part `recall`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

import outlast
from outlast.mixers.attention.attention import Attention
from outlast.models.model import Model
from outlast.tasks.base import Batch, BatchBuilder, Length, Task
from outlast.tasks.sampling import distinct, randint, randint_below, shuffle_items
from outlast.tasks.truth import Truth

KEYS, VALUES, QUERIES, WIDTH = 8, 4, 2, 32
CARDS, EQUALS, QUESTIONS = VALUES, VALUES + KEYS * VALUES, VALUES + KEYS * VALUES + 1
#: what the coordinates of the residual stream mean, by the first of each kind
KEY, VALUE, ASKED, END, LATCH, FOUND = 0, 8, 12, 20, 21, 25


class Cards(Task):
    parts = ("state", "recall")
    lengths, ceiling = (2, 4), KEYS
    classes, vocabulary = VALUES, QUESTIONS + KEYS + 1

    def tokens(self, length: int) -> int:
        return length + 1 + QUERIES

    def sample(self, length: Length, batch: int, generator: torch.Generator) -> Batch:
        _, n = self.draw_lengths(length, batch, generator)
        keys = distinct(batch, KEYS, n, generator)
        values = randint(0, VALUES, (batch, n), generator)
        asked = randint_below(torch.full((batch, QUERIES), n), generator)
        builder = BatchBuilder(
            self.parts, batch, self.tokens(n), self.vocabulary - 1, generator.device
        )
        place = torch.arange(self.tokens(n)).expand(batch, -1)
        builder.write(place[:, :n], CARDS + keys * VALUES + values)
        builder.write(place[:, n : n + 1], EQUALS)
        builder.expect(place[:, n : n + 1], values[:, -1:], "state")
        builder.write(place[:, n + 1 :], QUESTIONS + keys.gather(1, asked))
        builder.expect(place[:, n + 1 :], values.gather(1, asked), "recall")
        return builder.batch()

    def shuffled(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        return shuffle_items(inputs, inputs < EQUALS, generator)

    def truth(self, inputs: Sequence[int]) -> Truth:
        truth, places = Truth(), dict[int, int]()
        for place, token in enumerate(inputs):
            if token < EQUALS:
                places[(token - CARDS) // VALUES] = place
                truth.add((token - CARDS) % VALUES, key=(token - CARDS) // VALUES)
            elif token == EQUALS:
                truth.add(truth.state[-1])
            else:
                truth.add(source=places[token - QUESTIONS], key=token - QUESTIONS)
        return truth

    def solve(self, inputs: Sequence[int]) -> list[int | None]:
        cards = dict[int, int]()
        answers: list[int | None] = []
        for token in inputs:
            if token < EQUALS:
                cards[(token - CARDS) // VALUES] = (token - CARDS) % VALUES
                answers.append(None)
            else:
                last = list(cards.values())[-1]
                answers.append(last if token == EQUALS else cards[token - QUESTIONS])
        return answers


@torch.no_grad()
def solved_by_hand(line: str = "lstm | attention(nope, heads=2)") -> Model:
    """A model that is always right: the recurrence keeps the last value, head 0 finds cards.

    Every attention layer looks for the card that is asked for. The last one copies its value.
    """
    model = outlast.model(f"{line} @ {WIDTH}, norm=rms", Cards())
    for parameter in model.body.parameters():
        if parameter.ndim > 1 or parameter.shape[0] != WIDTH:  # not the scale of a norm
            parameter.zero_()
    embedding = model.embedding.weight.zero_()
    for key in range(KEYS):
        for value in range(VALUES):
            card = CARDS + key * VALUES + value
            embedding[card, KEY + key] = embedding[card, VALUE + value] = 1
        embedding[QUESTIONS + key, ASKED + key] = 1
    embedding[EQUALS, END] = 1
    attention = [s.mixer for s in model.sublayers() if isinstance(s.mixer, Attention)]
    for mixer in attention:
        look_for_the_card(mixer)
        mixer.out.bias.zero_()
    for value in range(VALUES):
        model_copy(attention[-1], value)
    for sublayer in model.sublayers():
        if sublayer.pathway == "recurrent":
            keep_the_last_value(sublayer.mixer)
    model.head.weight.zero_()
    model.head.bias.zero_()
    for value in range(VALUES):
        model.head.weight[value, LATCH + value] = 100
        model.head.weight[value, FOUND + value] = 1
    return model.eval()


def look_for_the_card(attention: Attention) -> None:
    q, k, _ = attention.qkv.weight.chunk(3)
    for key in range(KEYS):
        q[key, ASKED + key], k[key, KEY + key] = 10, 1


def model_copy(attention: Attention, value: int) -> None:
    v = attention.qkv.weight.chunk(3)[2]
    v[value, VALUE + value] = 1
    attention.out.weight[FOUND + value, value] = 1


def keep_the_last_value(lstm: torch.nn.Module) -> None:
    enter, forget, candidate, show = lstm.input.weight.chunk(4)
    enter_bias, forget_bias, _, show_bias = lstm.input.bias.chunk(4)
    for value in range(VALUES):
        enter[LATCH : LATCH + VALUES, VALUE + value] = 20
        forget[LATCH : LATCH + VALUES, VALUE + value] = -20
        candidate[LATCH + value, VALUE + value] = 1
    show[:, END] = 20
    enter_bias.fill_(-20)
    forget_bias.fill_(20)
    show_bias.fill_(-20)
