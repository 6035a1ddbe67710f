"""Names to things: one registry for each kind, filled by files of ours and by plug-ins.

A registered item is a class or function whose signature *is* its notation: keyword parameters
with annotations and defaults. ``registry.build("composite(modulus=10)")`` binds the spec to the
signature, checks every value against its annotation, calls it, and leaves the canonical spec on
the result as ``.spec``. A parameter that is a Python keyword is written with a trailing
underscore (``from_``) and read without it (``from=8``).

Another package adds items by an entry point in one of the groups ``outlast.tasks``,
``outlast.mixers``, ``outlast.schemes``, ``outlast.weights``, ``outlast.methods``,
``outlast.presets`` and ``outlast.studies``::

    [project.entry-points."outlast.tasks"]
    dyck = "my_package.dyck:Dyck"

A plug-in that cannot be imported is left out with a warning, so that it does not take everything
else down; whoever asks for it by name is told what went wrong.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import logging
import pkgutil
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from threading import RLock
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from outlast.errors import OutlastError, SpecError
from outlast.specs import Spec, Value, parse, write_value

log = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])
REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Parameter:
    """One argument of a registered item, as a person may write it."""

    name: str
    annotation: Any
    default: Any
    python_name: str

    @property
    def accepts(self) -> str:
        """What it accepts, in words: named after a kind, an item of that kind."""
        return describe(self.annotation, KINDS[self.name].one if self.name in KINDS else "a spec")


@functools.cache  # asked for each layer of each seed of a run
def _parameters(factory: Callable[..., Any]) -> tuple[Parameter, ...]:
    hints = typing.get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    return tuple(
        Parameter(name.rstrip("_"), hints.get(name, Any), p.default, name)
        for name, p in inspect.signature(factory).parameters.items()
        if p.kind is not p.VAR_KEYWORD
    )


@dataclass(frozen=True)
class Entry:
    """A registered item: its name, what makes it, and where it comes from."""

    name: str
    factory: Callable[..., Any]
    source: str

    def parameters(self, given: Iterable[str] = ()) -> list[Parameter]:
        """What a spec may set: the signature, less what the caller gives itself."""
        return [p for p in _parameters(self.factory) if p.python_name not in given]

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (inspect.getdoc(self.factory) or "").partition("\n")[0]


class Registry:
    """The items of one kind. ``given`` names the arguments that the program, not the spec, sets."""

    def __init__(self, kind: str, package: str, given: tuple[str, ...] = ()) -> None:
        self.kind, self.package, self.given = kind, package, given
        #: how several of them are called, and how one is
        self.plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind.removesuffix('s')}s"
        self.one = kind if kind == self.plural else f"a {kind}"
        #: the entry points in which other packages name items of this kind
        self.group = f"outlast.{self.plural}"
        self._entries: dict[str, Entry] = {}
        #: plug-ins that could not be imported: name -> what to tell whoever asks for it
        self._broken: dict[str, str] = {}
        self._filled = False
        self._filling = False
        self._lock = RLock()

    def register(self, name: str, source: str = "outlast") -> Callable[[F], F]:
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
            found = f"; there is one among the {' and '.join(others)}" if others else ""
            raise SpecError(
                f"there is no {self.kind} {name!r}{found or suggest(name, self.names())}"
            )
        return self._entries[name]

    def bind(self, spec: str | Spec) -> dict[str, Any]:
        """The checked keyword arguments that a spec stands for, defaults left out."""
        spec = parse(spec)
        parameters = self.entry(spec.name).parameters(self.given)
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
            if parameter.python_name in bound:
                raise SpecError(f"{self.kind} {spec.name}: {name!r} is given twice")
            where = f"{self.kind} {spec.name}: {name}"
            bound[parameter.python_name] = coerce(value, parameter.annotation, where)
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
        """The spec with every argument named, in order, defaults left out (or, `full`, put in)."""
        spec = parse(spec)
        bound = self.bind(spec)
        parameters = self.entry(spec.name).parameters(self.given)
        written = [
            (p, to_value(bound.get(p.python_name, p.default)))
            for p in parameters
            if full or (p.python_name in bound and bound[p.python_name] != p.default)
        ]
        # attention(rope): a leading spec needs no name to be understood
        leads = parameters and parameters[0].annotation is Spec
        args = tuple(v for p, v in written[:1] if leads and p is parameters[0])
        return Spec(spec.name, args, tuple((p.name, v) for p, v in written[len(args) :]))

    def build(self, spec: str | Spec, **given: Any) -> Any:
        """Make the thing; what it raises about a value is prefixed with its name."""
        spec = parse(spec)
        entry, bound = self.entry(spec.name), self.bind(spec)
        try:
            made = entry.factory(**given, **bound)
        except SpecError as error:
            text = str(error)
            raise SpecError(
                text if text.startswith(f"{self.kind} ") else f"{self.kind} {spec.name}: {text}"
            ) from None
        made.spec = self.canonical(spec)
        return made

    def _fill(self) -> None:
        """Import our own files of this kind, then the plug-ins; once, on first use."""
        if self._filled:
            return
        with self._lock:  # another thread waits until all is there
            if self._filled or self._filling:
                return
            self._filling = True
            try:
                home = importlib.import_module(self.package)
                for module in pkgutil.iter_modules(getattr(home, "__path__", [])):
                    importlib.import_module(f"{self.package}.{module.name}")
                for point in entry_points(group=self.group):
                    self._plug_in(point)
                self._filled = True  # not before: an error stays one, however often one asks
            finally:
                self._filling = False

    def _plug_in(self, point: EntryPoint) -> None:
        source = point.dist.name if point.dist else point.value
        try:
            factory = point.load()
            if not callable(factory):
                raise TypeError(f"{point.value} is not a class or function")
        except Exception as error:  # whatever another package may raise
            self._broken[point.name] = (
                f"{self.kind} {point.name!r} of the plug-in {source} ({point.value}) cannot be "
                f"imported: {type(error).__name__}: {error}"
            )
            log.warning("left out: %s", self._broken[point.name])
            return
        self.register(point.name, source)(factory)


def _home(factory: Any) -> tuple[str, str]:
    """Where a factory was written; a notebook cell that is run again defines the same one."""
    return factory.__module__, factory.__qualname__


#: names that are still worth listing beside a guess
MANY = 24


def suggest(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'parity'? (there are: modsum, parity)``; no long list beside a guess."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    close.sort(key=lambda found: sorted(found) != sorted(name))  # letters out of order come first
    meant = f"; did you mean {close[0]!r}?" if close else ""
    if close and len(known) > MANY:
        return meant
    return f"{meant} (there are: {', '.join(known)})" if known else f"{meant} (there are none)"


def coerce(value: Any, annotation: Any, where: str) -> Any:
    """Check a parsed value against an annotation and give it the right type, or say what is."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if annotation is Any or annotation is REQUIRED:
        return value
    if origin in (Union, types.UnionType):
        for option in inside:
            try:
                return coerce(value, option, where)
            except SpecError:
                continue
    elif origin is Literal:
        if value in inside:
            return value
        if isinstance(value, str):
            raise SpecError(
                f"{where}={value}: expected {describe(annotation)}{_did_you_mean(value, inside)}"
            )
    elif origin is tuple:
        items = value if isinstance(value, (list, tuple)) else [value]
        return tuple(coerce(v, inside[0], where) for v in items)
    elif origin is dict:
        if isinstance(value, dict):
            return value
        if isinstance(value, Spec) and value.name == "weights" and not value.args:
            return {k: coerce(v, inside[1], f"{where}.{k}") for k, v in value.kwargs}
    elif annotation is Spec:
        if isinstance(value, Spec):
            return value
        if isinstance(value, str):
            return Spec(value)
    elif annotation is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    elif annotation is None or annotation is types.NoneType:
        if value is None:
            return None
    elif isinstance(annotation, type) and type(value) is annotation:
        return value
    raise SpecError(f"{where}={write_value(value)}: expected {describe(annotation)}")


