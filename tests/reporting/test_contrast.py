"""Text can be read: every text colour has a contrast of at least 4.5 to what it stands on."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.text import Text
from report_folders import write_demo

from outlast.reporting.accuracy_by_length import accuracy_figure
from outlast.reporting.learning_curves import loss_figure, probe_figure
from outlast.reporting.load import read
from outlast.reporting.panels import NARROW, WIDE
from outlast.reporting.seed_dots import seed_dots_figure
from outlast.reporting.style import PAPER, SHADE, VARIABLES
from outlast.reporting.summary import parts_of, summarise_arm

LEAST = 4.5
GROUNDS = ("--page", "--shade", "--paper")  # the page, code and trained lengths, a figure's paper


def template() -> str:
    return files("outlast.reporting").joinpath("page.html").read_text()


def variables(dark: bool) -> dict[str, str]:
    """The page's colours, in light or in dark mode."""
    light, night = re.findall(r":root \{(.*?)\}", template(), re.DOTALL)
    colours = dict(re.findall(r"(--\w+): (#[0-9a-f]{6})\b", light))
    return colours | (dict(re.findall(r"(--\w+): (#[0-9a-f]{6})\b", night)) if dark else {})


def luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """As WCAG 2 has it: 1 for equal colours, 21 for black on white."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_of_known_pairs() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_colour_of_the_page_can_be_read(dark: bool) -> None:
    style = template().partition("<style>")[2].partition("</style>")[0]
    texts = set(re.findall(r"(?<![-\w])color: var\((--\w+)\)", style))
    assert {"--ink", "--muted", "--bad", "--good"} <= texts
    assert not re.search(r"(?<![-\w])color: (?!var\(|inherit)", style), "a colour without a name"
    assert "opacity" not in style.replace("fill-opacity", "")
    colours = variables(dark)
    for name in texts:
        for ground in GROUNDS:
            ratio = contrast(colours[name], colours[ground])
            assert ratio >= LEAST, f"{name} on {ground}, dark={dark}: {ratio:.2f}"


def test_every_text_of_a_figure_can_be_read_in_both_modes(tmp_path: Path) -> None:
    arms = [summarise_arm(arm) for arm in read([write_demo(tmp_path / "study")])[0].arms]
    figures = [
        figure
        for form in (WIDE, NARROW)
        for figure in (
            accuracy_figure(arms, ["joint"], form),
            accuracy_figure(arms, parts_of(arms), form),
            seed_dots_figure(arms, form),
            loss_figure(arms, form),
            probe_figure(arms, form),
        )
        if figure
    ]
    assert len(figures) == 10
    texts = {
        (to_hex(text.get_color()), text.get_alpha())
        for figure in figures
        for text in figure.findobj(Text)
        if isinstance(text, Text) and text.get_text()
    }
    night = variables(dark=True)
    for colour, alpha in texts:
        assert alpha in (None, 1)
        assert min(contrast(colour, SHADE), contrast(colour, PAPER)) >= LEAST, colour
        ratios = [contrast(night[VARIABLES[colour]], night[ground]) for ground in GROUNDS]
        assert min(ratios) >= LEAST, colour


def test_figures_and_page_have_the_same_light_colours() -> None:
    colours = variables(dark=False)
    assert {name: colours[name] for name in VARIABLES.values()} == {
        name: colour for colour, name in VARIABLES.items()
    }
