"""Colours of the page, from its style sheet: marks stand out, and can be told apart."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from importlib import resources
from itertools import combinations

import pytest

from outlast.reporting.anatomy_by_length import CAUSES
from outlast.reporting.style import VARIABLES
from outlast.view import shipped

PAGE = resources.files("outlast.reporting") / "page.html"
Colour = tuple[float, float, float]
#: a colour, and how a person without green or red receptors sees it (Machado and others, 2009)
SIGHTS = {
    "full": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no green": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "no red": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
}


def dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def themes() -> list[dict[str, str]]:
    """Light, dark by choice, dark by the system."""
    blocks = re.findall(r"\{([^{}]*--page:[^{}]*)\}", shipped.read("style.css")[0].decode())
    return [dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in blocks]


def causes(dark: bool) -> dict[str, str]:
    """The colours of causes on the page; some are those of other things."""
    text = shipped.read("style.css")[0].decode()
    names = dict(re.findall(r"--cause-(\w+): var\(--([\w-]+)\)", text))
    theme = themes()[dark]
    own = {name.removeprefix("cause-"): colour for name, colour in theme.items()}
    return {cause: theme[names[cause]] if cause in names else own[cause] for cause in CAUSES}


def report_colours(dark: bool) -> dict[str, str]:
    """The colours of a report's page, by the names in its style sheet."""
    light, *night = re.findall(r"\{([^{}]*--c0:[^{}]*)\}", PAGE.read_text())
    return dict(re.findall(r"(--\w+): (#\w{6})\b", night[0] if dark else light))


def linear(colour: str) -> Colour:
    values = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
    return red, green, blue


def contrast(one: str, other: str) -> float:
    """The contrast of WCAG."""
    lights = [dot((0.2126, 0.7152, 0.0722), linear(c)) for c in (one, other)]
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def oklab(colour: str, sight: str) -> tuple[float, ...]:
    seen = [min(1.0, max(0.0, dot(row, linear(colour)))) for row in SIGHTS[sight]]
    cones = [
        dot(row, seen) ** (1 / 3)
        for row in ((0.4122, 0.5363, 0.0514), (0.2119, 0.6807, 0.1074), (0.0883, 0.2817, 0.6300))
    ]
    axes = ((0.2105, 0.7936, -0.0041), (1.9780, -2.4286, 0.4506), (0.0259, 0.7828, -0.8087))
    return tuple(dot(row, cones) for row in axes)


def test_dark_is_the_same_by_choice_and_by_the_system() -> None:
    light, chosen, system = themes()
    assert chosen == system
    assert chosen.keys() == light.keys()


@pytest.mark.parametrize("theme", themes()[:2], ids=["light", "dark"])
def test_colours_of_runs_and_causes_can_be_told_apart(theme: dict[str, str]) -> None:
    colours = [theme[f"c{number}"] for number in range(7)]
    assert all(contrast(colour, theme["page"]) >= 3 for colour in colours)
    for one, other in combinations(colours, 2):
        assert math.dist(oklab(one, "full"), oklab(other, "full")) > 0.08, (one, other)
    for other in colours[:5] + colours[6:]:  # the sixth was a second blue
        for sight in SIGHTS:
            assert math.dist(oklab(colours[5], sight), oklab(other, sight)) > 0.1, (other, sight)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_causes_have_the_colours_of_the_report_as_far_as_they_stand_out(dark: bool) -> None:
    page, report = causes(dark), report_colours(dark)
    theme = themes()[dark]
    assert page.keys() == CAUSES.keys()
    for cause, colour in page.items():
        own = report[VARIABLES[CAUSES[cause][1]]]
        if cause != "right" and contrast(own, theme["page"]) < 3:
            assert 3 <= contrast(colour, theme["page"]) < 3.1  # no darker than it must be
        else:
            assert math.dist(oklab(colour, "full"), oklab(own, "full")) < 0.03, cause
    for one, other in combinations(page, 2):
        assert math.dist(oklab(page[one], "full"), oklab(page[other], "full")) > 0.09, (one, other)
    foot, *wrong = page.values()
    assert all(contrast(colour, foot) >= 2.3 for colour in wrong)


@pytest.mark.parametrize("theme", themes()[:2], ids=["light", "dark"])
def test_circle_on_the_right_token_stands_out_from_its_halo(theme: dict[str, str]) -> None:
    assert contrast(theme["source"], theme["page"]) >= 3
    assert contrast(theme["page"], theme["weight-high"]) >= 3
