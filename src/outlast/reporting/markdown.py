"""The report as Markdown: the page's tables, with links to the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outlast.reporting.load import Study
from outlast.reporting.tables import Table, plain

TITLES = {
    "claims": "Claims",
    "setup": "The arms",
    "results": "Sequences entirely right, % (mean, 95 % interval, seeds that reach 90 %)",
    "parts": "The parts, %",
    "seeds": "Every seed, %",
}


def study_markdown(
    study: Study,
    headline: str,
    facts: Sequence[tuple[str, str]],
    figures: Mapping[str, str],
    tables: Mapping[str, Table],
    notes: Sequence[str],
) -> str:
    """One study; ``figures`` maps each figure's file name to its title. ``notes`` come last."""
    blocks = [f"# {plain(study.title)}"]
    if study.record.question:
        blocks.append(f"*{plain(study.record.question)}*")
    blocks.append(plain(headline))
    blocks.append("\n".join(f"- {name}: {plain(value)}" for name, value in facts))
    blocks += [f"![{title}](figures/{name}.png)" for name, title in figures.items()]
    for key, title in TITLES.items():
        if key in tables:
            blocks += [f"## {title}", tables[key].markdown]
    blocks += [plain(note) for note in notes]
    return "\n\n".join(block for block in blocks if block) + "\n"
