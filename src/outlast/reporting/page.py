"""The report's files: the page, the Markdown, the numbers and the figures."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from outlast.arguments import as_path, shown
from outlast.errors import RunFolderError, bad_value
from outlast.evaluation.statistics import LEVEL
from outlast.reporting import tables
from outlast.reporting.ablation_table import ablation_table, layers_table
from outlast.reporting.captions import nan_findings
from outlast.reporting.claims import Verdict, headline, judge
from outlast.reporting.contents import Entry, arm_anchors, list_contents, slug
from outlast.reporting.damage import left_out, summarise_arms
from outlast.reporting.formatting import percent
from outlast.reporting.gradients_by_step import gradients_table
from outlast.reporting.groups import grouped
from outlast.reporting.load import Study, read
from outlast.reporting.markdown import study_markdown
from outlast.reporting.pictures import Picture, pictures_of
from outlast.reporting.run_facts import moment, run_facts, train_command, versions
from outlast.reporting.screen import screen_note, screen_table
from outlast.reporting.stills import Still, still_of
from outlast.reporting.summary import (
    ArmSummary,
    bits_parts_of,
    has_accuracies,
    parts_of,
    study_json,
)
from outlast.runs.folder import RESULTS, RUN, write_text
from outlast.runs.reading import parse_json, read_text
from outlast.runs.study import ScreenRecord
from outlast.version import __version__

log = logging.getLogger(__name__)
FOLDED = 24  # rows of a table, from which on it is folded


@dataclass(frozen=True)
class RunFacts:
    """What made one arm: its settings and its command. An arm that is not run has none."""

    anchor: str
    label: str
    status: str
    facts: list[tuple[str, str]]
    command: str


@dataclass(frozen=True)
class Section:
    """One study as the page shows it."""

    #: what its anchors and the names of its figures begin with
    prefix: str
    study: Study
    arms: list[ArmSummary]
    verdicts: list[Verdict]
    headline: str
    facts: list[tuple[str, str]]
    sequences: str
    pictures: dict[str, Picture]
    tables: dict[str, tables.Table]
    reasons: list[str]
    nan: list[str]
    claim_notes: list[str]
    left_out: list[str]
    colours: dict[str, int]
    runs: list[RunFacts]
    contents: list[Entry]

    @property
    def has_bits(self) -> bool:
        return "bits" in self.tables

    @property
    def has_accuracies(self) -> bool:
        return "results" in self.tables or not self.has_bits

    @property
    def screen_note(self) -> str:
        """How the survivors of the screen were chosen."""
        screen = self.study.record.screen
        return "" if screen is None else screen_note(screen)

    @property
    def stills(self) -> list[Still]:
        """A wrong answer of each arm whose table has one."""
        return [still for arm in self.arms if (still := still_of(arm))]

    @property
    def links(self) -> dict[str, str]:
        """The anchor of each arm's settings, by its label."""
        return {run.label: run.anchor for run in self.runs}


def report(
    folders: str | PathLike[str] | Sequence[str | PathLike[str]],
    out: str | PathLike[str] | None = None,
) -> Path:
    """Write the report on run, grid and study folders; returns the path of its ``index.html``.

    Beside the page stand ``report.md`` and ``results.json`` with the same numbers, and
    ``figures/``. The same folders always give the same files. If a file of one of several runs is
    damaged, what it would show is left out, and a warning is logged.

    Args:
        folders: One folder or several.
        out: Where to write; by default a folder ``report`` in the first folder.
    """
    page, missing = write_report(folders, out)
    for words in missing:
        log.warning("%s", words)
    return page


def write_report(
    folders: str | PathLike[str] | Sequence[str | PathLike[str]],
    out: str | PathLike[str] | None = None,
) -> tuple[Path, list[str]]:
    """`report`, which also returns, in words, what is left out."""
    paths = _paths(folders)
    studies = read(paths)
    out = paths[0] / "report" if out is None else as_path("out", out)
    if (out / RUN).exists():
        accepted = f"a folder that is no run: the page has a {RESULTS} of its own"
        raise bad_value("out", out, accepted)
    _refuse_foreign(out)
    sections = [
        _section(study, arms, out, _prefix(studies, i))
        for i, (study, arms) in enumerate(zip(studies, summarise_arms(studies), strict=True))
    ]
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
    return out / "index.html", [words for section in sections for words in section.left_out]


def _refuse_foreign(out: Path) -> None:
    """Raise if the folder has files with the names of ours that are of something else."""
    here = [name for name in (RESULTS, "report.md", "index.html") if (out / name).exists()]
    if not here:
        return
    try:
        ours = isinstance(parse_json(read_text(out / RESULTS)).get("studies"), list)
    except (OSError, ValueError, AttributeError):
        ours = False
    if not ours:
        raise RunFolderError(
            f"{out} has a file {here[-1]} that is of no report: choose another folder for the page"
        )


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
    return f"{index + 1}-{slug(studies[index].record.study)}-"


