"""`outlast list`."""

from __future__ import annotations

from typing import Annotated, Literal

import tyro

Kind = Literal["task", "mixer", "scheme", "weights", "method", "preset", "study"]


def main(kind: Annotated[Kind | None, tyro.conf.Positional] = None) -> None:
    """Show every task, mixer, scheme, weights, method, preset and study, plug-ins included.

    Example: outlast list task

    Args:
        kind: Show only this kind.
    """
    from rich.markup import escape
    from rich.table import Table

    from outlast.cli.common import console
    from outlast.registry import KINDS, OURS

    for name, registry in KINDS.items():
        if kind not in (None, name):
            continue
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for item, summary in registry.summaries().items():
            origin = "" if summary.source == OURS else f"  [from {summary.source}]"
            table.add_row(f"  {item}", escape(summary.text + origin))
        console.print(f"[bold]{registry.plural}[/bold]")
        console.print(table)
    console.print("\noutlast show NAME tells more: outlast show composite", style="dim")
