"""What the study `reach` expects, written before any run of its scale `full`.

Some claims were changed after trials on other seeds: docs/reproduce-reach.md says which.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlast.runs.study import Claim

MARK = "the mark of this study"
LAYOUTS = ("separate", "interleaved", "chained")
#: recurrences that are expected to keep a sum modulo 10 without attention, and not to
KEEPS, LOSES = ("lstm",), ("linear_attention", "mamba2", "minlstm", "mlstm")


def layout_claims(layouts: Sequence[str], at: float, low: float) -> list[Claim]:
    """That the recipe holds at a length on every seed, for each layout."""
    return [
        Claim(
            f"One recipe holds at {at:g} x on every seed, {layout} layout",
            f"layout-{layout}", at, MARK, statistic="min", low=low, stated="before",
        )
        for layout in layouts
    ]  # fmt: skip


JOINT = Claim(
    "Trained jointly, the model of layout-separate does not hold at 3 x",
    "layout-separate-joint", 3,
    "arXiv 2510.00258: a cliff; before, ours with a plain softmax had .45",
    high=0.5, stated="before",
)  # fmt: skip


def full_claims() -> list[Claim]:
    """The marks, and what is known of recurrences."""
    known = "arXiv 2411.12537: a sum needs negative or complex eigenvalues"
    far = [(layout, 40, 0.99) for layout in LAYOUTS]
    far += [("separate", 400, 0.99), ("interleaved", 400, 0.9), ("chained", 400, 0.9)]
    claims = [
        Claim(
            f"One recipe holds at {at:,} x on every seed, {layout} layout",
            f"far-{layout}", at, MARK, statistic="min", low=low, stated="before",
        )
        for layout, at, low in far
    ]  # fmt: skip
    claims.append(JOINT)
    claims += [
        Claim(
            f"{name} alone keeps a sum modulo 10 at 10 x", f"state-{name}", 10, known,
            low=0.9, stated="before",
        )
        for name in KEEPS
    ]  # fmt: skip
    claims += [
        Claim(
            f"{name} alone does not keep a sum modulo 10 at 10 x", f"state-{name}", 10, known,
            high=0.5, stated="before",
        )
        for name in LOSES
    ]  # fmt: skip
    return [
        *claims,
        Claim(
            "Supervision by the outcome alone: the recipe holds at 10 x on 9 of 10 seeds",
            "outcome-from-one-retry", 10, MARK, statistic="success", low=0.9, stated="before",
        ),
        Claim(
            "The recipe does not solve copy at 10 x", "task-copy", 10,
            "our question: no scheme of attention did", high=0.5, stated="before",
        ),
    ]  # fmt: skip
