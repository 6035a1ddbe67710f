"""The page's list of contents, and the anchors that it links to."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A heading of the page, and those under it."""

    anchor: str
    title: str
    items: tuple[Entry, ...] = ()


def slug(text: str) -> str:
    """``Serial hybrid, DAT`` as ``serial-hybrid-dat``."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def arm_anchors(names: Sequence[str], prefix: str) -> dict[str, str]:
    """An anchor for each arm by its name; names that read alike get a number."""
    anchors: dict[str, str] = {}
    for name in names:
        anchor, number = f"{prefix}arm-{slug(name)}", 2
        while anchor in anchors.values():
            anchor, number = f"{prefix}arm-{slug(name)}-{number}", number + 1
        anchors[name] = anchor
    return anchors


def list_contents(
    prefix: str, pictures: Collection[str], tables: Collection[str], arms: Sequence[Entry]
) -> list[Entry]:
    """The headings of a study, in the order of the page.

    Args:
        prefix: What the anchors of the study begin with.
        pictures: The names of its figures.
        tables: The names of its tables.
        arms: The headings of its runs.
    """

    def entry(name: str, title: str, *items: Entry) -> Entry:
        return Entry(prefix + name, title, items)

    training = [
        entry(name, title)
        for name, title in (("loss", "Loss"), ("probes", "Probes"))
        if name in pictures
    ]
    measured = [entry("results", "By length"), entry("every-seed", "Every seed")]
    measured += [entry("bits-table", "Bits per byte")] if "bits" in tables else []
    measured = measured if "results" in tables else measured[2:]
    headings = [
        (entry("bits", "Bits per byte by context"), "bits" in pictures),
        (entry("bits-parts", "Bits per byte by part"), "bits-parts" in pictures),
        (entry("positions", "Bits per byte by position"), "positions" in pictures),
        (entry("accuracy", "Accuracy by length"), "accuracy" in pictures),
        (entry("seeds", "Seed by seed"), "seeds" in pictures),
        (entry("claims", "Claims"), "claims" in tables),
        (entry("screen", "The screen"), "screen" in tables),
        (entry("parts", "Part by part"), "parts" in pictures),
        (entry("anatomy", "Why answers are wrong"), "anatomy" in pictures),
        (entry("analyses", "Inside the models"), "analyses" in pictures),
        (entry("keys", "Keys while training"), "keys" in pictures),
        (entry("tokens", "Tokens that suffice"), "tokens" in pictures),
        (entry("gradients", "Gradients through attention"), "gradients" in pictures),
        (entry("training", "While training", *training), bool(training)),
        (entry("arms", "The arms", *measured), True),
        (entry("runs", "Settings and commands", *arms), True),
    ]
    return [heading for heading, shown in headings if shown]
