"""`outlast show`."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import tyro

#: the heads of attention, if the spec does not say how many
HEADS = 4


def main(spec: Annotated[str, tyro.conf.Positional]) -> None:
    """Explain a task, model, mixer, scheme, weights, method or study: parameters, paper, example.

    Example: outlast show "composite(modulus=10, layout=chained)"

    Args:
        spec: A name, a spec, or a model line such as "4 x (lstm > attention > mlp)".
    """
    from outlast.errors import SpecError
    from outlast.registry import KINDS, presets, suggest
    from outlast.specs import Spec, parse_layout

    layout = parse_layout(spec)
    node = layout.node
    if not isinstance(node, Spec) or node.name in presets or layout.width is not None:
        _show_model(spec)
        return
    kinds = [kind for kind, registry in KINDS.items() if node.name in registry]
    if not kinds:
        known = {n for r in KINDS.values() for n in r.names()}
        raise SpecError(f"there is nothing called {node.name!r}{suggest(node.name, known)}")
    _show_entry(kinds[0], node)
    if not node.args and not node.kwargs:
        for kind in kinds[1:]:  # dat is a method and a study
            _show_entry(kind, node)


def _show_entry(kind: str, spec: Any) -> None:
    from rich.markup import escape
    from rich.table import Table

    from outlast.arguments import to_value
    from outlast.cli.common import console
    from outlast.registry import KINDS, REQUIRED
    from outlast.specs import write_value

    registry = KINDS[kind]
    entry, plain = registry.entry(spec.name), not spec.args and not spec.kwargs
    bound = {} if plain else registry.bind(spec)  # a bare name may lack a required argument
    if kind != "study" and not plain:
        _try(registry, spec)
    title = spec.name if plain else str(registry.canonical(spec))
    console.print(f"[bold]{escape(title)}[/bold]  ({kind})")
    home = inspect.getmodule(entry.factory)
    text = inspect.getdoc(home) if home else entry.summary
    console.print(f"\n{text}\n", markup=False, soft_wrap=True)
    paper = getattr(entry.factory, "paper", "")
    if paper:
        console.print(f"paper: {escape(paper)}\n")
    table = Table(box=None, pad_edge=False)
    for column in ("argument", "value", "accepts"):
        table.add_column(column, overflow="fold")
    for p in entry.parameters(registry.caller_arguments):
        default = "(needed)" if p.default is REQUIRED else write_value(to_value(p.default))
        value = write_value(to_value(bound[p.python_name])) if p.python_name in bound else default
        table.add_row(p.name, escape(value), p.accepts)
    if table.row_count:
        console.print(table)
    if kind == "task":
        _show_task(registry.build(spec))


def _try(registry: Any, spec: Any) -> None:
    """Build the item, so that a value that training would refuse is an error here too.

    The width fits its heads, because only a model line has a width.
    """
    import torch

    from outlast.errors import OutlastError
    from outlast.models.build import DEFAULT_WIDTH, MemoryLimit

    values = {p.python_name: p.default for p in registry.entry(spec.name).parameters()}
    heads = (values | registry.bind(spec)).get("heads")
    has_heads = isinstance(heads, int) and heads > 0
    width = DEFAULT_WIDTH // HEADS * heads if has_heads else DEFAULT_WIDTH
    sizes = {"width": width, "heads": HEADS}
    words = f"the line is {spec}, the width {width}"
    arguments = {name: sizes[name] for name in registry.caller_arguments if name in sizes}
    try:
        with torch.device("meta"):  # draws nothing and allocates nothing
            registry.build(spec, **arguments)
    except OutlastError:
        raise
    except Exception:  # an item of a plug-in may need real numbers
        with MemoryLimit(words):
            registry.build(spec, **arguments)


def _show_task(task: Any) -> None:
    import torch

    from outlast.cli.common import console
    from outlast.tasks import draw

    low, high = task.lengths
    helping = f", helped by {', '.join(task.auxiliary)}" if task.auxiliary else ""
    console.print(
        f"\nasks: {', '.join(task.asked)}{helping}; trained on lengths {low} to {high} "
        f"({task.tokens(high)} tokens); {task.vocabulary} tokens, {task.classes} answers"
    )
    short = max(task.shortest, min(4 * task.multiple, high))
    batch = task.sample(short, 1, torch.Generator().manual_seed(0))
    console.print(
        f"\nan example of length {short}:\n{draw(task, batch)}", markup=False, soft_wrap=True
    )


def _show_model(line: str) -> None:
    from rich.table import Table

    from outlast.api import model, task
    from outlast.cli.common import console

    example = task("composite")
    built = model(line, example, seed=0)
    console.print(f"[bold]{built.layout}[/bold]  (model)\n", markup=True)
    table = Table(box=None, pad_edge=False)
    for column in ("sublayer", "pathway", "parameters"):
        table.add_column(column, justify="right" if column == "parameters" else "left")
    rows: list[tuple[str, str, Any]] = [
        (f"embedding of {example.vocabulary} tokens", "", built.embedding)
    ]
    rows += [(str(s.mixer.spec), s.pathway, s) for s in built.sublayers()]
    rows += [(f"{built.head.out_features} outputs", "", built.head), ("in all", "", built)]
    for name, pathway, module in rows:
        table.add_row(name, pathway, f"{sum(p.numel() for p in module.parameters()):,}")
    console.print(table)
    limit = "no limit" if built.ceiling is None else f"{built.ceiling} tokens"
    console.print(
        f"\n(batch, tokens) -> (batch, tokens, {built.head.out_features}) on {example.spec}; "
        f"length: {limit}"
    )
