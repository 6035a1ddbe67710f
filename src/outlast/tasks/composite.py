"""State tracking and associative recall in one sequence: the task delayed attention is about.

From arXiv 2510.00258 (Delayed Attention Training): a modulo sum and key queries over the same
sequence, trained up to length 25. The paper's exact format is not public; the three layouts, the
closing ``=``, the number of keys and of queries are our choice, so results on this task are a
re-design. Lengths from 2 and the two kinds of supervision follow 2602.18333.

- `separate`: n (key, digit) pairs with distinct keys. At ``=`` the sum of all digits modulo m is
  due (part `state`), and at each key after it the digit stored under that key (part `recall`).
- `chained`: the same row, but a queried key asks for the running sum at the moment its digit was
  seen, that digit included: recall of a state.
- `interleaved`: n items, each a lone digit (added to the sum) or a (key, digit) pair (only stored),
  half and half by chance, at least one of each.

With `group` the digits are elements of a group, and the sum is their product in the order in which
they stand, as in the task `permutation`: a state that no sum can stand in for. This is our own.

`key_tokens` and `repeat` make rows possible that are longer than there are key tokens. Both are our
own. A key of two tokens is one of keys squared; the answer is due at its last token. With
`repeat=latest` keys are drawn with repetition, and the newest value of a key counts.

In a long row many keys share a token with the one that is asked for; in a short row hardly any do.
With `key_pool` half of the rows in training draw the tokens of their keys from so few that short
rows have neighbours like those of a long one. A test draws from all. This is our own, too.

Aligned supervision also asks for the running sum at every digit that is added (part `running`, not
counted in a test). Queried pairs are drawn uniformly, with repetition.

Length n is the number of pairs or items; tensors are (batch, 2n + 1 + queries) with keys of one
token. Token ids: digits 0..m-1, keys m..m+keys-1, ``=``, padding. A guess is right once in m times;
with a group m is its size: 6, 120 or 60. Examples::

    composite(queries=2)
    tokens  k3 5 k1 8 k6 4 = k1 k3
    labels  .  5 .  3 .  7 7 8  5

    composite(layout=chained, queries=2)
    tokens  k3 5 k1 8 k6 4 = k1 k3
    labels  .  5 .  3 .  7 7 3  5

    composite(layout=interleaved, queries=2)
    tokens  5 k1 8 4 k6 2 = k1 k6
    labels  5 .  . 9 .  . 9 8  2

    composite(keys=9, queries=2, key_tokens=2, repeat=latest)
    tokens  k3 k1 5 k1 k3 8 k3 k1 4 = k3 k1 k1 k3
    labels  .  .  5 .  .  3 .  .  7 7 .  4  .  8

    composite(queries=2, group=S3)
    tokens  k3 231 k1 213 k6 213 =   k1  k3
    labels  .  231 .  321 .  231 231 213 231
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from outlast.arguments import as_whole, check_choice, check_whole
from outlast.errors import incompatible, require
from outlast.registry import tasks
from outlast.tasks.base import Batch, BatchBuilder, Length, Supervision, Task, check_keys
from outlast.tasks.groups import Group, GroupName, Orders, Sums
from outlast.tasks.sampling import (
    bernoulli,
    by_swaps,
    distinct,
    randint,
    randint_below,
    shuffle_items,
)
from outlast.tasks.truth import Truth

Layout = Literal["separate", "interleaved", "chained"]
#: whether a key may stand in a row again, and which of its values counts then
Repeat = Literal["never", "latest"]
#: the modulus, if nobody says
DIGITS = 10
#: the most keys of a row that are drawn by swaps; more are a sort of all keys there are
FEW = 256
#: so many keys there must be for any number of them to be drawn by swaps
MANY = 2**20
#: the most different keys
MOST_KEYS = 2**40


@tasks.register("composite")
class Composite(Task):
    """A sum modulo m and values under keys, asked for one after the other.

    Args:
        modulus: The sum is taken modulo this number, and digits are below it.
        keys: How many different tokens keys are made of.
        layout: How digits and keys stand in a row: see above.
        supervision: `aligned` also asks for the running sum at each digit; `outcome` does not.
        queries: How many keys are asked for at the end of a row.
        length: The longest length trained on, in pairs or items.
        key_tokens: How many tokens a key has.
        repeat: `never` if the keys of a row differ; with `latest` the newest value of a key counts.
        group: Elements of a group in place of digits, and their product in place of the sum.
        from: The shortest length trained on.
        key_pool: From how many key tokens half of the rows in training draw their keys, which have
            several tokens; 0: from all, as a test does.
    """

    paper = "2510.00258 Delayed Attention Training"
    samples_jointly = True
    symbols = "=·"

    def __init__(
        self,
        modulus: int = DIGITS,
        keys: int = 1024,
        layout: Layout = "separate",
        supervision: Supervision = "aligned",
        queries: int = 8,
        length: int = 25,
        key_tokens: int = 1,
        repeat: Repeat = "never",
        group: GroupName | None = None,
        from_: int = 2,
        key_pool: int = 0,
    ) -> None:
        check_whole("modulus", modulus, 2)
        self.group = _choose_group(modulus, group)
        modulus = self.group.size  # how many digits, or elements, there are
        check_choice("layout", layout, Layout)
        check_choice("supervision", supervision, Supervision)
        check_whole("queries", queries, 1)
        check_whole("length", length, 2)
        check_choice("repeat", repeat, Repeat)
        self.repeats = repeat == "latest"
        self.modulus, self.keys, self.queries = modulus, keys, queries
        self.key_tokens, self.different_keys = (
            key_tokens,
            self._count_keys(keys, key_tokens, length),
        )
        self.key_pool = self._check_pool(key_pool, length)
        self.layout, self.aligned = layout, supervision == "aligned"
        self.ceiling = None if self.repeats else self.different_keys
        self.longer = (
            f"keys={keys} and key_tokens={key_tokens} make {self.different_keys} different keys; "
            f"key_tokens={key_tokens + 1} makes more, and with repeat=latest they may repeat"
        )
        self.shortest = 2 if layout == "interleaved" else 1
        check_whole("from", from_, self.shortest, length)
        self.lengths = (from_, length)
        self.parts = ("state", "recall", "running") if self.aligned else ("state", "recall")
        self.auxiliary = self.parts[2:]
        self.answers_are_states = layout == "interleaved"  # elsewhere a digit is stored as well
        self.classes = modulus
        self.equals, self.pad = modulus + keys, modulus + keys + 1
        self.vocabulary = modulus + keys + 2

    def _count_keys(self, keys: int, key_tokens: int, length: int) -> int:
        """How many different keys there are; refuses too few for a row of `length`."""
        if key_tokens == 1 and not self.repeats:
            check_keys(keys, length)
        needed = 1 if self.repeats else length
        if not isinstance(keys, int) or keys < 2:
            check_whole("key_tokens", key_tokens, 1)
            check_whole("keys", keys, max(2, _root(needed, key_tokens)))
        check_whole("keys", keys, 2)
        counts = [n for n in range(1, 41) if needed <= keys**n <= MOST_KEYS]
        limits = f"a number with a power from length={length} to {MOST_KEYS:,}"
        require(bool(counts), "keys", keys, limits)
        accepted = f"a whole number from {counts[0]} to {counts[-1]}"
        accepted += f" with keys={keys}" + f" and length={length}" * (not self.repeats)
        whole = isinstance(key_tokens, int) and not isinstance(key_tokens, bool)
        require(whole and key_tokens in counts, "key_tokens", key_tokens, accepted)
        return int(keys**key_tokens)

    def _check_pool(self, key_pool: int, length: int) -> int:
        """Refuses a pool that makes too few keys for a row of `length`, or that does nothing."""
        check_whole("key_pool", key_pool, 0, self.keys)
        if not key_pool:
            return 0
        if self.key_tokens == 1:
            raise incompatible(
                f"key_pool={key_pool}", "key_tokens=1", "keys of one token have none to share"
            )
        needed = 1 if self.repeats else length
        least = max(2, _root(needed, self.key_tokens))
        accepted = f"0, or from {least} with key_tokens={self.key_tokens} and length={length}"
        require(key_pool >= least, "key_pool", key_pool, accepted)
        return key_pool

    def tokens(self, length: int) -> int:
        return (self.key_tokens + 1) * length + 1 + self.key_tokens * self.queries

    def sample(self, length: Length, batch: int, generator: torch.Generator) -> Batch:
        return self._sample(length, batch, generator, self.key_pool)

    def test_batch(self, length: int, batch: int, generator: torch.Generator) -> Batch:
        return self._sample(length, batch, generator, 0)

    def _sample(self, length: Length, batch: int, generator: torch.Generator, pool: int) -> Batch:
        """Rows whose key tokens are drawn from `pool` of them; 0: from all."""
        lengths, longest = self.draw_lengths(length, batch, generator)
        present = torch.arange(longest, device=generator.device) < lengths[:, None]
        keyed, added = self._draw_kinds(lengths, longest, generator)
        keys = self._draw_keys(self.different_keys, batch, longest, generator)
        # a pool that suffices for the rows of training may not do so for longer ones
        if pool > 0 and (self.repeats or longest <= pool**self.key_tokens):
            chosen = bernoulli(0.5, (batch, 1), generator)
            keys = torch.where(
                chosen, self._draw_pooled_keys(batch, longest, pool, generator), keys
            )
        digits = randint(0, self.modulus, (batch, longest), generator)
        running = self.group.running(digits * added)  # 0 changes nothing
        ends = (present.long() + self.key_tokens * (present & keyed)).cumsum(1)

        builder = BatchBuilder(self.parts, batch, self.tokens(longest), self.pad, generator.device)
        self._write_keys(builder, ends - 1 - self.key_tokens, keys, present & keyed)
        builder.write(ends - 1, digits, present)
        if self.aligned:
            builder.expect(ends - 1, running, "running", present & added)
        close = ends[:, -1:]
        builder.write(close, self.equals)
        builder.expect(close, running.gather(1, lengths[:, None] - 1), "state")

        queried = self._draw_queries(present & keyed, generator)
        number = torch.arange(self.queries, device=generator.device)
        query_at = close + 1 + self.key_tokens * number
        answers = running if self.layout == "chained" else digits
        self._write_keys(builder, query_at, keys.gather(1, queried))
        if self.repeats:
            queried = _newest(keys, present & keyed, queried)
        builder.expect(query_at + self.key_tokens - 1, answers.gather(1, queried), "recall")
        return builder.batch()

    def _draw_pooled_keys(
        self, batch: int, count: int, pool: int, generator: torch.Generator
    ) -> Tensor:
        """As `_draw_keys`, with tokens from `pool` of them, others for each row."""
        tokens = distinct(batch, self.keys, pool, generator)
        drawn = self._draw_keys(pool**self.key_tokens, batch, count, generator)
        keys = torch.zeros_like(drawn)
        for place in range(self.key_tokens):
            sign = drawn // pool ** (self.key_tokens - 1 - place) % pool
            keys = keys * self.keys + tokens.gather(1, sign)
        return keys

    def _draw_keys(
        self, choices: int, batch: int, count: int, generator: torch.Generator
    ) -> Tensor:
        """The number of a key for each item, (batch, count), below `choices`."""
        if self.repeats:
            return randint(0, choices, (batch, count), generator)
        few = count <= FEW and count * count <= choices
        if self.key_tokens > 1 and (few or choices > MANY):
            return by_swaps(batch, choices, count, generator)
        return distinct(batch, choices, count, generator)

    def _write_keys(
        self, builder: BatchBuilder, at: Tensor, keys: Tensor, mask: Tensor | None = None
    ) -> None:
        """Write the tokens of keys from these positions on: a key's number in base `keys`."""
        for place in range(self.key_tokens):
            sign = keys // self.keys ** (self.key_tokens - 1 - place) % self.keys
            builder.write(at + place, self.modulus + sign, mask)

    def _draw_kinds(
        self, lengths: Tensor, longest: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Which items have a key, and which are added to the sum: two (batch, longest) masks."""
        shape = (len(lengths), longest)
        if self.layout != "interleaved":
            every = torch.ones(shape, dtype=torch.bool, device=lengths.device)
            return every, every
        keyed = bernoulli(0.5, shape, generator)
        # two different items of each row are set, so that neither kind is ever missing
        n = lengths[:, None]
        one = randint_below(n, generator)
        other = (one + 1 + randint_below(n - 1, generator)) % n
        keyed = keyed.scatter(1, one, True).scatter(1, other, False)
        return keyed, ~keyed

    def _draw_queries(self, stored: Tensor, generator: torch.Generator) -> Tensor:
        """Which items are queried, (batch, queries): uniform over those `stored` marks."""
        count = stored.cumsum(1)
        rank = 1 + randint_below(count[:, -1:].expand(-1, self.queries), generator)
        # the first place where the count reaches r is the r-th stored item
        return torch.searchsorted(count, rank)

    def word(self, token: int) -> str:
        token = as_whole("token", token, 0, self.vocabulary - 1)
        return self.group.word(token) if token < self.modulus else super().word(token)

    def shuffled(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        return shuffle_items(inputs, inputs < self.modulus, generator)

    def truth(self, inputs: Sequence[int]) -> Truth:
        truth, places = Truth(), dict[int | None, int]()
        total, signs, closed = 0, list[int](), False
        for place, token in enumerate(inputs):
            if token < self.modulus:
                key = self._number(signs)
                if key is None or self.layout != "interleaved":
                    total = self.group.product(total, token)
                if key is not None:
                    places[key] = place
                truth.add(total, key=key)
                signs = []
            elif token < self.equals:
                signs = [*signs, token - self.modulus][-self.key_tokens :]
                number = self._number(signs)
                askable = number is not None and (closed or not self.repeats)
                source = places.get(number) if askable else None
                truth.add(total, source, number)
                signs = signs if source is None else []
            else:
                closed = closed or token == self.equals
                truth.add(total if token == self.equals else None)
        return truth

    def _number(self, signs: list[int]) -> int | None:
        """The number of a key from its tokens, if they are all there."""
        if len(signs) < self.key_tokens:
            return None
        return sum(sign * self.keys**place for place, sign in enumerate(reversed(signs)))

    def solve(self, inputs: Sequence[int]) -> list[int | None]:
        answers: list[int | None] = []
        stored: dict[tuple[int, ...], int] = {}
        total, key, closed = 0, tuple[int, ...](), False
        for token in inputs:
            answer = None
            if token < self.modulus:
                keyed = len(key) == self.key_tokens
                if not keyed or self.layout != "interleaved":
                    total = self.group.product(total, token)
                    answer = total if self.aligned else None
                if keyed:
                    stored[key] = total if self.layout == "chained" else token
                key = ()
            elif token == self.equals:
                answer, closed = total, True
            elif token != self.pad:
                # a key that was stored is a question if none repeats; any other awaits its digit
                key = (*key, token)[-self.key_tokens :]
                answer = stored.get(key) if closed or not self.repeats else None
                key = key if answer is None else ()
            answers.append(answer)
        return answers


def _choose_group(modulus: int, group: GroupName | None) -> Group:
    """The group of the state; a modulus other than the default is refused beside a named one."""
    if group is None:
        return Sums(modulus)
    check_choice("group", group, GroupName)
    accepted = f"none beside group={group}, as the product of a group is no sum"
    require(modulus == DIGITS, "modulus", modulus, accepted)
    return Orders(group)


def _root(number: int, power: int) -> int:
    """The smallest whole number whose power is at least `number`."""
    nearest = round(number ** (1 / power))
    return nearest if nearest**power >= number else nearest + 1


def _newest(keys: Tensor, stored: Tensor, queried: Tensor) -> Tensor:
    """The last item with the key of each queried item, (batch, queries), of those `stored` marks.

    keys, stored (batch, items); queried (batch, queries).
    """
    known = keys.where(stored, MOST_KEYS)
    ordered, item = known.sort(dim=1, stable=True)  # of one key's items the newest is the last
    last = torch.searchsorted(ordered, keys.gather(1, queried), right=True) - 1
    return item.gather(1, last)
