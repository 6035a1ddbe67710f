"""Names to things: one registry for each kind, filled by files of ours and by plug-ins.

A registered item is a class or function. Its signature *is* its notation: keyword parameters with
annotations and defaults. ``registry.build("composite(modulus=10)")`` binds the spec to the
signature, checks every value against its annotation and calls the item. The result carries the
canonical spec as ``.spec``. A parameter that is a Python keyword is written with a trailing
underscore (``from_``) and read without it (``from=8``).

Another package adds items by an entry point in one of the groups ``outlast.tasks``,
``outlast.mixers``, ``outlast.schemes``, ``outlast.weights``, ``outlast.methods``,
``outlast.presets``, ``outlast.studies`` and ``outlast.trackers``::

    [project.entry-points."outlast.tasks"]
    dyck = "my_package.dyck:Dyck"

A plug-in that cannot be imported is left out with a warning. The others stay usable. A request for
the broken one by name is an error that says what went wrong.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import inspect
import logging
import pkgutil
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple, TypeVar

from outlast.arguments import coerce, describe, to_value
from outlast.errors import OutlastError, SpecError, about, conflict
from outlast.specs import Spec, check_size, parse, write_value

log = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])
REQUIRED = inspect.Parameter.empty
#: the source of items that are part of this package
OURS = "outlast"


@dataclass(frozen=True)
class Parameter:
    """One argument of a registered item, as a person may write it."""

    name: str
    annotation: Any
    default: Any
    python_name: str

    @property
    def accepts(self) -> str:
        """What it accepts, in words. An argument named after a kind takes an item of that kind."""
        item = KINDS[self.name].one if self.name in KINDS else "a spec"
        example = self.default if isinstance(self.default, Spec) else "name(argument=value)"
        return describe(self.annotation, f"{item} such as {example}")


@functools.cache  # called for each layer of each seed of a run
def _parameters(factory: Callable[..., Any]) -> tuple[Parameter, ...]:
    hints = typing.get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    return tuple(
        Parameter(name.rstrip("_"), hints.get(name, Any), p.default, name)
        for name, p in inspect.signature(factory).parameters.items()
        if p.kind is not p.VAR_KEYWORD
    )


@dataclass(frozen=True)
class Entry:
    """A registered item: its name, the class or function, and the package it comes from."""

    name: str
    factory: Callable[..., Any]
    source: str

    def parameters(self, without: Iterable[str] = ()) -> list[Parameter]:
        """The arguments that a spec may set: the signature, without those that the caller sets."""
        return [p for p in _parameters(self.factory) if p.python_name not in without]

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return _first_line(inspect.getdoc(self.factory))


class Summary(NamedTuple):
    """One line of `outlast list`: the first line of an item's docstring, and its package."""

    text: str
    source: str


