"""Everything that is registered, a plug-in's items included, as small things to test.

A mixer is taken as it is by default and once for each other option it spells out (a `Literal`),
one that takes a scheme or weights once for each of them, and every preset as a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args, get_origin

import torch
from torch import Tensor, nn

from outlast.errors import SpecError
from outlast.models import build_model
from outlast.registry import KINDS, REQUIRED, Parameter, Registry, methods, mixers, presets
from outlast.specs import Spec, write_value

#: tried in turn; most mixers will do with the first
WIDTHS = (16, 32, 64, 128)
VOCABULARY, CLASSES = 7, 5
ROWS, TOKENS = 3, 7
#: what stands for an item that cannot be made without an argument
NEEDED = {"temperature": "temperature(length=3)"}


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
    if parameter.name in KINDS and parameter.annotation is Spec:
        return [spec for spec in plain_specs(KINDS[parameter.name]) if spec != parameter.default]
    inside = get_args(parameter.annotation) or ()
    options = [a for a in (parameter.annotation, *inside) if get_origin(a) is Literal]
    actual = [o for option in options for o in get_args(option)]
    actual += ["none"] if type(None) in inside and parameter.default is not None else []
    actual += [not parameter.default] if parameter.annotation is bool else []
    return [write_value(o) if isinstance(o, bool) else o for o in actual if o != parameter.default]


def plain_specs(registry: Registry) -> list[str]:
    """Every item of a kind in its default, or as `NEEDED` says where it has none."""
    actual = []
    for name in registry.names():
        parameters = registry.entry(name).parameters(registry.caller_arguments)
        needs = [p.name for p in parameters if p.default is REQUIRED]
        if needs and name not in NEEDED:
            raise AssertionError(f"{name} cannot be made without {needs}: add it to NEEDED")
        actual.append(NEEDED.get(name, name))
    return actual


def specs_of(registry: Registry) -> Iterator[str]:
    """Every item of a kind, by default and in its other options."""
    for spec in plain_specs(registry):
        yield spec
        if "(" not in spec:
            for parameter in registry.entry(spec).parameters(registry.caller_arguments):
                yield from (f"{spec}({parameter.name}={o})" for o in _options(parameter))


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
