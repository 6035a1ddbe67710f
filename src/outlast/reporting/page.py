"""The report's files: the page, the Markdown, the numbers and the figures."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from outlast.arguments import as_path, shown
from outlast.errors import bad_value
from outlast.reporting import tables
from outlast.reporting.accuracy_by_length import accuracy_figure
from outlast.reporting.claims import Verdict, headline, judge
from outlast.reporting.groups import grouped
from outlast.reporting.learning_curves import loss_figure, probe_figure
from outlast.reporting.load import Study, read
from outlast.reporting.markdown import study_markdown
from outlast.reporting.panels import NARROW, WIDE, Form
from outlast.reporting.seed_dots import seed_dots_figure
from outlast.reporting.style import inline, png, svg
from outlast.reporting.summary import ArmSummary, parts_of, study_json, summarise_arm
from outlast.runs.folder import RESULTS, RUN, write_bytes, write_text
from outlast.version import __version__

Draw = Callable[[Form], Figure | None]


@dataclass(frozen=True)
class Picture:
    """One figure: its file name, what it shows, and its two inline forms."""

    name: str
    title: str
    caption: str
    wide: Markup
    narrow: Markup


@dataclass(frozen=True)
class Section:
    """One study as the page shows it."""

    study: Study
    arms: list[ArmSummary]
    verdicts: list[Verdict]
    headline: str
    facts: list[tuple[str, str]]
    sequences: str
    pictures: dict[str, Picture]
    tables: dict[str, tables.Table]
    reasons: list[str]
    colours: dict[str, int]


def report(
    folders: str | PathLike[str] | Sequence[str | PathLike[str]],
    out: str | PathLike[str] | None = None,
) -> Path:
    """Write the report on run, grid and study folders; returns the path of its ``index.html``.

    Beside the page stand ``report.md`` and ``results.json`` with the same numbers, and
    ``figures/``. The same folders always give the same files.

    Args:
        folders: One folder or several.
        out: Where to write; by default a folder ``report`` in the first folder.
    """
    paths = _paths(folders)
    studies = read(paths)
    out = paths[0] / "report" if out is None else as_path("out", out)
    if (out / RUN).exists():
        accepted = f"a folder that is no run: the page has a {RESULTS} of its own"
        raise bad_value("out", out, accepted)
    sections = [_section(study, out, _prefix(studies, i)) for i, study in enumerate(studies)]
    numbers = {
        "format": 1,
        "outlast": __version__,
        "studies": [
            {**study_json(s.study, s.arms), "claims": [v.as_json() for v in s.verdicts]}
            for s in sections
        ],
    }
    text = json.dumps(_finite(numbers), indent=1, ensure_ascii=False, allow_nan=False)
    write_text(out / RESULTS, text + "\n")
    write_text(out / "report.md", "\n".join(_markdown(s) for s in sections))
    (out / "figures").mkdir(exist_ok=True)  # the page has a link to it
    write_text(out / "index.html", _page(sections))
    return out / "index.html"


def _paths(folders: object) -> list[Path]:
    """One path or several, as a list."""
    if isinstance(folders, str | PathLike):
        return [as_path("folders", folders)]
    error = bad_value("folders", shown(folders), "a path, or a list of paths")
    if isinstance(folders, bytes) or not isinstance(folders, Iterable):
        raise error
    try:
        several = iter(folders)
    except (TypeError, RuntimeError):  # an array without an axis
        raise error from None
    return [as_path("folders", folder) for folder in several]


def _prefix(studies: Sequence[Study], index: int) -> str:
    """What the figures' names of one study begin with, where there are several."""
    if len(studies) == 1:
        return ""
    return (
        f"{index + 1}-"
        + re.sub(r"[^a-z0-9]+", "-", studies[index].record.study.lower()).strip("-")
        + "-"
    )


def _section(study: Study, out: Path, prefix: str) -> Section:
    arms = [summarise_arm(arm) for arm in study.arms]
    verdicts = judge(study.record.claims, arms)
    tests = [arm.run.results for arm in arms if arm.run and arm.run.results]
    counts = sorted({results.sequences for results in tests if results.sequences})
    return Section(
        study,
        arms,
        verdicts,
        headline(arms, verdicts),
        _facts(study, arms),
        " or ".join(f"{count:,}" for count in counts),
        _pictures(arms, out, prefix),
        _tables(arms, verdicts),
        tables.reasons(arms),
        {a.summary.label: a.index for group in grouped(arms) for a in group.arms},
    )


