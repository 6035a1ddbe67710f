"""Everything that is registered, a plug-in's items included, as small things to test.

A mixer is taken as it is by default and once for each other option it spells out (a `Literal`),
one that takes a scheme once for each scheme, and every preset as a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args, get_origin

import torch
from torch import Tensor, nn

from outlast.errors import SpecError
from outlast.models import build_model
from outlast.registry import REQUIRED, Parameter, Registry, methods, mixers, presets, schemes
from outlast.specs import Spec

#: tried in turn; most mixers will do with the first
WIDTHS = (16, 32, 64, 128)
VOCABULARY, CLASSES = 7, 5
ROWS, TOKENS = 3, 7


@dataclass(frozen=True)
class Subject:
    """A mixer, or a whole model, that can be made again and again."""

    spec: str
    width: int
    whole_model: bool = False

    def make(self, seed: int = 0) -> nn.Module:
        """In float64, so that equal is equal."""
        if self.whole_model:
            model = build_model(f"{self.spec} @ {self.width}", VOCABULARY, CLASSES, seed=seed)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = mixers.build(self.spec, width=self.width)
        return model.double()

    def input(self, tokens: int = TOKENS, rows: int = ROWS, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        if self.whole_model:
            return torch.randint(VOCABULARY, (rows, tokens), generator=generator)
        return torch.randn(rows, tokens, self.width, dtype=torch.float64, generator=generator)

    def change(self, x: Tensor, token: int) -> Tensor:
        """The same input but for one token."""
        other = x.clone()
        other[:, token] = (x[:, token] + 1) % VOCABULARY if self.whole_model else -x[:, token]
        return other


def _options(parameter: Parameter) -> list[str]:
    """What else may stand for an argument, beside its default."""
    if parameter.name == "scheme" and parameter.annotation is Spec:
        return [name for name in schemes.names() if Spec(name) != parameter.default]
    if get_origin(parameter.annotation) is Literal:
        return [o for o in get_args(parameter.annotation) if o != parameter.default]
    return []


def specs_of(registry: Registry) -> Iterator[str]:
    """Every item of a kind, by default and in its other options."""
    for name in registry.names():
        parameters = registry.entry(name).parameters(registry.given)
        if any(p.default is REQUIRED for p in parameters):
            continue
        yield name
        for parameter in parameters:
            yield from (f"{name}({parameter.name}={o})" for o in _options(parameter))


def _width(spec: str) -> int:
    for width in WIDTHS:
        try:
            mixers.build(spec, width=width)
        except SpecError:
            continue
        return width
    raise AssertionError(f"mixer {spec} cannot be built at any width of {WIDTHS}")


MIXERS = [Subject(spec, _width(spec)) for spec in specs_of(mixers)]
MODELS = [Subject(name, WIDTHS[0], whole_model=True) for name in presets.names()]
SUBJECTS = MIXERS + MODELS
METHODS = list(specs_of(methods))