def build_from(spec: Spec, factory: Callable[..., Any], fields: dict[str, type], field: str) -> Any:
    """Make what a spec behind ``field=`` stands for, from arguments of these types."""
    given = [*zip(fields, spec.args, strict=False), *spec.kwargs]
    names = [k for k, _ in given]
    twice = len(set(names)) < len(names)
    if twice or not set(names) <= set(fields) or len(spec.args) > len(fields):
        raise SpecError(f"{field}={spec}: expected {spec.name}({', '.join(fields)})")
    return factory(**{k: coerce(v, fields[k], f"{field}: {k}") for k, v in given})


def to_value(value: Any) -> Value:
    """The inverse of `coerce`: how a bound argument is written."""
    if isinstance(value, tuple):
        return [to_value(v) for v in value]
    if isinstance(value, dict):
        return Spec("weights", (), tuple((k, to_value(v)) for k, v in value.items()))
    if isinstance(value, Spec) and not value.args and not value.kwargs:
        return value.name
    return value  # type: ignore[no-any-return]


def describe(annotation: Any, item: str = "a spec") -> str:
    """What an annotation accepts, in words; `item` is what a spec in it stands for."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        options = [o for o in inside if not (o is int and float in inside)]
        return " or ".join(describe(option, item) for option in options)
    if origin is Literal:
        return " | ".join(str(option) for option in inside)
    if origin is tuple:
        return f"a list of {describe(inside[0]).removeprefix('a ')}s"
    if origin is dict:
        return "weights(name=number, ...)"
    words: dict[Any, str] = {
        int: "a whole number",
        float: "a number",
        bool: "true | false",
        str: "a word",
        Spec: f"{item} such as name(argument=value)",
        types.NoneType: "none",
        None: "none",
    }
    return words.get(annotation, "a value")


def _did_you_mean(value: str, options: Iterable[object]) -> str:
    close = difflib.get_close_matches(value, [str(o) for o in options], n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


tasks = Registry("task", "outlast.tasks")
mixers = Registry("mixer", "outlast.mixers", given=("self", "width"))
schemes = Registry("scheme", "outlast.mixers.attention.schemes", given=("self", "width", "heads"))
weightings = Registry(
    "weights", "outlast.mixers.attention.weights", given=("self", "width", "heads")
)
methods = Registry("method", "outlast.methods")
presets = Registry("preset", "outlast.models")
studies = Registry("study", "outlast.studies")
KINDS: dict[str, Registry] = {
    r.kind: r for r in (tasks, mixers, schemes, weightings, methods, presets, studies)
}
