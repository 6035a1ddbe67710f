"""`check`: every rule on one registered item, as a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from outlast.errors import SpecError, bad_value
from outlast.mixers.attention import Attention
from outlast.registry import (
    KINDS,
    Registry,
    methods,
    mixers,
    presets,
    schemes,
    suggest,
    tasks,
    weightings,
)
from outlast.specs import parse
from outlast.studies.base import scales
from outlast.testing import attention, sampling, training
from outlast.testing import methods as method_rules
from outlast.testing import mixers as mixer_rules
from outlast.testing import studies as study_rules
from outlast.testing import tasks as task_rules
from outlast.testing.rules import Result, Rule, RuleSet, Status, Violation, raised
from outlast.testing.subjects import WIDTHS, Subject, with_options

#: the rule that an item breaks if its constructor raises
BUILT = "can be built"
#: the rule that it breaks if a plain forward pass raises; nothing else is tested then
RUN = "can be run"
#: what to do about an item that cannot be built or run; no rule of a `RuleSet` says it
FIXES = {
    BUILT: "make the constructor work with this line; if it cannot, raise a SpecError that names "
    "the argument, its value and what is accepted",
    RUN: "make its forward pass work on what it was given: inputs of (rows, tokens, width) in "
    "float64. Every tensor that it makes needs the dtype and the device of its input",
}


@dataclass(frozen=True)
class Report:
    """What came of every rule on one item, in its options."""

    kind: str
    line: str
    #: the package that it comes from
    source: str
    results: tuple[Result, ...]

    @property
    def failures(self) -> list[Result]:
        """The results that failed."""
        return [result for result in self.results if result.status == "failed"]

    @property
    def passed(self) -> bool:
        """Whether no rule is broken."""
        return not self.failures

    def by_rule(self) -> list[Result]:
        """One result for each rule: its first failure if there is one, else passed if it passed."""
        order: dict[Status, int] = {"failed": 0, "passed": 1, "not applicable": 2}
        rules: dict[str, list[Result]] = {}
        for result in self.results:
            rules.setdefault(result.rule, []).append(result)
        return [min(results, key=lambda r: order[r.status]) for results in rules.values()]

    def raise_failures(self) -> None:
        """Raise an error with every rule that is broken, why it matters and what to do."""
        if self.failures:
            raise Violation(f"{self.kind} {self.line} does not conform:\n{self.explain()}")

    def explain(self) -> str:
        """For each broken rule: where and how it is broken, why it matters and what to do."""
        paragraphs = []
        for result in self.by_rule():
            if result.status == "failed":
                lines = [r.line for r in self.failures if r.rule == result.rule]
                more = f" (and {len(lines) - 1} more of its options)" if len(lines) > 1 else ""
                rule = _RULES.get(result.rule)
                texts = [result.rule, f"  {result.line}{more}: {result.reason}"]
                if rule is None:
                    texts.append(f"  fix: {FIXES[result.rule]}")
                else:
                    texts += [f"  rule: {rule.text}", f"  why: {rule.why}", f"  fix: {rule.fix}"]
                paragraphs.append("\n".join(texts))
        return "\n\n".join(paragraphs)

    def __str__(self) -> str:
        rows = [f"{r.status:<14}  {r.rule}" for r in self.by_rule()]
        text = "\n".join([f"{self.kind} {self.line} (from {self.source})", *rows])
        return text if self.passed else f"{text}\n\n{self.explain()}"


class Case(NamedTuple):
    """A rule that is to be tested on a subject, which stands for a line."""

    rule: Rule[Any]
    subject: Any
    line: str


#: a result that is known, or a case to be tested
Step = Result | Case


def check(line: str, kind: str | None = None, rules: Sequence[str] = ()) -> Report:
    """Test a registered item, also one of another package, against every rule for its kind.

    Args:
        line: The name of the item, or its spec if it needs arguments: ``mymixer(size=4)``. Options
            that the line leaves open are tested too.
        kind: task, mixer, scheme, weights, method, preset or study, if several have that name.
        rules: Names of the only rules to test, such as "is causal"; by default all.
    """
    if not isinstance(line, str):
        raise bad_value("line", repr(line), "a name or a spec, such as mymixer(size=4)")
    for name in rules:
        if name not in _RULES:
            raise SpecError(f"there is no rule {name!r}{suggest(name, _RULES)}")
    registry = _find(parse(line).name, kind)
    registry.bind(line)  # a bad or a missing argument is an error of the line, not of the item
    results = []
    for step in _STEPS[registry.kind](line):
        if isinstance(step, Result):
            results.append(step)
        elif not rules or step.rule.name in rules:
            results.append(step.rule.result(step.subject, step.line))
    source = registry.entry(parse(line).name).source
    return Report(registry.kind, line, source, tuple(results))


def _find(name: str, kind: str | None) -> Registry:
    """The registry that has an item. An item that cannot be imported names its package."""
    kinds = {word: r for r in KINDS.values() for word in (r.kind, r.plural)}
    if kind is not None:
        if kind not in kinds:
            raise bad_value("kind", kind, " | ".join(KINDS))
        kinds[kind].entry(name)
        return kinds[kind]
    registries = [registry for registry in KINDS.values() if _has(registry, name)]
    if not registries:
        known = {n for registry in KINDS.values() for n in registry.names()}
        raise SpecError(f"there is nothing called {name!r}{suggest(name, known)}")
    if len(registries) > 1:
        names = " | ".join(registry.kind for registry in registries)
        raise SpecError(f"{name!r} is the name of several items: say which kind: {names}")
    return registries[0]


def _has(registry: Registry, name: str) -> bool:
    if name not in registry:  # or it may be broken
        try:
            registry.entry(name)
        except SpecError:
            return False
    return True


# ---- the steps of each kind --------------------------------------------------------------------


def _each_option(
    registry: Registry,
    line: str,
    build: Callable[[str], Any],
    cases: Callable[[str], Iterator[Step]],
) -> Iterator[Step]:
    """Whether a line and its other options can be built, and the cases of those that can."""
    for option in with_options(registry, line):
        try:
            build(option)
        except SpecError as error:
            if option == line:
                raise
            yield Result(BUILT, option, "not applicable", f"refused: {error}")
            continue
        except Exception as error:  # of the item
            yield _not_built(option, error)
            continue
        yield Result(BUILT, option, "passed")
        yield from cases(option)


def _not_built(line: str, error: Exception) -> Result:
    return Result(BUILT, line, "failed", raised(error))


def _task_steps(line: str) -> Iterator[Step]:
    def cases(option: str) -> Iterator[Case]:
        task = tasks.build(option)
        return (Case(rule, task, option) for rule in [*task_rules.RULES, *sampling.RULES])

    return _each_option(tasks, line, tasks.build, cases)


def _method_steps(line: str) -> Iterator[Step]:
    def cases(option: str) -> Iterator[Case]:
        rules = [*method_rules.RULES, *training.METHOD_RULES]
        return (Case(rule, option, option) for rule in rules)

    return _each_option(methods, line, methods.build, cases)


def _forward(subject: Subject) -> Result:
    """What comes of a plain forward pass."""
    try:
        subject.make()(subject.input())
    except Exception as error:  # of the item
        return Result(RUN, str(subject), "failed", raised(error))
    return Result(RUN, str(subject), "passed")


def _layer_steps(subject: Subject) -> Iterator[Step]:
    """The cases of a mixer; those of attention also with memory for one query at a time."""
    yield (forward := _forward(subject))
    if forward.status == "failed":  # every other rule would fail of it
        return
    rules = [*mixer_rules.MIXER_RULES, *mixer_rules.RULES]
    once = list(training.RULES)
    is_attention = isinstance(subject.make(), Attention)
    if is_attention:
        rules, once = [*rules, *attention.RULES], [*attention.COMPILED_RULES, *once]
    yield from (Case(rule, subject, str(subject)) for rule in [*rules, *once])
    if is_attention:
        again = replace(subject, row_by_row=True)
        yield from (Case(rule, again, str(again)) for rule in rules)


def _mixer_steps(line: str) -> Iterator[Step]:
    def cases(option: str) -> Iterator[Step]:
        return _layer_steps(Subject.mixer(option))

    return _each_option(mixers, line, Subject.mixer, cases)


def _attention_steps(
    registry: Registry, layer: Callable[[str], str], rules: RuleSet[str], line: str
) -> Iterator[Step]:
    """Of a scheme or of weights: `layer` is the attention in which they are tested."""

    def build(option: str) -> Subject:
        return Subject.mixer(layer(option), attention.WIDTHS)

    def cases(option: str) -> Iterator[Step]:
        for step in _layer_steps(build(option)):
            yield step
            if isinstance(step, Result) and step.status == "failed":
                return
        yield from (Case(rule, option, option) for rule in rules)

    return _each_option(registry, line, build, cases)


def _preset_steps(line: str) -> Iterator[Step]:
    def model(option: str) -> Subject:
        return Subject(option, WIDTHS[0], whole_model=True)

    def cases(option: str) -> Iterator[Case]:
        rules = [*mixer_rules.PRESET_RULES, *mixer_rules.RULES]
        return (Case(rule, model(option), option) for rule in rules)

    return _each_option(presets, line, lambda option: model(option).make(), cases)


def _study_steps(line: str) -> Iterator[Step]:
    name = parse(line).name
    for scale in scales(name) or ["demo"]:
        option = f"{name}(scale={scale})"
        try:
            subject = study_rules.at_scale(name, scale)
        except Exception as error:  # of the item
            yield _not_built(option, error)
            continue
        yield from (Case(rule, subject, option) for rule in study_rules.RULES)


_STEPS: dict[str, Callable[[str], Iterator[Step]]] = {
    "task": _task_steps,
    "mixer": _mixer_steps,
    "scheme": partial(_attention_steps, schemes, attention.scheme_layer, attention.SCHEME_RULES),
    "weights": partial(
        _attention_steps, weightings, attention.weights_layer, attention.WEIGHTS_RULES
    ),
    "method": _method_steps,
    "preset": _preset_steps,
    "study": _study_steps,
}
_SETS: tuple[RuleSet[Any], ...] = (
    task_rules.RULES, sampling.RULES,
    mixer_rules.RULES, mixer_rules.MIXER_RULES, mixer_rules.PRESET_RULES,
    attention.RULES, attention.COMPILED_RULES, attention.SCHEME_RULES, attention.WEIGHTS_RULES,
    method_rules.RULES, training.RULES, training.METHOD_RULES,
    study_rules.RULES,
)  # fmt: skip
_RULES: dict[str, Rule[Any]] = {rule.name: rule for rules in _SETS for rule in rules}
