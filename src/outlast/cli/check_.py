"""`outlast check`."""

from __future__ import annotations

from typing import Annotated

import tyro


def main(
    item: Annotated[tuple[str, ...], tyro.conf.Positional], rules: tuple[str, ...] = ()
) -> int:
    """Test a task, mixer, scheme, weights, method, preset or study against the rules of its kind.

    It is meant for items of your own package: is a mixer causal, do seeds stay apart, does a method
    resume? The exit code is 0 if no rule is broken, 1 if one is, and 2 if there is no such item or
    its line is wrong.

    Example: outlast check parity

    Args:
        item: A name, or a line if it needs arguments: "mymixer(size=4)". If several kinds have the
            name, the kind comes first: method dat.
        rules: Names of the only rules to test, such as "is causal"; by default all.
    """
    from rich.markup import escape

    from outlast.cli.common import console, say
    from outlast.cli.exit_codes import FAILED
    from outlast.cli.tables import Column, show_table
    from outlast.errors import bad_value
    from outlast.testing import check

    if not 1 <= len(item) <= 2:
        raise bad_value("item", " ".join(item) or "none", "a name or a line, or a kind and a line")
    *kind, line = item
    report = check(line, kind[0] if kind else None, rules)
    console.print(f"[bold]{escape(report.line)}[/bold]  ({report.kind}, from {report.source})\n")
    rows = []
    for result in report.by_rule():
        reason = f": {result.reason}" if result.status == "not applicable" else ""
        rows.append((result.rule, f"{result.status}{reason}"))
    show_table([Column("rule"), Column("result")], rows)
    if report.passed:
        say("\nno rule is broken")
        return 0
    say(f"\n{report.explain()}")
    return FAILED
