"""How every figure looks and how it is saved: one palette, one set of sizes, the same bytes.

Figures are drawn for white paper. On the page they stand inline, and their colours become CSS
variables. So they follow the page's dark colours.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from outlast.reporting.hover import HoverFigure

INK, MUTED, RULE, SHADE, PAPER = "#1c1e21", "#5d636a", "#e3e5e8", "#f1f3f5", "#fefefe"
# Okabe and Ito's colours, told apart by colour-blind readers; the markers say it once more.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5a5f66")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    RULE: "--rule",
    SHADE: "--shade",
    PAPER: "--paper",
    "#ffffff": "--page",
    **{colour: f"--c{index}" for index, colour in enumerate(PALETTE)},
}

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.0,
    "text.color": INK,
    "text.parse_math": False,  # labels come from files: a dollar sign is a dollar sign
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.6,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # fixed: to look for a free place takes a tenth of all drawing time
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.width": 0.6,
    "ytick.major.size": 0,
    "xtick.major.size": 3,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.frameon": False,
    "axes.facecolor": "none",
    "svg.fonttype": "path",
    "svg.hashsalt": "outlast",
    "path.simplify_threshold": 0.3,
}


#: what may not stand in an SVG; labels come from files, and matplotlib repeats them in comments
NOT_XML = re.compile("[^\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@contextmanager
def drawing() -> Iterator[None]:
    """Our style, and nothing of the user's matplotlibrc, for the time of the block."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: dict[str, Any] = matplotlib.rcParams  # type: ignore[assignment]
        settings.update(STYLE)
        yield


def png(figure: Figure) -> bytes:
    """The figure as PNG, the same bytes each time."""
    return _saved(figure, "png", {"Software": None})


def svg(figure: HoverFigure) -> str:
    """The figure as SVG, text as paths, values as titles, the same bytes each time."""
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    body, end, rest = _saved(figure, "svg", metadata).decode().rpartition("</svg>")
    return NOT_XML.sub(" ", body + figure.titles() + end + rest)


def _saved(figure: Figure, kind: str, metadata: dict[str, str | None]) -> bytes:
    buffer = io.BytesIO()
    with drawing():
        figure.savefig(buffer, format=kind, metadata=metadata)
    return buffer.getvalue()


def inline(source: str, name: str) -> str:
    """An SVG file's text as part of a page: no prologue, ids of its own, the page's colours."""
    text = source[source.index("<svg") :]
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = text.replace("url(#", f"url(#{name}-")
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    return re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1">', text, count=1)
