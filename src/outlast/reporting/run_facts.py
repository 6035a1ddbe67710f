"""What made a run: its settings, its machine, and the command that makes it again."""

from __future__ import annotations

import shlex
from dataclasses import fields, replace

from outlast.reporting.load import Run
from outlast.runs.records import RunRecord
from outlast.runs.spec import Settings, seed_words


def run_facts(run: Run) -> list[tuple[str, str]]:
    """Names and values, in the order of the page. What the record does not say is left out."""
    record = run.record
    changed = ", ".join(f"{name}={value}" for name, value in changed_settings(record.settings))
    facts = [
        ("task", record.short.task),
        ("model", record.short.model),
        ("methods", "; ".join(record.short.methods) or "none"),
        ("seeds", seed_words(record.seeds)),
        ("starts from", "" if record.start_from is None else str(record.start_from)),
        ("settings", f"{changed}; the others are defaults" if changed else "all are defaults"),
        ("tested", _tested(run)),
        ("machine", record.device),
        ("versions", versions(record)),
        ("date", moment(record.created)),
        ("trained with", ", ".join(name for name in record.pack if name != run.folder.name)),
    ]
    return [(name, value) for name, value in facts if value]


def changed_settings(settings: Settings) -> list[tuple[str, object]]:
    """The settings that differ from their defaults."""
    default = Settings(warmup=replace(settings, warmup=None).warmup_steps)
    settings = replace(settings, warmup=settings.warmup_steps)
    values = [(f.name, getattr(settings, f.name)) for f in fields(Settings)]
    return [(name, value) for name, value in values if value != getattr(default, name)]


def train_command(run: Run) -> str:
    """The command line that makes the run again. A run of a grid is made on its own by it."""
    record, name = run.record, run.folder.resolve().name
    words = ["outlast", "train", *flag_words("task", record.short.task)]
    words += flag_words("model", record.short.model)
    for method in record.short.methods:
        words += flag_words("method", method)
    words += flag_words("seeds", seed_words(record.seeds).replace(" ", ""))
    if record.start_from is not None:
        words += flag_words("start-from", record.start_from.run)
    for setting, value in changed_settings(record.settings):
        words += flag_words(setting.replace("_", "-"), value)
    if record.label != name:
        words += flag_words("label", record.label)
    return shlex.join([*words, *flag_words("out", f"runs/{name}")])


def flag_words(name: str, value: object) -> list[str]:
    """A flag of the command line with its value, as words: ``--steps 200``, ``--by-length``."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    text = str(value)
    return [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]


def _tested(run: Run) -> str:
    if run.results is None:
        return "not yet"
    results = run.results
    words = [
        f"{results.sequences:,} sequences at each length" if results.sequences else "",
        f"weights of step {results.step:,}" if results.step is not None else "",
        f"precision {results.precision}",
    ]
    return ", ".join(filter(None, words))


def versions(record: RunRecord) -> str:
    """``outlast 0.1.0, python 3.11.7``."""
    named = [("outlast", record.outlast), *record.versions.items()]
    return ", ".join(f"{name} {version}" for name, version in named if version)


def moment(created: str) -> str:
    """2026-11-15T08:00:00+00:00 as a reader wants it."""
    zone = " UTC" if created.endswith(("+00:00", "Z")) else ""
    return created[:16].replace("T", " ") + zone