class Registry:
    """The items of one kind.

    `caller_arguments` are the arguments that the caller of `build` sets, and no spec.
    """

    def __init__(self, kind: str, package: str, caller_arguments: tuple[str, ...] = ()) -> None:
        self.kind, self.package, self.caller_arguments = kind, package, caller_arguments
        #: the word for several of them, and for one with its article
        self.plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind.removesuffix('s')}s"
        self.one = kind if kind == self.plural else f"a {kind}"
        #: the group of entry points in which other packages name items of this kind
        self.group = f"outlast.{self.plural}"
        self._entries: dict[str, Entry] = {}
        #: plug-ins that could not be imported: name -> error text
        self._broken: dict[str, str] = {}
        self._filled = False
        self._filling = False
        self._lock = RLock()

    def register(self, name: str, source: str = OURS) -> Callable[[F], F]:
        """Decorator: ``@tasks.register("parity")``."""

        def keep(factory: F) -> F:
            known = self._entries.get(name)
            if known is not None and _home(known.factory) != _home(factory):
                raise SpecError(
                    f"{self.kind} {name!r} is registered twice: by {known.source} and by {source}"
                )
            self._entries[name] = Entry(name, factory, source)
            return factory

        return keep

    def names(self) -> list[str]:
        self._fill()
        return sorted(self._entries)

    def __contains__(self, name: str) -> bool:
        self._fill()
        return name in self._entries

    def entry(self, name: str) -> Entry:
        self._fill()
        if name in self._broken:
            raise OutlastError(self._broken[name])
        if name not in self._entries:
            others = [r.plural for r in KINDS.values() if r is not self and name in r]
            elsewhere = f"; there is one among the {' and '.join(others)}" if others else ""
            raise SpecError(
                f"there is no {self.kind} {name!r}{elsewhere or suggest(name, self.names())}"
            )
        return self._entries[name]

    def summaries(self) -> dict[str, Summary]:
        """The summary of every item, by name.

        Our own files are read and not imported, because importing them loads torch.
        """
        if not self._filled:
            with self._lock:
                self._load_plug_ins()
        package = Path(__file__).parent.joinpath(*self.package.split(".")[1:])
        read = [item for path in sorted(package.rglob("*.py")) for item in _registrations(path)]
        ours = {name: text for variable, name, text in read if globals().get(variable) is self}
        if any(name in ours for name, entry in self._entries.items() if entry.source != OURS):
            self._fill()  # raises: a plug-in has taken the name of an item of ours
        summaries = {name: Summary(text, OURS) for name, text in ours.items()}
        for name, entry in self._entries.items():
            summaries[name] = Summary(entry.summary, entry.source)
        return dict(sorted(summaries.items()))

    def bind(self, spec: str | Spec) -> dict[str, Any]:
        """The checked keyword arguments that a spec stands for, without defaults."""
        spec = parse(spec)
        parameters = self.entry(spec.name).parameters(self.caller_arguments)
        if len(spec.args) > len(parameters):
            raise SpecError(
                f"{self.kind} {spec.name} takes at most {len(parameters)} arguments "
                f"({', '.join(p.name for p in parameters)}), got {len(spec.args)}"
            )
        bound: dict[str, Any] = {}
        by_name = {p.name: p for p in parameters}
        named = [(p.name, v) for p, v in zip(parameters, spec.args, strict=False)]
        for name, value in [*named, *spec.kwargs]:
            parameter = by_name.get(name)
            if parameter is None:
                raise SpecError(
                    f"{self.kind} {spec.name} has no argument {name!r}{suggest(name, by_name)}"
                )
            field = f"{self.kind} {spec.name}: {name}"
            if parameter.python_name in bound:
                first = write_value(to_value(bound[parameter.python_name]))
                raise conflict(field, first, f"{name}={write_value(value)}")
            check_size(field, value)
            bound[parameter.python_name] = coerce(value, parameter.annotation, field)
            # attention(scheme=...): an argument named after a kind holds an item of that kind
            if parameter.annotation is Spec and name in KINDS:
                bound[parameter.python_name] = KINDS[name].canonical(bound[parameter.python_name])
        missing = [
            p.name for p in parameters if p.default is REQUIRED and p.python_name not in bound
        ]
        if missing:
            raise SpecError(f"{self.kind} {spec.name} needs a value for {', '.join(missing)}")
        return bound

    def canonical(self, spec: str | Spec, full: bool = False) -> Spec:
        """The spec with every argument named, in order, without defaults (`full`: with them)."""
        spec = parse(spec)
        bound = self.bind(spec)
        parameters = self.entry(spec.name).parameters(self.caller_arguments)
        written = [
            (p, to_value(bound.get(p.python_name, p.default)))
            for p in parameters
            if full or (p.python_name in bound and bound[p.python_name] != p.default)
        ]
        # attention(rope): a leading spec needs no name to be understood
        leads = parameters and parameters[0].annotation is Spec
        args = tuple(v for p, v in written[:1] if leads and p is parameters[0])
        return Spec(spec.name, args, tuple((p.name, v) for p, v in written[len(args) :]))

    def build(self, spec: str | Spec, **arguments: Any) -> Any:
        """Build the item of a spec. Its errors about a value are prefixed with its name."""
        spec = parse(spec)
        entry, bound = self.entry(spec.name), self.bind(spec)
        with about(self.kind, spec.name):
            item = entry.factory(**arguments, **bound)
        item.spec = self.canonical(spec)
        return item

    def _fill(self) -> None:
        """Import our own files of this kind, then the plug-ins: once, on first use."""
        if self._filled:
            return
        with self._lock:  # another thread waits until all items are registered
            if self._filled or self._filling:
                return
            self._filling = True
            try:
                package = importlib.import_module(self.package)
                for module in pkgutil.iter_modules(getattr(package, "__path__", [])):
                    importlib.import_module(f"{self.package}.{module.name}")
                self._load_plug_ins()
                self._filled = True  # only now: after an error the next call raises it again
            finally:
                self._filling = False

    def _load_plug_ins(self) -> None:
        for point in entry_points(group=self.group):
            if point.name not in self._broken:  # one warning is enough
                self._load_plug_in(point)

    def _load_plug_in(self, point: EntryPoint) -> None:
        source = point.dist.name if point.dist else point.value
        try:
            factory = point.load()
            if not callable(factory):
                raise TypeError(f"{point.value} is not a class or function")
        except Exception as error:  # another package may raise anything
            self._broken[point.name] = (
                f"{self.kind} {point.name!r} of the plug-in {source} ({point.value}) cannot be "
                f"imported: {type(error).__name__}: {error}"
            )
            log.warning("left out: %s", self._broken[point.name])
            return
        self.register(point.name, source)(factory)


