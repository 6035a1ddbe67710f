"""A wrong answer as a still: tokens, the state that a probe reads, attention, and the answer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from outlast.reporting.anatomy_by_length import anatomy_rows
from outlast.reporting.causes import cause_sentence
from outlast.reporting.formatting import times
from outlast.reporting.summary import ArmSummary
from outlast.runs.analyses import AnatomyRow, Example, read_example

#: tokens side by side; of a sequence of more pieces only those that matter are shown
PIECE, PIECES = 20, 5
#: weights from here on have a number, and the opacity of a weight of 1, under which ink is legible
SHOWN, OPACITY = 0.05, 0.6


@dataclass(frozen=True)
class StillCell:
    """A value at a token: its text, a note under it, a class of the page, the opacity behind it."""

    text: str
    note: str = ""
    tone: str = ""
    shade: float = 0


@dataclass(frozen=True)
class StillRow:
    """A line of a piece."""

    name: str
    cells: tuple[StillCell, ...]


@dataclass(frozen=True)
class Piece:
    """Some tokens, from `first` on; without rows so many tokens are `skipped`."""

    first: int
    rows: tuple[StillRow, ...] = ()
    skipped: int = 0


@dataclass(frozen=True)
class Still:
    """One wrong answer of an arm."""

    label: str
    finding: str
    legend: str
    pieces: tuple[Piece, ...]


def still_of(arm: ArmSummary) -> Still | None:
    """A wrong answer of the most frequent cause at the longest length; None without examples."""
    wrong = [row for row in anatomy_rows(arm) if row.cause != "right"]
    longest = max((row.multiple for row in wrong if row.share), default=0.0)
    counts: Counter[str] = Counter()
    for row in wrong:
        counts[row.cause] += (row.count or 0) * (row.multiple == longest)
    ranked = [cause for cause, _ in counts.most_common()]
    with_example = [row for row in wrong if row.example]
    with_example.sort(key=lambda row: (ranked.index(row.cause), row.multiple, row.seed))
    if arm.run is None or not with_example:
        return None
    row = with_example[0]
    example = read_example(arm.run.folder, row)
    return None if example is None else _still(arm.label, row, example)


def _still(label: str, row: AnatomyRow, example: Example) -> Still:
    heads, attended = example.retrieving, example.attended
    cause = cause_sentence(row.cause, heads, attended, example.source)
    finding = (
        f"“{label}”, seed {row.seed}, length {row.length} ({times(row.multiple)}), {row.part}: "
        f"{cause}. The model says {example.given}, expected is {example.expected}."
    )
    legend = ""
    if example.read:
        legend = f"A probe reads the state from {example.read_from}; wrong readings are bold."
    if heads is not None:
        weight = f"{heads.weight:.2f} of the best one's weight is on the right token"
        legend += f" Heads that retrieve look answers up: at the training length {weight}."
    lines = [StillRow("token", _words(example))]
    if example.read:
        lines.append(StillRow("true state", tuple(StillCell(_text(s)) for s in example.state)))
        lines.append(StillRow("state read", _readings(example)))
    retrieving = [] if heads is None else heads.names
    lines += [
        StillRow(name + ", retrieves" * (name in retrieving), tuple(map(_weight, weights)))
        for name, weights in example.heads.items()
    ]
    return Still(label, finding, legend.strip(), _pieces(lines, _shown(example)))


def _words(example: Example) -> tuple[StillCell, ...]:
    notes = {len(example.words) - 1: "asked"}
    if example.source is not None:
        notes[example.source] = "source"
    if example.attended is not None:
        before = notes.get(example.attended)
        notes[example.attended] = f"{before}, looked at" if before else "looked at"
    return tuple(StillCell(word, notes.get(i, "")) for i, word in enumerate(example.words))


def _readings(example: Example) -> tuple[StillCell, ...]:
    return tuple(
        StillCell(_text(read), tone="bad" if read != state else "")
        for state, read in zip(example.state, example.read, strict=True)
    )


def _text(state: int | None) -> str:
    return "" if state is None else str(state)


def _weight(weight: float) -> StillCell:
    text = "–" if weight == 0 else f"{weight:.2f}" if abs(weight) >= SHOWN else ""
    return StillCell(text, shade=round(OPACITY * min(1.0, abs(weight)), 3))


def _shown(example: Example) -> set[int]:
    """The pieces that are shown: with the answer, its source, a first misreading, a head's top."""
    pieces = -(-len(example.words) // PIECE)
    if pieces <= PIECES:
        return set(range(pieces))
    source = example.source or 0
    tokens = {len(example.words) - 1, source, example.attended or source}
    states = zip(example.state, example.read, strict=True)
    tokens.add(next((i for i, (state, read) in enumerate(states) if state != read), 0))
    if example.heads:
        top = [max(weights) for weights in zip(*example.heads.values(), strict=True)]
        tokens.add(top.index(max(top)))
    return {token // PIECE for token in tokens}


def _pieces(lines: list[StillRow], shown: set[int]) -> tuple[Piece, ...]:
    count, pieces, skipped = len(lines[0].cells), list[Piece](), 0
    for first in range(0, count, PIECE):
        if first // PIECE not in shown:
            skipped += min(PIECE, count - first)
            continue
        if skipped:
            pieces.append(Piece(first - skipped, skipped=skipped))
        skipped = 0
        rows = (StillRow(line.name, line.cells[first : first + PIECE]) for line in lines)
        pieces.append(Piece(first, tuple(rows)))
    return tuple(pieces)
