"""What rules are about: the lines of an item, and small mixers and models made from a line.

An item is tested as its line says, and once for each other option that its signature spells out:
each value of a `Literal`, true and false, `none`. An argument that takes a scheme or weights is
tested once with each of them that is part of this library.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args, get_origin
from unittest.mock import patch

import torch
from torch import Tensor, nn

from outlast.errors import SpecError
from outlast.mixers.attention import blocks
from outlast.models import build_model
from outlast.registry import KINDS, OURS, REQUIRED, Parameter, Registry, mixers
from outlast.specs import Spec, Value, parse

#: tried in turn; most mixers will do with the first
WIDTHS = (16, 32, 64, 128)
VOCABULARY, CLASSES = 7, 5
ROWS, TOKENS = 3, 7
#: what stands for an item of ours that cannot be made without an argument
EXAMPLES = {"temperature": "temperature(length=3)", "abc": 'abc("d0=-0.5 d1 p0=-1")'}


@dataclass(frozen=True)
class Subject:
    """A mixer, or a whole model, that can be made again and again.

    With `row_by_row`, attention has memory for one query at a time, as if the table of its scores
    was large.
    """

    line: str
    width: int
    whole_model: bool = False
    row_by_row: bool = False

    @classmethod
    def mixer(cls, line: str, widths: tuple[int, ...] = WIDTHS) -> Subject:
        """The mixer of a line, at the first width that it accepts."""
        for width in widths:
            try:
                mixers.build(line, width=width)
            except SpecError as error:
                refusal = error
                continue
            return cls(line, width)
        raise refusal

    def make(self, seed: int = 0) -> nn.Module:
        """In float64, so that equal is equal.

        The weights of a mixer are not as they start, because a 0 hides what it does.
        """
        if self.whole_model:
            line = f"{self.line} @ {self.width}"
            return build_model(line, VOCABULARY, CLASSES, seed=seed).double()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            mixer: nn.Module = mixers.build(self.line, width=self.width)
            for parameter in mixer.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return mixer.double()

    def input(self, tokens: int = TOKENS, rows: int = ROWS, seed: int = 0) -> Tensor:
        """Tokens of a model, (rows, tokens), or inputs of a mixer, (rows, tokens, width)."""
        generator = torch.Generator().manual_seed(seed)
        if self.whole_model:
            return torch.randint(VOCABULARY, (rows, tokens), generator=generator)
        return torch.randn(rows, tokens, self.width, dtype=torch.float64, generator=generator)

    def change(self, x: Tensor, begin: int, end: int | None = None) -> Tensor:
        """The same input with other tokens from `begin` to before `end`, by default one."""
        other, place = x.clone(), slice(begin, begin + 1 if end is None else end)
        if self.whole_model:
            other[:, place] = (x[:, place] + 1) % VOCABULARY
        else:
            other[:, place] = -3 * x[:, place].roll(1, 0)
        return other

    @contextmanager
    def setting(self) -> Iterator[None]:
        """The memory of attention while this subject is tested."""
        with patch.object(blocks, "BUDGET", 1 if self.row_by_row else blocks.BUDGET):
            yield

    def __str__(self) -> str:
        return f"{self.line}{', row by row' if self.row_by_row else ''}"


def plain_lines(registry: Registry, ours: bool = False) -> list[str]:
    """A line for every item of a kind that needs no argument, or has an example of ours.

    With `ours`, items of other packages are left out: their faults are none of the item's that is
    tested beside them.
    """
    lines = []
    for name in registry.names():
        entry = registry.entry(name)
        needed = [p for p in entry.parameters(registry.caller_arguments) if p.default is REQUIRED]
        if (name in EXAMPLES or not needed) and (entry.source == OURS or not ours):
            lines.append(EXAMPLES.get(name, name))
    return lines


def with_options(registry: Registry, line: str) -> list[str]:
    """A line, and the line with each other option of the arguments that it does not set."""
    spec, bound = parse(line), registry.bind(line)
    return [line] + [
        str(Spec(spec.name, spec.args, (*spec.kwargs, (parameter.name, option))))
        for parameter in registry.entry(spec.name).parameters(registry.caller_arguments)
        if parameter.python_name not in bound
        for option in _options(parameter)
    ]


def every_line(registry: Registry) -> list[str]:
    """Every item of a kind, by default and in its other options."""
    return [line for plain in plain_lines(registry) for line in with_options(registry, plain)]


def _options(parameter: Parameter) -> list[Value]:
    """What else may stand for an argument, beside its default."""
    if parameter.name in KINDS and parameter.annotation is Spec:
        specs = [parse(line) for line in plain_lines(KINDS[parameter.name], ours=True)]
        return [spec for spec in specs if spec != parameter.default]
    inside = get_args(parameter.annotation) or ()
    literals = [a for a in (parameter.annotation, *inside) if get_origin(a) is Literal]
    options: list[Value] = [option for literal in literals for option in get_args(literal)]
    options += [None] if type(None) in inside else []
    options += [True, False] if parameter.annotation is bool else []
    return [option for option in options if option != parameter.default]
