"""`outlast list`."""

from __future__ import annotations

from typing import Annotated

import tyro


def main(kind: Annotated[str, tyro.conf.Positional] = "all") -> None:
    """Show every task, mixer, scheme, weights, method, preset and study, plug-ins included.

    Example: outlast list task

    Args:
        kind: Show only this kind: task, mixer, scheme, weights, method, preset or study.
    """
    from rich.markup import escape
    from rich.table import Table

    from outlast.cli.common import console
    from outlast.errors import bad_value
    from outlast.registry import KINDS, OURS

    chosen = [r for name, r in KINDS.items() if kind in ("all", name, r.plural)]
    if not chosen:
        raise bad_value("kind", kind, " | ".join(["all", *KINDS]))
    for registry in chosen:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for item, summary in registry.summaries().items():
            origin = "" if summary.source == OURS else f"  [from {summary.source}]"
            table.add_row(f"  {item}", escape(summary.text + origin))
        console.print(f"[bold]{registry.plural}[/bold]")
        console.print(table)
    console.print("\noutlast show NAME tells more: outlast show composite", style="dim")
