"""The figures of a study: drawn, saved as files, and in the two forms that the page shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from outlast.reporting import captions
from outlast.reporting.accuracy_by_length import accuracy_figure
from outlast.reporting.analysis_by_length import analysis_figure, analysis_legend
from outlast.reporting.anatomy_by_length import anatomy_figure, anatomy_finding
from outlast.reporting.bits import bits_finding, parts_bits_finding
from outlast.reporting.bits_by_length import bits_figure, position_figure
from outlast.reporting.gradients_by_step import gradients_figure
from outlast.reporting.hover import HoverFigure
from outlast.reporting.keys_by_step import keys_figure
from outlast.reporting.learning_curves import loss_figure, probe_figure
from outlast.reporting.panels import NARROW, WIDE, Form
from outlast.reporting.seed_dots import seed_dots_figure
from outlast.reporting.style import inline, png, svg
from outlast.reporting.summary import ArmSummary, bits_parts_of, parts_of
from outlast.reporting.tokens_by_share import tokens_figure, tokens_finding
from outlast.runs.folder import write_bytes, write_text


@dataclass(frozen=True)
class Plan:
    """A figure to draw, how to read it, and what it shows once it is drawn."""

    name: str
    title: str
    legend: str
    draw: Callable[[Form], HoverFigure | None]
    finding: Callable[[], str]


@dataclass(frozen=True)
class Picture:
    """One figure: its file name, what it shows, how to read it, and its two inline forms."""

    name: str
    title: str
    finding: str
    legend: str
    wide: Markup
    narrow: Markup


def pictures_of(arms: list[ArmSummary], out: Path, prefix: str) -> dict[str, Picture]:
    """The figures that there are data for, by their names without the prefix."""
    drawn = {plan.name: _picture(plan, out, prefix) for plan in _plans(arms)}
    return {name: picture for name, picture in drawn.items() if picture}


def _plans(arms: Sequence[ArmSummary]) -> list[Plan]:
    parts, (all_bytes, *text_parts) = parts_of(arms), bits_parts_of(arms) or ("",)
    return [
        Plan(
            "bits",
            "Bits per byte by context",
            "Bits per byte of test text, lower is better, by the length of the context. The bytes "
            "that count are the same at every length. Thick: mean over seeds. Band: from the worst "
            "to the best seed. Dotted: what zlib takes.",
            lambda form: bits_figure(arms, [all_bytes], form),
            lambda: bits_finding(arms),
        ),
        Plan(
            "bits-parts",
            "Bits per byte by part",
            "The same for some of the bytes. recall: names and numbers that stood in the document "
            "before, within the training length. far: the same, further back. first: names and "
            "numbers that are new. state: closing brackets and quotes, indentation.",
            lambda form: bits_figure(arms, text_parts, form),
            lambda: parts_bits_finding(arms, text_parts),
        ),
        Plan(
            "positions",
            "Bits per byte by position",
            "Bits per byte by the number of tokens seen, in the longest test. These are other "
            "bytes at each position.",
            lambda form: position_figure(arms, form),
            lambda: "",
        ),
        Plan(
            "accuracy",
            "Accuracy by length",
            "Share of test sequences with every answer right, by test length. Thick: mean over "
            "seeds. Band: from the worst to the best seed. Thin: each seed. Striped: arms that lie "
            "on each other.",
            lambda form: accuracy_figure(arms, ["joint"], form),
            lambda: captions.accuracy_finding(arms),
        ),
        Plan(
            "seeds",
            "Seed by seed",
            "The same share at some lengths. Each dot is a seed, the stroke their mean; at the "
            "right, how many seeds reach 90 %.",
            lambda form: seed_dots_figure(arms, form),
            lambda: captions.seeds_finding(arms),
        ),
        Plan(
            "parts",
            "Part by part",
            "Share of test sequences with every answer of one part right.",
            lambda form: accuracy_figure(arms, parts, form) if parts else None,
            lambda: captions.parts_finding(arms, parts),
        ),
        Plan(
            "anatomy",
            "Why answers are wrong",
            "Of all answers, the share that is right and the causes of the others, by test length; "
            "mean over seeds. The causes are found by `outlast analyse`.",
            lambda form: anatomy_figure(arms, form),
            lambda: anatomy_finding(arms),
        ),
        Plan(
            "analyses",
            "Inside the models",
            "What `outlast analyse` measured, by test length. Thick: mean over seeds. Band: from "
            "the worst to the best seed. Of several layers and heads the best at the shortest "
            "length counts." + analysis_legend(arms),
            lambda form: analysis_figure(arms, form),
            lambda: "",
        ),
        Plan(
            "keys",
            "Keys while training",
            "Share of keys that a linear probe reads, at the value that is stored under them, from "
            "what enters an attention layer. Attention finds a value by its key. Thick: mean over "
            "seeds. Thin: each seed.",
            lambda form: keys_figure(arms, form),
            lambda: "",
        ),
        Plan(
            "tokens",
            "Tokens that suffice",
            "Share of test sequences with every answer right, if attention sees some of the tokens "
            "alone: those that get most attention where an answer is due. The recurrence reads all "
            "of them. Thick: mean over seeds. Band: from the worst to the best seed.",
            lambda form: tokens_figure(arms, form),
            lambda: tokens_finding(arms),
        ),
        Plan(
            "gradients",
            "Gradients through attention",
            "The gradient that reaches the recurrent weights through attention, and the one that "
            "reaches them directly. Their cosine: below 0 they oppose each other. The ratio of "
            "their norms: above 1 the one through attention is larger. The cosine of a step down "
            "each of them with the way to the solution: at 0 it leads neither there nor away. The "
            "solution is the last weights of the run, or of the run that the table names. Thick: "
            "mean over seeds. Thin: each seed.",
            lambda form: gradients_figure(arms, form),
            lambda: "",
        ),
        Plan(
            "loss",
            "Loss while training",
            "Smoothed training loss of each part, logarithmic. Thick: mean over seeds. Thin: each "
            "seed. Ticks at the foot: where a seed switched to phase 2, dotted if phase 1 had not "
            "converged.",
            lambda form: loss_figure(arms, form),
            lambda: captions.loss_finding(arms),
        ),
        Plan(
            "probes",
            "Probes while training",
            "Quick tests during training: share of sequences with every answer right, at multiples "
            "of the training length.",
            lambda form: probe_figure(arms, form),
            lambda: captions.probe_finding(arms),
        ),
    ]


def _picture(plan: Plan, out: Path, prefix: str) -> Picture | None:
    """Draw a figure for the page and for a phone; keep the former as files, too."""
    wide, narrow = plan.draw(WIDE), plan.draw(NARROW)
    if wide is None or narrow is None:
        return None
    name = prefix + plan.name
    source = svg(wide)
    write_text(out / "figures" / f"{name}.svg", source)
    write_bytes(out / "figures" / f"{name}.png", png(wide))
    small = Markup(inline(svg(narrow), f"{name}-s"))  # ours: text is outlines, titles are escaped
    large = Markup(inline(source, name))
    return Picture(name, plan.title, plan.finding(), plan.legend, large, small)
