"""The rounds of a study's screen as a table."""

from __future__ import annotations

from outlast.reporting import formatting
from outlast.reporting.tables import Cell, Table
from outlast.runs.spec import seed_words
from outlast.runs.study import RoundRecord, ScreenRecord


def screen_table(screen: ScreenRecord) -> Table:
    """Each candidate with its score in every round it was in, those that came farthest first."""
    heads = [f"round {number} {_size(made)}" for number, made in enumerate(screen.rounds, 1)]
    rows = []
    for name in sorted(screen.rounds[0].scores, key=lambda name: _rank(screen, name)):
        cells = (_score(made, name) for made in screen.rounds)
        goes_on = "over all seeds" if name in screen.survivors else ""
        rows.append((Cell(name), *cells, Cell(goes_on)))
    return Table(("candidate", *heads, "then"), tuple(rows))


def screen_note(screen: ScreenRecord) -> str:
    """How the candidates were chosen, in words."""
    return (
        f"Sequences entirely right at {screen.at:g} x the training length, %, as the mean over the "
        f"seeds of a round, which are the first of {seed_words(screen.seeds)}. No arm has these "
        f"seeds, so that what is reported of the survivors is no part of what they were chosen by."
    )


def _size(made: RoundRecord) -> str:
    return f"({made.seeds} seed{'s' * (made.seeds != 1)}, {made.steps:,} steps)"


def _score(made: RoundRecord, name: str) -> Cell:
    if name not in made.scores:
        return Cell(formatting.NONE, tone="number")
    score = made.scores[name]
    if score is None:
        return Cell("failed", tone="number bad")
    return Cell(formatting.percent(score), tone="number")


def _rank(screen: ScreenRecord, name: str) -> tuple[float, ...]:
    """The last round first; those that were not in it come later."""
    scores = [made.scores.get(name) for made in reversed(screen.rounds)]
    return tuple(1.0 if score is None else -score for score in scores)
