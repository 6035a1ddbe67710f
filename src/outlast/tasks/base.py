"""The interface of every task.

A task draws sequences of a given *length*. Length is what the task's paper calls length; `tokens`
says how many tokens that is. The task marks at which positions an answer is expected, and which
one. It also solves a sequence in a second, independent way. Answers are token ids below `classes`.
A model may have an output for every token, as a language model has, or for the answers alone. A
test takes the largest output among the first `classes`. Other outputs do not count there. The loss
of training is over all outputs. A target may be a distribution: then `targets` has a draw from it,
and `support` says which answers it is uniform over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from outlast.arguments import as_whole, shown
from outlast.errors import SpecError, bad_value
from outlast.machine import GIB, short_of
from outlast.specs import Spec
from outlast.tasks.sampling import SeedGenerators, check_generator, randint, read_device
from outlast.tasks.truth import Truth, TruthMemory, TruthTable

IGNORE = -100
#: bytes of a token: its id, the answer due there, and the part that is tested
TOKEN = 8 + 8 + 1
#: `outcome` asks for the final state alone, `aligned` for the running state as well
Supervision = Literal["outcome", "aligned"]
#: how padding is shown
PADDING = "·"
#: what a test of a task gives: the share of sequences entirely right, or bits per byte of text
Measure = Literal["exact", "bits"]
#: one length, or a range from which each row draws its own
Length = int | tuple[int, int]
#: the largest batch and length, far more than memory holds, and the largest seed that torch takes
MOST, MOST_SEED = 2**31 - 1, 2**64 - 1


@dataclass(frozen=True)
class Batch:
    """Sequences and the answers expected; every tensor is (batch, tokens), padded on the right.

    `targets` is the answer expected *at* a position (nothing is shifted), -100 where there is none.
    `part` is the index into `Task.parts` of the skill it tests, -1 where there is none.
    """

    inputs: Tensor
    targets: Tensor
    part: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The same change of all three tensors."""
        if not callable(change):
            raise bad_value("change", shown(change), "a function from a tensor to a tensor")
        return Batch(change(self.inputs), change(self.targets), change(self.part))

    def to(self, device: torch.device | str) -> Batch:
        target = read_device(device)
        return self.map(lambda table: table.to(target))

    def rows(self, index: Tensor) -> Batch:
        """The sequences at these rows: numbers (rows,), or True for each row that is wanted."""
        accepted = f"a tensor of row numbers below {len(self.inputs)}, or of True and False"
        kinds = (torch.int64, torch.int32, torch.bool)
        if not isinstance(index, Tensor) or index.is_meta or index.dtype not in kinds:
            raise bad_value("index", shown(index), accepted)
        if index.layout != torch.strided or index.dim() != 1:
            raise bad_value("index", shown(index), f"{accepted}, with one axis")
        try:
            return self.map(lambda table: table[index])
        except IndexError:
            raise bad_value("index", shown(index), accepted) from None


@dataclass(frozen=True)
class TextBatch(Batch):
    """A batch of text; `sizes` has the bytes that each target stands for, (batch, tokens)."""

    sizes: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> TextBatch:
        plain = super().map(change)
        return TextBatch(plain.inputs, plain.targets, plain.part, change(self.sizes))


class BatchBuilder:
    """A batch under construction. At the start it is all padding and expects no answer.

    Rows differ in length, so the same thing stands at a different position in each row. A sampler
    computes the positions as a (batch, n) tensor. A mask says which of the n a row has. The builder
    writes them all in one operation, and the host never waits for the device.

    Positions, tokens, answers and masks are (batch, n), or broadcast to it.
    """

    def __init__(
        self, parts: tuple[str, ...], batch: int, tokens: int, pad: int, device: torch.device
    ) -> None:
        self.parts, self.tokens = parts, tokens
        # The extra column takes what a mask rules out. `batch` cuts it off.
        shape = (batch, tokens + 1)
        self._inputs = torch.full(shape, pad, dtype=torch.int64, device=device)
        self._targets = torch.full(shape, IGNORE, dtype=torch.int64, device=device)
        self._part = torch.full(shape, -1, dtype=torch.int8, device=device)

    def write(self, at: Tensor, token: Tensor | int, mask: Tensor | None = None) -> None:
        """Put tokens at positions."""
        self._put(self._inputs, at, token, mask)

    def expect(self, at: Tensor, answer: Tensor, part: str, mask: Tensor | None = None) -> None:
        """Expect answers at positions, as a test of the skill `part`."""
        self._put(self._targets, at, answer, mask)
        self._put(self._part, at, self.parts.index(part), mask)

    def _put(self, table: Tensor, at: Tensor, value: Tensor | int, mask: Tensor | None) -> None:
        if mask is not None:
            at = torch.where(mask, at, self.tokens)
        if isinstance(value, int):
            table.scatter_(1, at, value)
        else:
            table.scatter_(1, at, value.expand_as(at))

    def batch(self) -> Batch:
        """The finished batch."""
        tables = (self._inputs, self._targets, self._part)
        return Batch(*(table[:, : self.tokens].contiguous() for table in tables))


