"""`outlast show`."""

from __future__ import annotations

import inspect
import re
import shlex
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
    """Explain a task, model, mixer, scheme, weights, method, preset, study or tracker.

    Example: outlast show "composite(modulus=10, layout=chained)"

    Args:
        spec: A name, a spec, or a model line such as "4 x (lstm > attention > mlp)".
        of_kind: If several kinds have the name, the kind may come first: study dat.
    """
    from outlast.errors import SpecError
    from outlast.registry import KINDS, SHOWN, suggest, trackers
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
    if not kinds and node.name in trackers:
        kinds = [trackers.kind]
    if not kinds:
        known = {n for r in SHOWN.values() for n in r.names()}
        raise SpecError(f"there is nothing called {node.name!r}{suggest(node.name, known)}")
    if node.args or node.kwargs:
        kinds = [_kind_that_takes(node, kinds)]
    for kind in kinds:  # dat is a method and a study
        _show_entry(kind, node)
    if "preset" in kinds:
        _show_model(spec)


def _split(first: str, second: str | None) -> tuple[str | None, str]:
    """The kind, if it stands before the line, and the line."""
    from outlast.errors import bad_value
    from outlast.registry import SHOWN

    if second is None:
        kind, _, line = first.strip().partition(" ")
        return (kind, line) if kind in SHOWN and line else (None, first)
    if first not in SHOWN:
        raise bad_value("kind", first, " | ".join(SHOWN))
    return first, second


def _kind_that_takes(node: Spec, kinds: list[str]) -> str:
    """The first kind whose item has these arguments; the error of the first one, if none has."""
    from outlast.errors import SpecError
    from outlast.registry import SHOWN

    errors = []
    for kind in kinds:
        try:
            SHOWN[kind].bind(node)
            return kind
        except SpecError as error:
            errors.append(error)
    raise errors[0]


def _show_entry(kind: str, spec: Spec) -> None:
    from rich.markup import escape

    from outlast.cli.common import console, say, wrapped
    from outlast.cli.explaining import try_item
    from outlast.errors import how_to_install
    from outlast.registry import SHOWN

    registry = SHOWN[kind]
    entry, plain = registry.entry(spec.name), not spec.args and not spec.kwargs
    if kind != "study" and not plain:
        try_item(registry, spec)
    title = spec.name if plain else str(registry.canonical(spec))
    console.print(f"[bold]{escape(title)}[/bold]  ({kind})", soft_wrap=True)
    home = inspect.getmodule(entry.factory)
    documented = kind not in ("preset", "tracker") and home is not None
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
    elif kind == "tracker":
        extra = getattr(entry.factory, "extra", "")
        say(f"use: outlast train ... --track {shlex.quote(str(spec))}")
        if extra:
            say(f"install: {how_to_install(extra)}")


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
        words = f"{accepted(registry, entry, p, spec)}\n{meaning.get(p.name, '')}".rstrip()
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
    say(wrapped(f"{about}; {_chance(task)}"))
    short = max(task.shortest, min(4 * task.multiple, high))
    batch = task.sample(short, 1, torch.Generator().manual_seed(0))
    say(f"\nan example of length {short}:\n{fold_columns(draw(task, batch))}")


def _chance(task: Any) -> str:
    """How often a guess at an answer is right; parts of one level share it."""
    parts: dict[str, list[str]] = {}
    for part in task.asked:
        parts.setdefault(f"{100 * task.chance_level(part):.3g} %", []).append(part)
    if len(parts) == 1:
        return f"a guess is right in {next(iter(parts))} of answers"
    levels = [f"{level} of {' and '.join(names)}" for level, names in parts.items()]
    return f"a guess is right in {', '.join(levels)}"


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
    from outlast.studies.base import scales

    default = {arm.name for arm in study.choose()}
    say(wrapped(f"{study.title} ({study.scale}): {study.question}"))
    others = "" if len(default) == len(study.arms) else " (* is not run by default)"
    console.print(f"\n[bold]arms[/bold]{others}")
    first = study.arms[0].run
    rows = [
        (
            arm.name + "*" * (arm.name not in default),
            arm.label,
            " + ".join(arm.run.methods),
            _unless(first.task, arm.run.task),
            _unless(first.model, arm.run.model),
        )
        for arm in study.arms
    ]
    rows[0] = (*rows[0][:3], first.task, first.model)
    columns = [Column("name", "name"), Column("label"), Column("method", rank=1)]
    columns += [Column("task", rank=2), Column("model", rank=2)]
    show_table(columns, rows, "task and model where they are not those of the first arm")
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
        say(f'the larger one: outlast show "{study.name}(scale={scales(study.name)[-1]})"')


def _unless(usual: str, value: str) -> str:
    """Nothing in place of what is usual."""
    return "" if value == usual else value


def _show_preset(spec: Spec) -> None:
    """The line that it stands for, and a command that trains it."""
    from outlast.cli.common import say, wrapped
    from outlast.models.presets import find_preset
    from outlast.runs.spec import RunSpec

    preset = find_preset(spec)
    out = ["--out", f"runs/{spec.name}"]
    if isinstance(preset, RunSpec):
        from outlast.cli.presets import as_flags

        words = [word for flag in as_flags(preset) for word in flag]
        say(wrapped(f"stands for: outlast train {shlex.join(words)}"))
        words = ["--preset", str(spec), *out]
    else:
        say(wrapped(f"stands for: {preset}"))
        words = ["--task", "parity", "--model", str(spec), *out]
    say(f"use: outlast train {shlex.join(words)}\n")


def _task_for(line: str) -> str:
    """A task that a model can be shown on: its own, if it is the model of a whole training."""
    from outlast.models.presets import find_preset
    from outlast.registry import presets
    from outlast.runs.spec import RunSpec
    from outlast.specs import Spec, parse_layout

    layout = parse_layout(line)
    if isinstance(layout.node, Spec) and layout.node.name in presets:
        preset = find_preset(layout.node)
        if isinstance(preset, RunSpec):
            return preset.task
    return "composite" if layout.head is None else "parity"  # of two answers


def _show_model(line: str) -> None:
    from rich.markup import escape

    from outlast.api import model, task
    from outlast.cli.common import console, say, wrapped
    from outlast.cli.tables import Column, show_table

    example = task(_task_for(line))
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