def _home(factory: Any) -> tuple[str, str]:
    """Where a factory was defined. A notebook cell that is run again defines the same one."""
    return factory.__module__, factory.__qualname__


def _first_line(docstring: str | None) -> str:
    return (docstring or "").partition("\n")[0]


@functools.cache
def _registrations(path: Path) -> tuple[tuple[str, str, str], ...]:
    """What a file registers by ``@tasks.register("parity")``: variable, name and summary."""
    registrations = []
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            for decorator in node.decorator_list:
                match decorator:
                    case ast.Call(
                        ast.Attribute(ast.Name(variable), "register"), [ast.Constant(str(name))]
                    ):
                        registrations.append((variable, name, _first_line(ast.get_docstring(node))))
    return tuple(registrations)


#: with more names than this, a guess is shown without the list of them all
MANY = 24


def suggest(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'parity'? (there are: modsum, parity)``; no long list beside a guess."""
    known = sorted(known)
    swapped = [other for other in known if sorted(other) == sorted(name)]  # letters out of order
    lower = name.lower()
    same = [lower] if lower in known else swapped
    close = same or difflib.get_close_matches(lower, known, n=1)
    guess = f"; did you mean {close[0]!r}?" if close else ""
    if close and len(known) > MANY:
        return guess
    return f"{guess} (there are: {', '.join(known)})" if known else f"{guess} (there are none)"


tasks = Registry("task", "outlast.tasks")
mixers = Registry("mixer", "outlast.mixers", ("self", "width"))
schemes = Registry("scheme", "outlast.mixers.attention.schemes", ("self", "width", "heads"))
weightings = Registry("weights", "outlast.mixers.attention.weights", ("self", "width", "heads"))
methods = Registry("method", "outlast.methods")
presets = Registry("preset", "outlast.models")
studies = Registry("study", "outlast.studies")
#: for --track; they decide nothing of a run, and so are no kind of its notation
trackers = Registry("tracker", "outlast.trackers")
KINDS: dict[str, Registry] = {
    r.kind: r for r in (tasks, mixers, schemes, weightings, methods, presets, studies)
}
#: what `outlast list` and `outlast show` tell of
SHOWN: dict[str, Registry] = KINDS | {trackers.kind: trackers}