class Task(ABC):
    """Base of every task. A subclass sets the attributes below in its constructor."""

    spec: Spec
    paper: str = ""
    #: skills a target may test; those in `auxiliary` help training but are not asked for in a test
    parts: tuple[str, ...]
    auxiliary: tuple[str, ...] = ()
    #: lengths trained on, shortest and longest
    lengths: tuple[int, int]
    #: the longest length that can be made at all (None: no limit)
    ceiling: int | None = None
    #: why lengths end at the ceiling, and which arguments allow longer ones; "" if nobody says
    longer: str = ""
    #: the shortest length that can be made
    shortest: int = 1
    #: every length is a multiple of this
    multiple: int = 1
    vocabulary: int
    classes: int
    measure: Measure = "exact"
    #: for `bits`: what `TextBatch.part` of a test counts; the first is context, which no result has
    test_parts: tuple[str, ...] = ()
    #: of the data that a task reads, if it reads any
    checksum: str = ""
    #: how the tokens after answers and keys are shown, one sign each
    symbols: str = PADDING
    #: whether `sample` draws by `tasks/sampling.py` alone and treats each row by itself, so that
    #: many seeds can be sampled as one; a subclass with its own `sample` must set it again
    samples_jointly: bool = False
    #: whether later answers need nothing of a token that has an answer but this answer
    answers_are_states: bool = False
    #: other versions of this task that a trained model is tested on: name -> spec
    variants: Mapping[str, str] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "sample" in vars(cls) and "samples_jointly" not in vars(cls):
            cls.samples_jointly = False
        if "solve" in vars(cls):
            cls.solve = _with_checked_inputs(cls.solve)  # type: ignore[assignment]

    @abstractmethod
    def tokens(self, length: int) -> int:
        """How many tokens a sequence of this length takes at most."""

    @abstractmethod
    def sample(self, length: Length, batch: int, generator: torch.Generator) -> Batch:
        """Draw `batch` sequences on the generator's device, (batch, tokens)."""

    def sample_each(
        self, length: Length, batch: int, generators: Sequence[torch.Generator]
    ) -> Batch:
        """Draw `batch` sequences from each generator, (seeds, batch, tokens).

        Each generator gives what it gives alone.
        """
        together = SeedGenerators(generators)
        generators, seeds = together.generators, len(together.generators)
        batch = as_whole("batch", batch, 1, MOST // seeds)
        if self.samples_jointly:
            generator = cast(torch.Generator, together)  # sampling.py knows it
            drawn = self.sample(length, seeds * batch, generator)
            return drawn.map(lambda table: table.unflatten(0, (seeds, batch)))
        each = [self.sample(length, batch, generator) for generator in generators]
        names = ("inputs", "targets", "part")
        return Batch(*(torch.stack([getattr(one, name) for one in each]) for name in names))

    def test_batch(self, length: int, batch: int, generator: torch.Generator) -> Batch:
        """The sequences of a test; those of a task that measures `bits` are a `TextBatch`."""
        return self.sample(length, batch, generator)

    def baselines(self) -> dict[str, float]:
        """What a test gives without a model, by the name of the way; for `bits` alone."""
        return {}

    @abstractmethod
    def solve(self, inputs: Sequence[int]) -> list[int | None]:
        """The answers to one row of tokens, in plain Python and in another way than `sample`.

        The tokens are checked before a subclass gets them, as a list.
        """

    def support(self, inputs: Tensor, start: int, stop: int) -> Tensor | None:
        """Which answers are equally right at each place from `start` to before `stop`.

        inputs (batch, tokens) are whole rows; the result is (batch, stop - start, classes), True
        for each right answer. A test counts any of them as right. None: the target alone is right.
        """
        return None

    def truth(self, inputs: Sequence[int]) -> Truth:
        """What each token of a row means, for analyses; a task that says nothing has no entries."""
        truth = Truth()
        for _ in inputs:
            truth.add()
        return truth

    def truths(self, inputs: Tensor) -> TruthTable:
        """`truth` of every row of (batch, tokens)."""
        return self._truths.table(inputs, self.truth)

    @cached_property
    def _truths(self) -> TruthMemory:
        return TruthMemory()

    def shuffled(self, inputs: Tensor, generator: torch.Generator) -> Tensor | None:
        """These rows with the items before their questions in another order, items kept whole.

        None: the task has no items whose order can be changed. A state that depends on the set of
        items alone, such as a sum, stays the same. For analyses.
        """
        return None

    def word(self, token: int) -> str:
        """How a token is shown to a person: answers as digits, then keys, then `symbols`."""
        token = as_whole("token", token, 0, self.vocabulary - 1)
        first_symbol = self.vocabulary - len(self.symbols)
        if token >= first_symbol:
            return self.symbols[token - first_symbol]
        return str(token) if token < self.classes else f"k{token - self.classes}"

    def chance_level(self, part: str) -> float:
        """The accuracy of a guess at one answer of a part."""
        if not isinstance(part, str) or part not in self.parts:
            raise bad_value("part", shown(part), f"a part of the task: {' | '.join(self.parts)}")
        return 1 / self.classes

    def chance_levels(self, sequences: int = 256) -> dict[str, float]:
        """The share of sequences that guessing gets right, by part and jointly.

        A task that measures bits has none.
        """
        sequences = as_whole("sequences", sequences, 1, MOST)
        if self.measure == "bits":
            return {}
        batch = self.sample(self.lengths[1], sequences, torch.Generator().manual_seed(0))
        levels = {}
        joint = torch.ones(sequences)
        for index, part in enumerate(self.parts):
            count = (batch.part == index).sum(1)
            levels[part] = (self.chance_level(part) ** count).mean().item()
            if part in self.asked:
                joint *= self.chance_level(part) ** count
        return {"joint": joint.mean().item(), **levels}

    @property
    def asked(self) -> tuple[str, ...]:
        """The parts a test counts: all but the auxiliary ones."""
        return tuple(p for p in self.parts if p not in self.auxiliary)

    def stream(
        self,
        batch: int,
        length: Length | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> Iterator[Batch]:
        """Batches without end, for your own training loop.

        Args:
            batch: The number of sequences in a batch.
            length: The length of every sequence, or the shortest and the longest; by default the
                lengths that the task trains on.
            seed: The sequences are drawn from it alone.
            device: Where the batches are made.
        """
        batch = as_whole("batch", batch, 1, MOST)
        lengths = self.lengths if length is None else _read_range(length)
        seed = as_whole("seed", seed, 0, MOST_SEED)
        generator = torch.Generator(read_device(device)).manual_seed(seed)
        return self._draw_forever(lengths, batch, generator)

    def _draw_forever(
        self, lengths: Length, batch: int, generator: torch.Generator
    ) -> Iterator[Batch]:
        while True:
            yield self.sample(lengths, batch, generator)

    def draw_lengths(
        self, length: Length, batch: int, generator: torch.Generator
    ) -> tuple[Tensor, int]:
        """One length for each row, (batch,), and the longest possible. Refuses a bad length."""
        check_generator(generator)
        as_whole("batch", batch, 1, MOST)
        low, high = _read_range(length)
        least, most, step = self.shortest, self.ceiling, self.multiple
        fits = least <= low <= high and (most is None or high <= most)
        if not fits or low % step or high % step:
            bound = f"{least} or more" if most is None else f"from {least} to {most}"
            kind = "lengths" if step == 1 else f"multiples of {step},"
            written = length if isinstance(length, int) else f"{low}-{high}"
            why = f" ({self.longer})" if self.longer and most is not None and high > most else ""
            raise bad_value("length", written, f"{kind} {bound} for {self.name}{why}")
        self._check_memory(high, batch, generator.device)
        return randint(low // step, high // step + 1, (batch,), generator) * step, high

    def _check_memory(self, length: int, batch: int, device: torch.device) -> None:
        needed = TOKEN * batch * self.tokens(length)
        free = short_of(needed, device)
        if free is not None:
            accepted = f"sequences that fit into the {free / GIB:.3g} GiB that {device} has free"
            raise bad_value("length", length, f"{accepted}: {batch} take {needed / GIB:.3g} GiB")

    @property
    def name(self) -> str:
        return str(getattr(self, "spec", type(self).__name__))

    def __repr__(self) -> str:
        return self.name


Solve = Callable[[Any, Sequence[int]], list[int | None]]


def _with_checked_inputs(solve: Solve) -> Solve:
    """A `solve` that refuses what is not a row of the task's tokens."""

    @wraps(solve)
    def checked(self: Task, inputs: Sequence[int]) -> list[int | None]:
        return solve(self, _read_tokens(inputs, self.vocabulary))

    return checked


def _read_tokens(inputs: object, vocabulary: int) -> list[int]:
    """One row of tokens: a list, or a tensor or an array with one axis."""
    row = inputs
    if isinstance(inputs, Tensor | np.ndarray):
        with suppress(Exception):  # a tensor without values: torch raises errors of many types
            row = inputs.tolist()
    if isinstance(row, str | bytes) or not isinstance(row, Sequence):
        accepted = f"a list of tokens, whole numbers from 0 to {vocabulary - 1}"
        raise bad_value("inputs", shown(inputs), accepted)
    return [as_whole("inputs", token, 0, vocabulary - 1) for token in row]


def _read_range(length: object) -> tuple[int, int]:
    """The shortest and the longest of one length or of a pair of them."""
    pair = length if isinstance(length, tuple | list) else (length, length)
    try:
        low, high = (as_whole("length", number, -MOST, MOST) for number in pair)
    except (SpecError, ValueError):
        accepted = f"a whole number up to {MOST}, or a pair: the shortest and the longest"
        raise bad_value("length", shown(length), accepted) from None
    return low, high


def check_keys(keys: object, length: int) -> None:
    """Keys are distinct within a sequence, so there must be one for every pair."""
    if not isinstance(keys, int) or isinstance(keys, bool) or keys < length:
        raise bad_value("keys", keys, f"a whole number >= length={length}, as keys are distinct")
