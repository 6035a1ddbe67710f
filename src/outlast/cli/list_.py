"""`outlast list`."""

from __future__ import annotations

from typing import Annotated

import tyro


def main(kind: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="KIND")] = "all") -> None:
    """Show every task, mixer, scheme, weights, method, preset, study and tracker, plug-ins too.

    Example: outlast list task

    Args:
        kind: Show only this kind: task, mixer, scheme, weights, method, preset, study or
            tracker.
    """
    from outlast.cli.common import console
    from outlast.cli.tables import Column, show_table
    from outlast.errors import bad_value
    from outlast.registry import OURS, SHOWN

    chosen = [r for name, r in SHOWN.items() if kind in ("all", name, r.plural)]
    if not chosen:
        raise bad_value("kind", kind, " | ".join(["all", *SHOWN]))
    for registry in chosen:
        rows = []
        for item, summary in registry.summaries().items():
            origin = "" if summary.source == OURS else f"  [from {summary.source}]"
            rows.append((f"  {item}", summary.text + origin))
        console.print(f"[bold]{registry.plural}[/bold]")
        show_table([Column("", "name", style="bold"), Column("")], rows, header=False)
    example = "composite" if len(chosen) > 1 else next(iter(chosen[0].names()), "NAME")
    console.print(f"\noutlast show NAME tells more: outlast show {example}", style="dim")
