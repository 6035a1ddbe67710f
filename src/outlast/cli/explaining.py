"""What an item's arguments mean and which values they accept.

The meaning stands in the docstring of the item's class or function, in a section ``Args:``::

    Args:
        modulus: The sum is taken modulo this number.

A class that is derived from another one also has the meanings of that one. The range of a number is
what the item's own check says of a value that it refuses, so it cannot differ from the check.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from outlast.errors import SpecError
from outlast.registry import Entry, Parameter, Registry
from outlast.specs import Spec, Value

#: the heads of attention, if the spec does not say how many
HEADS = 4
#: a number that nearly every check refuses
PROBE = -1


def meanings(factory: Any) -> dict[str, str]:
    """What the docstrings of an item say of its arguments, by the names that a spec has."""
    classes = factory.__mro__ if inspect.isclass(factory) else [factory]
    known: dict[str, str] = {}
    for each in classes:
        for text in (each.__doc__, getattr(vars(each).get("__init__"), "__doc__", None)):
            known = read_args(text or "") | known
    return known


def read_args(docstring: str) -> dict[str, str]:
    """The lines of the section ``Args:``, each argument on one line."""
    _, _, section = inspect.cleandoc(docstring).partition("\nArgs:\n")
    lines: dict[str, str] = {}
    name = ""
    for line in section.split("\n"):
        if line and not line.startswith(" "):
            break  # the next section
        if match := re.match(r" {4}(\w+): (.+)", line):
            name = match[1].rstrip("_")
            lines[name] = match[2]
        elif line.strip() and name:
            lines[name] += f" {line.strip()}"
    return lines


def accepted(
    registry: Registry, entry: Entry, parameter: Parameter, written: Spec | None = None
) -> str:
    """What an argument accepts, in words; for a number with its range.

    The range may depend on other arguments: they are as the spec `written` has them.
    """
    words = parameter.accepts
    numbers = ("a whole number", "a number")
    if not words.startswith(numbers):
        return words
    others = {} if written is None else _named(registry, entry, written)
    spec = Spec(entry.name, (), tuple((others | {parameter.name: PROBE}).items()))
    try:
        try_item(registry, spec)
    except SpecError as error:
        pattern = rf"(?:^|: ){re.escape(parameter.name)}={PROBE}(?:\.0)?: expected (.+)$"
        if match := re.search(pattern, str(error)):
            alternatives = re.sub(rf"^({'|'.join(numbers)})", "", words)
            return match[1] if alternatives in match[1] else match[1] + alternatives
    return words


def _named(registry: Registry, entry: Entry, spec: Spec) -> dict[str, Value]:
    """The arguments of a spec, each with its name."""
    names = [p.name for p in entry.parameters(registry.caller_arguments)]
    return dict(zip(names, spec.args, strict=False)) | dict(spec.kwargs)


def try_item(registry: Registry, spec: Spec) -> None:
    """Build the item, so that a value that training would refuse is an error here too.

    The width fits its heads, because only a model line has a width.
    """
    import torch

    from outlast.errors import OutlastError
    from outlast.models.build import DEFAULT_WIDTH, MemoryLimit, build_model
    from outlast.registry import presets

    if registry is presets:
        with torch.device("meta"):
            build_model(str(spec), vocabulary=2, classes=2)
        return
    values = {p.python_name: p.default for p in registry.entry(spec.name).parameters()}
    heads = (values | registry.bind(spec)).get("heads")
    width = DEFAULT_WIDTH
    if isinstance(heads, int) and heads > 0:
        width = DEFAULT_WIDTH // HEADS * heads
    sizes = {"width": width, "heads": HEADS}
    arguments = {name: sizes[name] for name in registry.caller_arguments if name in sizes}
    try:
        with torch.device("meta"):  # draws nothing and allocates nothing
            registry.build(spec, **arguments)
    except OutlastError:
        raise
    except Exception:  # an item of a plug-in may need real numbers
        with MemoryLimit(f"the line is {spec}, the width {width}"):
            registry.build(spec, **arguments)
