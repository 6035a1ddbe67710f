"""The report as Markdown: the page's tables, with links to the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outlast.reporting.load import Study
from outlast.reporting.tables import Table, plain

TITLES = {
    "claims": "Claims",
    "screen": "The screen",
    "setup": "The arms",
    "results": "Sequences entirely right, % (mean, 95 % interval, seeds that reach 90 %)",
    "parts": "The parts, %",
    "ablation": "Without each part: sequences with every answer right, % (mean, lowest and highest "
    "seed)",
    "layers": "Without one layer or head: sequences with every answer right, % (mean, lowest and "
    "highest seed)",
    "gradients": "Gradients through attention (mean, lowest and highest seed)",
    "bits": "Bits per byte, lower is better (mean, worst and best seed)",
    "seeds": "Every seed, %",
}


def study_markdown(
    study: Study,
    headline: str,
    facts: Sequence[tuple[str, str]],
    figures: Mapping[str, tuple[str, str]],
    tables: Mapping[str, Table],
    notes: Sequence[str],
) -> str:
    """One study as Markdown.

    Args:
        study: The study.
        headline: It in one sentence.
        facts: Names and values under the title.
        figures: The title and the finding of each figure, by its file name.
        tables: The tables, by their names in `TITLES`.
        notes: What stands under the tables.
    """
    blocks = [f"# {plain(study.title)}"]
    if study.record.question:
        blocks.append(f"*{plain(study.record.question)}*")
    blocks.append(plain(headline))
    blocks.append("\n".join(f"- {name}: {plain(value)}" for name, value in facts))
    for name, (title, finding) in figures.items():
        blocks += [f"![{title}](figures/{name}.png)", plain(finding)]
    for key, title in TITLES.items():
        if key in tables:
            blocks += [f"## {title}", tables[key].markdown]
    blocks += [plain(note) for note in notes]
    return "\n\n".join(block for block in blocks if block) + "\n"