def _tables(arms: list[ArmSummary], verdicts: list[Verdict]) -> dict[str, tables.Table]:
    built = {"setup": tables.setup_table(arms)}
    if verdicts:
        built["claims"] = tables.claims_table(verdicts)
    if any(arm.ladders for arm in arms):
        built["results"] = tables.results_table(arms)
        built["seeds"] = tables.seeds_table(arms)
        if parts_of(arms):
            built["parts"] = tables.parts_table(arms, parts_of(arms))
    return built


def _pictures(arms: list[ArmSummary], out: Path, prefix: str) -> dict[str, Picture]:
    parts = parts_of(arms)
    plans: list[tuple[str, str, str, Draw]] = [
        (
            "accuracy",
            "Accuracy by length",
            "Share of test sequences with every answer right, by test length. Thick: mean over "
            "seeds. Band: 95 % interval of the mean. Thin: each seed. Striped: arms that lie on "
            "each other.",
            lambda form: accuracy_figure(arms, ["joint"], form),
        ),
        (
            "seeds",
            "Seed by seed",
            "The same share at some lengths. Each dot is a seed, the stroke their mean; at the "
            "right, how many seeds reach 90 %.",
            lambda form: seed_dots_figure(arms, form),
        ),
        (
            "parts",
            "Part by part",
            "Share of test sequences with every answer of one part right.",
            lambda form: accuracy_figure(arms, parts, form) if parts else None,
        ),
        (
            "loss",
            "Loss while training",
            "Smoothed training loss of each part, logarithmic. Thick: mean over seeds. Thin: each "
            "seed. Ticks at the foot: where a seed switched to phase 2, dotted if phase 1 had not "
            "converged.",
            lambda form: loss_figure(arms, form),
        ),
        (
            "probes",
            "Probes while training",
            "Quick tests during training: share of sequences with every answer right, at multiples "
            "of the training length.",
            lambda form: probe_figure(arms, form),
        ),
    ]
    drawn = {plan[0]: _picture(*plan, out, prefix) for plan in plans}
    return {name: picture for name, picture in drawn.items() if picture}


def _picture(
    name: str, title: str, caption: str, draw: Draw, out: Path, prefix: str
) -> Picture | None:
    """Draw a figure for the page and for a phone; keep the former as files, too."""
    wide, narrow = draw(WIDE), draw(NARROW)
    if wide is None or narrow is None:
        return None
    name = prefix + name
    source = svg(wide)
    write_text(out / "figures" / f"{name}.svg", source)
    write_bytes(out / "figures" / f"{name}.png", png(wide))
    small = Markup(inline(svg(narrow), f"{name}-s"))  # ours: text is outlines
    return Picture(name, title, caption, Markup(inline(source, name)), small)


def _facts(study: Study, arms: list[ArmSummary]) -> list[tuple[str, str]]:
    """The lines under the title: command, task, date, device, versions."""
    records = [arm.run.record for arm in arms if arm.run]
    created = sorted(record.created for record in records if record.created)
    versions = dict.fromkeys(
        f"{name} {version}"
        for record in records
        for name, version in [("outlast", record.outlast), *record.versions.items()]
        if version
    )
    facts = [
        ("command", study.record.command or ""),
        ("task", "; ".join(dict.fromkeys(record.short.task for record in records))),
        ("scale", study.record.scale or ""),
        ("date", _moment(created[-1]) if created else ""),
        ("device", ", ".join(dict.fromkeys(r.device for r in records if r.device))),
        ("versions", ", ".join(versions)),
    ]
    return [(name, value) for name, value in facts if value]


def _moment(created: str) -> str:
    """2026-11-15T08:00:00+00:00 as a reader wants it."""
    zone = " UTC" if created.endswith(("+00:00", "Z")) else ""
    return created[:16].replace("T", " ") + zone


def _markdown(section: Section) -> str:
    figures = {picture.name: picture.title for picture in section.pictures.values()}
    return study_markdown(
        section.study, section.headline, section.facts, figures, section.tables, section.reasons
    )


def _page(sections: list[Section]) -> str:
    environment = Environment(
        loader=PackageLoader("outlast", "reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    title = sections[0].study.title if len(sections) == 1 else "Outlast report"
    template = environment.get_template("page.html")
    return template.render(sections=sections, title=title, version=__version__)


def _finite(value: Any) -> Any:
    """The same structure with null for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
