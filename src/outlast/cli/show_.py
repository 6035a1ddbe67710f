"""`outlast show`."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Annotated, Any

import tyro

if TYPE_CHECKING:
    from outlast.registry import Registry
    from outlast.specs import Spec
    from outlast.studies import Study


def main(
    spec: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SPEC")],
    of_kind: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[SPEC]")] = None,
) -> None:
    """Explain a task, model, mixer, scheme, weights, method, preset or study, and its arguments.

    Example: outlast show "composite(modulus=10, layout=chained)"

    Args:
        spec: A name, a spec, or a model line such as "4 x (lstm > attention > mlp)".
        of_kind: If several kinds have the name, the kind may come first: study dat.
    """
    from outlast.errors import SpecError
    from outlast.registry import KINDS, presets, suggest
    from outlast.specs import Spec, parse, parse_layout

    kind, spec = _split(spec, of_kind)
    if kind is not None:
        _show_entry(kind, parse(spec))
        if kind == "preset":
            _show_model(spec)
        return
    layout = parse_layout(spec)
    node = layout.node
    if not isinstance(node, Spec) or layout.width is not None:
        _show_model(spec)
        return
    kinds = [kind for kind, registry in KINDS.items() if node.name in registry]
    if not kinds:
        known = {n for r in KINDS.values() for n in r.names()}
        raise SpecError(f"there is nothing called {node.name!r}{suggest(node.name, known)}")
    if node.args or node.kwargs:
        _show_entry(_kind_that_takes(node, kinds), node)
    else:
        for kind in kinds:  # dat is a method and a study
            _show_entry(kind, node)
    if node.name in presets:
        _show_model(spec)


def _split(first: str, second: str | None) -> tuple[str | None, str]:
    """The kind, if it stands before the line, and the line."""
    from outlast.errors import bad_value
    from outlast.registry import KINDS

    if second is None:
        kind, _, line = first.strip().partition(" ")
        return (kind, line) if kind in KINDS and line else (None, first)
    if first not in KINDS:
        raise bad_value("kind", first, " | ".join(KINDS))
    return first, second


def _kind_that_takes(node: Spec, kinds: list[str]) -> str:
    """The first kind whose item has these arguments; the error of the first one, if none has."""
    from outlast.errors import SpecError
    from outlast.registry import KINDS

    errors = []
    for kind in kinds:
        try:
            KINDS[kind].bind(node)
            return kind
        except SpecError as error:
            errors.append(error)
    raise errors[0]


def _show_entry(kind: str, spec: Spec) -> None:
    from rich.markup import escape

    from outlast.cli.common import console, say, wrapped
    from outlast.cli.explaining import try_item
    from outlast.registry import KINDS

    registry = KINDS[kind]
    entry, plain = registry.entry(spec.name), not spec.args and not spec.kwargs
    if kind != "study" and not plain:
        try_item(registry, spec)
    title = spec.name if plain else str(registry.canonical(spec))
    console.print(f"[bold]{escape(title)}[/bold]  ({kind})", soft_wrap=True)
    home = inspect.getmodule(entry.factory)
    documented = kind != "preset" and home is not None
    text = inspect.getdoc(home) if documented else inspect.getdoc(entry.factory)
    say(f"\n{reflow((text or entry.summary).partition(chr(10) + 'Args:')[0].rstrip())}\n")
    paper = getattr(entry.factory, "paper", "")
    if paper:
        say(wrapped(f"paper: {paper}\n"))
    _show_arguments(registry, spec)
    if kind == "task":
        _show_built(registry, spec, plain)
    elif kind == "study":
        _show_study(entry.factory(**registry.bind(spec)), title)
    elif kind == "preset":
        _show_preset(spec)


def reflow(text: str) -> str:
    """A docstring for the width of the terminal: paragraphs are filled, other lines kept."""
    from outlast.cli import common
    from outlast.cli.common import wrapped

    paragraphs = []
    for paragraph in text.split("\n\n"):
        lines = paragraph.split("\n")
        if max(map(len, lines)) <= common.console.width:
            paragraphs.append(paragraph)
        elif re.match(r"[ =]|- |\d\. ", paragraph):  # an example, a table or a list
            entries = re.sub(r"\n( {2,3}| {16,})(?=\S)", " ", paragraph).split("\n")
            kept = [line for line in entries if set(line) - set("= ")]
            paragraphs.append("\n".join(_hanging(line) for line in kept))
        else:
            paragraphs.append(wrapped(" ".join(lines)))
    return "\n\n".join(paragraphs)


def _hanging(line: str) -> str:
    """A line broken between words, with the rest further to the right."""
    from outlast.cli.common import wrapped

    indent = re.match(r"\s*", line)[0]  # type: ignore[index]
    return wrapped(line[len(indent) :], indent, f"{indent}  ")


def _show_arguments(registry: Registry, spec: Spec) -> None:
    """Each argument with its value, what it accepts, and what it means."""
    from outlast.arguments import to_value
    from outlast.cli import common
    from outlast.cli.explaining import accepted, meanings
    from outlast.cli.tables import Column, show_table
    from outlast.registry import REQUIRED
    from outlast.specs import write_value

    entry, plain = registry.entry(spec.name), not spec.args and not spec.kwargs
    bound = {} if plain else registry.bind(spec)  # a bare name may lack a required argument
    meaning = meanings(entry.factory)
    rows = []
    for p in entry.parameters(registry.caller_arguments):
        default = "(needed)" if p.default is REQUIRED else write_value(to_value(p.default))
        value = write_value(to_value(bound[p.python_name])) if p.python_name in bound else default
        words = f"{accepted(registry, entry, p)}\n{meaning.get(p.name, '')}".rstrip()
        rows.append((p.name, value, words))
    if rows:
        columns = [Column("argument", "name", style="bold"), Column("value")]
        show_table([*columns, Column("accepts, and what it means")], rows)
        common.say("")


def _show_built(registry: Registry, spec: Spec, plain: bool) -> None:
    """A task in numbers, with an example. One that needs a text which is not there says so."""
    from outlast.cli.common import say, wrapped
    from outlast.errors import OutlastError

    try:
        task = registry.build(spec)
    except OutlastError as error:
        if not plain:
            raise
        say(wrapped(f"no example: {error}"))
        return
    _show_task(task)


def _show_task(task: Any) -> None:
    import torch

    from outlast.cli.common import say, wrapped
    from outlast.tasks import draw

    low, high = task.lengths
    helping = f", helped by {', '.join(task.auxiliary)}" if task.auxiliary else ""
    about = (
        f"asks: {', '.join(task.asked)}{helping}; trained on lengths {low} to {high} "
        f"({task.tokens(high)} tokens); {task.vocabulary} tokens, {task.classes} answers"
    )
    say(wrapped(about))
    short = max(task.shortest, min(4 * task.multiple, high))
    batch = task.sample(short, 1, torch.Generator().manual_seed(0))
    say(f"\nan example of length {short}:\n{fold_columns(draw(task, batch))}")


def fold_columns(drawing: str) -> str:
    """Lines that stand in columns, cut between two columns wherever the terminal ends."""
    from outlast.cli import common

    lines = drawing.split("\n")
    length = max(map(len, lines))
    lines = [line.ljust(length) for line in lines]
    pieces, start = [], 0
    while length - start > (width := common.console.width):
        cuts = [
            i for i in range(start + 1, start + width + 1) if all(x[i - 1] == " " for x in lines)
        ]
        end = max(cuts, default=start + width)
        pieces.append((start, end))
        start = end
    pieces.append((start, length))
    folded = ["\n".join(line[a:b].rstrip() for line in lines) for a, b in pieces]
    return "\n\n".join(folded)


def _show_study(study: Study, title: str) -> None:
    """Its arms, its claims, and how it is run."""
    from outlast.cli.common import console, say, wrapped
    from outlast.cli.tables import Column, show_table
    from outlast.reporting.claims import OPEN, Verdict

    default = {arm.name for arm in study.choose()}
    say(wrapped(f"{study.title} ({study.scale}): {study.question}"))
    others = "" if len(default) == len(study.arms) else " (* is not run by default)"
    console.print(f"\n[bold]arms[/bold]{others}")
    rows = [
        (arm.name + "*" * (arm.name not in default), arm.label, " + ".join(arm.run.methods))
        for arm in study.arms
    ]
    show_table([Column("name", "name"), Column("label"), Column("method", rank=1)], rows)
    console.print("\n[bold]claims[/bold]")
    claims = [
        (claim.text, Verdict(claim, OPEN, None, 0, "").expected, claim.arm, f"{claim.multiple:g} x")
        for claim in study.claims
    ]
    columns = [Column("claim"), Column("expected", "number"), Column("arm", "name", 1)]
    show_table([*columns, Column("length", "number", 1)], claims)
    scale = "" if study.scale == "demo" else f" --scale {study.scale}"
    say(f"\nuse: outlast reproduce {study.name}{scale}")
    if study.scale == "demo":
        say(f'the larger one: outlast show "{study.name}(scale=paper)"')


def _show_preset(spec: Spec) -> None:
    """The line that it stands for, and a command that trains it."""
    import shlex

    from outlast.cli.common import say, wrapped
    from outlast.registry import presets

    layout = presets.entry(spec.name).factory(**presets.bind(spec))
    say(wrapped(f"stands for: {layout}"))
    words = ["--task", "parity", "--model", str(spec), "--out", f"runs/{spec.name}"]
    say(f"use: outlast train {shlex.join(words)}\n")


def _show_model(line: str) -> None:
    from rich.markup import escape

    from outlast.api import model, task
    from outlast.cli.common import console, say, wrapped
    from outlast.cli.tables import Column, show_table

    example = task("composite")
    built = model(line, example, seed=0)
    console.print(f"[bold]{escape(wrapped(f'{built.layout}  (model)'))}[/bold]\n", soft_wrap=True)
    modules: list[tuple[str, str, Any]] = [
        (f"embedding of {example.vocabulary} tokens", "", built.embedding)
    ]
    modules += [(str(s.mixer.spec), s.pathway, s) for s in built.sublayers()]
    modules += [(f"{built.head.out_features} outputs", "", built.head), ("in all", "", built)]
    rows = [
        (name, pathway, f"{sum(p.numel() for p in module.parameters()):,}")
        for name, pathway, module in modules
    ]
    columns = [Column("sublayer"), Column("pathway", "name", 1), Column("parameters", "number")]
    show_table(columns, rows)
    limit = "no limit" if built.ceiling is None else f"{built.ceiling} tokens"
    shape = f"(batch, tokens) -> (batch, tokens, {built.head.out_features})"
    say(wrapped(f"\n{shape} on {example.spec}; length: {limit}"))