def _section(study: Study, arms: list[ArmSummary], out: Path, prefix: str) -> Section:
    verdicts = judge(study.record.claims, arms)
    tests = [arm.run.results for arm in arms if arm.run and arm.run.results]
    counts = sorted({results.sequences for results in tests if results.sequences})
    pictures, built = pictures_of(arms, out, prefix), _tables(arms, verdicts, study.record.screen)
    runs = _runs(arms, prefix)
    entries = [Entry(run.anchor, run.label) for run in runs]
    return Section(
        prefix,
        study,
        arms,
        verdicts,
        headline(arms, verdicts),
        _facts(study, arms),
        " or ".join(f"{count:,}" for count in counts),
        pictures,
        built,
        tables.reasons(arms),
        nan_findings(arms),
        tables.claim_notes(verdicts),
        left_out(study, arms),
        {a.summary.label: a.index for group in grouped(arms) for a in group.arms},
        runs,
        list_contents(prefix, pictures, built, entries),
    )


def _runs(arms: list[ArmSummary], prefix: str) -> list[RunFacts]:
    anchors = arm_anchors([arm.name for arm in arms], prefix)
    return [
        RunFacts(
            anchors[arm.name],
            arm.label,
            arm.status,
            run_facts(arm.run) if arm.run else [],
            train_command(arm.run) if arm.run else "",
        )
        for arm in arms
    ]


def _tables(
    arms: list[ArmSummary], verdicts: list[Verdict], screen: ScreenRecord | None
) -> dict[str, tables.Table]:
    built = {"setup": tables.setup_table(arms)}
    if screen is not None:
        built["screen"] = screen_table(screen)
    if verdicts:
        built["claims"] = tables.claims_table(verdicts)
    if bits_parts_of(arms):
        built["bits"] = tables.bits_table(arms)
    if any(arm.ladders for arm in arms) and has_accuracies(arms):
        built["results"] = tables.results_table(arms)
        built["seeds"] = tables.seeds_table(arms)
        if parts_of(arms):
            built["parts"] = tables.parts_table(arms, parts_of(arms))
    more = {
        "ablation": ablation_table(arms),
        "layers": layers_table(arms),
        "gradients": gradients_table(arms),
    }
    return built | {name: table for name, table in more.items() if table is not None}


def _facts(study: Study, arms: list[ArmSummary]) -> list[tuple[str, str]]:
    """The lines under the title: command, task, date, device, versions."""
    records = [arm.run.record for arm in arms if arm.run]
    created = sorted(record.created for record in records if record.created)
    used = dict.fromkeys(word for r in records for word in versions(r).split(", ") if word)
    facts = [
        ("command", study.record.command or ""),
        ("task", "; ".join(dict.fromkeys(record.short.task for record in records))),
        ("scale", study.record.scale or ""),
        ("date", moment(created[-1]) if created else ""),
        ("device", ", ".join(dict.fromkeys(r.device for r in records if r.device))),
        ("versions", ", ".join(used)),
    ]
    return [(name, value) for name, value in facts if value]


def _markdown(section: Section) -> str:
    figures = {p.name: (p.title, p.finding) for p in section.pictures.values()}
    reasons = (f"n/a: {reason}" for reason in section.reasons)
    notes = [section.screen_note, *section.claim_notes, *reasons, *section.nan, *section.left_out]
    return study_markdown(
        section.study, section.headline, section.facts, figures, section.tables, notes
    )


def _page(sections: list[Section]) -> str:
    environment = Environment(
        loader=PackageLoader("outlast", "reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"breakable": _breakable, "code": _code, "orange": _orange}
    title = sections[0].study.title if len(sections) == 1 else "Outlast report"
    template = environment.get_template("page.html")
    return template.render(sections=sections, title=title, version=__version__, folded_from=FOLDED)


def _breakable(text: str) -> Markup:
    """Text whose long words may break after a bracket, a comma and the like, but nowhere else.

    The width of a model stays on the line of its ``@``.
    """
    words = []
    for word in text.replace(" @ ", " @\N{NO-BREAK SPACE}").split(" "):
        pieces = re.split(r"(?<=[(,=_/|>])(?![(,=_/|>])", word) if len(word) > 12 else [word]
        words.append(Markup("<wbr>").join(pieces))
    return Markup(" ").join(words)


def _code(text: str) -> Markup:
    """Text whose words in backticks are code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _orange(table: tables.Table) -> str:
    """What orange means in a table; nothing if it has none."""
    tones = {word for row in table.rows for cell in row for word in cell.tone.split()}
    meanings = {
        "low": f"below {percent(LEVEL, 0)} %",
        "bad": "seeds that were parked, or whose phase 1 did not converge",
    }
    return "; ".join(meaning for tone, meaning in meanings.items() if tone in tones)


def _finite(value: Any) -> Any:
    """The same structure with null for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
