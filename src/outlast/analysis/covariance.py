"""Contrastive covariance (2602.04752): which part of a head's scores matches identity, which place.

Lee et al. (2026) compare pairs of a query and a key that match in a feature with pairs that do not,
all else being equal. For each head

    dC = E[q k^T | match] - E[q k^T | no match] = U S V^T,

and the first singular vectors span what the head uses for this feature, in the space of queries (U)
and in that of keys (V). A score is then split into the features' parts.

What follows is our choice, because the recipe is known to us from summaries:

- Queries are the tokens at which something stored is asked for, the last 8 of each sequence. Keys
  are tokens of one kind, the column `token`: the one that holds a stored `value`, or the `key` that
  stands before it. If an item is one token, it is the value. A task without keys has `any` token.
- `identity`: the key belongs to the item that is asked for, or to one of another key. Items stand
  in random order, so that distance is the same in the mean. If a key repeats, its newest item is
  asked for, and its older ones are on neither side. Then the item that is asked for is nearer in
  the mean, so that place is a part of `identity`.
- `position`: the key is among the nearer half of the items of other keys, or among the farther
  half.
- Means go over the keys of a query first, then over queries. So a long sequence does not count
  more.
- dC is never quite 0, as there are only so many questions. So singular values are compared with
  chance: 20 more dC, for which the items that are compared stand in a random order. This order is
  the same for all questions of a sequence, as these share their keys. A singular value counts if
  those before it count, and if it is well above chance in the directions that these leave: three
  standard deviations above the mean of the largest singular values of chance. So a feature by which
  a head does not match is still found in about one of a hundred heads. It is found more often if
  neighbouring keys are alike, as then near and far ones differ more than in a random order.
- The rank is how many of the values that count hold 99 % of their squares' sum. If none counts, it
  is 0, and the part of the score is 0.
- The part of a score in a subspace is (U U^T q) (V V^T k) / sqrt(d), with U and V cut at the rank.
- Subspaces come from every second sequence, all other numbers from the rest.

Features may overlap, so their parts need not add up to the score.

::

    rows = contrastive_covariance(model, task)

The column `feature` says which part of the score a row is about: the whole `logit`, the subspace of
`identity` or of `position`, and the `bias`, which is what the scheme adds to q k^T / sqrt(d). A
scheme that makes its own weights, such as `tra`, has no bias, and its logit is q k^T / sqrt(d).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from outlast.analysis.pairs import Contrast, PairKeeper, pairs, shuffled
from outlast.analysis.scoring import check_answers
from outlast.analysis.sequences import (
    LADDER,
    SEQUENCES,
    NothingToSeeError,
    Row,
    draw_rungs,
    without_nan,
)
from outlast.analysis.watching import require_ours
from outlast.arguments import as_whole
from outlast.evaluation.outputs import eval_mode
from outlast.models.model import Model
from outlast.streams import stream
from outlast.tasks import Batch, Task

FEATURES = ("identity", "position")
#: the share of the sum of squares that the singular values up to the rank hold
HELD = 0.99
#: contrasts of shuffled items, which are chance
SHUFFLES = 20
#: how many standard deviations a singular value must be above the mean of those of chance
DEVIATIONS = 3
#: how many singular values a row shows
SHOWN = 8


class Subspace(NamedTuple):
    """What a feature's pairs have in common, for each head.

    Args:
        map: U U^T V V^T, (heads, d, d), so that q^T map k is the score within the subspace.
        rank: How many singular values span it, (heads,).
        values: All singular values, (heads, d).
        bar: What the first one must be above, as chance is below it, (heads,).
    """

    map: Tensor
    rank: Tensor
    values: Tensor
    bar: Tensor


@dataclass
class Sums:
    """Sums over the questions of a layer and a kind of token, each (heads,), by part of the score.

    Args:
        margins: By feature: the scores of pairs that match less those of the others.
        left: The squares of what is left of the score without the part, less its mean for each
            question.
        questions: By feature, how many questions have both kinds of pairs.
    """

    margins: dict[tuple[str, str], Tensor | int] = field(default_factory=dict)
    left: dict[str, Tensor | int] = field(default_factory=dict)
    questions: dict[str, int] = field(default_factory=dict)


def contrastive_covariance(
    model: Model,
    task: Task,
    ladder: Sequence[float] = LADDER,
    sequences: int = SEQUENCES,
) -> list[Row]:
    """What heads match by: a row for each rung, layer, kind of token, head and part of the score.

    `FEATURE_margin` is by how much the part is larger for pairs that match in the feature, in the
    mean over `FEATURE_questions` questions. `FEATURE_share` is that over the margin of the whole
    logit. Parts can have opposite signs, so it can be above 1 or below 0. `variance_share` is 1
    less the variance of the logit without this part over its variance with it, among the keys of a
    question. It is below 0 for a part that works against the rest. Shares of a logit that does not
    vary are None, and those of a margin near 0 say nothing. `rank` and `singular_1`, ... describe a
    subspace. If `singular_1` is not above `singular_bar`, it may be chance, and the rank is 0.

    Args:
        model: A model of ours with attention.
        task: A task that asks for what was stored, such as `recall` or `composite`.
        ladder: Multiples of the training length.
        sequences: Sequences of each length, at least 2.
    """
    check_answers(task, ladder, sequences)
    as_whole("sequences", sequences, 2)
    require_ours(model)
    rows: list[Row] = []
    with eval_mode(model), torch.no_grad():
        for rung in draw_rungs(model, task, ladder, sequences):
            number = torch.arange(sequences, device=rung.batch.inputs.device)
            subspaces = _fit(model, task, rung.batch.rows(number % 2 == 0))
            measured = _measure(model, task, rung.batch.rows(number % 2 == 1), subspaces)
            for (layer, kind), sums in measured.items():
                columns: Row = {"multiple": rung.multiple, "length": rung.length, "layer": layer}
                rows += _rows({**columns, "token": kind}, sums, subspaces[layer, kind])
    return rows


def _fit(model: Model, task: Task, batch: Batch) -> dict[tuple[str, str], dict[str, Subspace]]:
    """The subspaces of each feature, by layer and kind of token."""
    sums: dict[tuple[str, str, str], Tensor | int] = {}
    questions: dict[tuple[str, str], int] = {}
    generators = [stream(torch.device("cpu"), "shuffle items", n) for n in range(SHUFFLES)]
    for seen, contrasts in pairs(model, task, batch):
        orders = [_order(next(iter(seen.values())).k, generator) for generator in generators]
        for kind, contrast in contrasts.items():
            for feature, weights in contrast.weights.items():
                counted = int(weights.any(-1).sum())
                questions[kind, feature] = questions.get((kind, feature), 0) + counted
                all_weights = [weights, *(shuffled(weights, order) for order in orders)]
                for layer, keeper in seen.items():
                    total = sums.get((layer, kind, feature), 0)
                    sums[layer, kind, feature] = total + _products(keeper, all_weights)
    subspaces: dict[tuple[str, str], dict[str, Subspace]] = {}
    for (layer, kind, feature), total in sums.items():
        mean = torch.as_tensor(total) / max(1, questions[kind, feature])
        subspaces.setdefault((layer, kind), {})[feature] = _subspace(mean)
    return subspaces


def _order(keys: Tensor, generator: torch.Generator) -> Tensor:
    """The tokens of each sequence in a random order (batch, tokens), for keys of all heads.

    It is drawn on the CPU, row by row. So a sequence has the same order in any block.
    """
    batch, _, tokens, _ = keys.shape
    return torch.rand(batch, tokens, generator=generator).argsort(-1).to(keys.device)


def _products(seen: PairKeeper, all_weights: Sequence[Tensor]) -> Tensor:
    """For each table of weights the weighted sum of q k^T over pairs, (tables, heads, d, d)."""
    q = seen.q.double()
    keys = [weights[:, None].to(seen.k.dtype) @ seen.k for weights in all_weights]
    return torch.stack([torch.einsum("bhqd,bhqe->hde", q, key.double()) for key in keys])


def _subspace(differences: Tensor) -> Subspace:
    """The subspace of a difference of covariances, the first; the others are those of chance.

    `differences` is (1 + shuffles, heads, d, d).
    """
    if not differences.isfinite().all():
        raise NothingToSeeError("the queries or keys of the model are not finite")
    u, values, vt = torch.linalg.svd(differences[0])
    by_chance = u.mT @ differences[1:] @ vt.mT  # in the directions of the values
    number = torch.arange(values.shape[-1], device=values.device)
    above = _above_chance(values, by_chance)
    squares = (values * (number < above[:, None])).square().cumsum(-1)
    enough = squares >= HELD * squares[:, -1:]
    rank = torch.where(above > 0, enough.long().argmax(-1) + 1, 0)
    inside = number < rank[:, None]
    u, v = u * inside[:, None], vt.mT * inside[:, None]
    return Subspace(u @ u.mT @ v @ v.mT, rank, values, _bar(by_chance))


def _above_chance(values: Tensor, by_chance: Tensor) -> Tensor:
    """How many singular values of each head, (heads, d), are above chance, from the first on.

    Each is compared with chance in the directions from its own on, as those before it are taken.
    """
    above = torch.zeros_like(values[:, 0], dtype=torch.int64)
    for number, value in enumerate(values.unbind(-1)):
        heads = (above == number).nonzero().flatten()
        if not len(heads):
            break
        above[heads] += value[heads] > _bar(by_chance[:, heads, number:, number:])
    return above


def _bar(by_chance: Tensor) -> Tensor:
    """What a singular value must be above, (heads,); `by_chance` is (contrasts, heads, ...)."""
    largest = torch.linalg.svdvals(by_chance)[..., 0]
    return largest.mean(0) + DEVIATIONS * largest.std(0)


def _measure(
    model: Model,
    task: Task,
    batch: Batch,
    subspaces: dict[tuple[str, str], dict[str, Subspace]],
) -> dict[tuple[str, str], Sums]:
    measured: dict[tuple[str, str], Sums] = {}
    for seen, contrasts in pairs(model, task, batch):
        for layer, keeper in seen.items():
            for kind, contrast in contrasts.items():
                sums = measured.setdefault((layer, kind), Sums())
                _add(sums, keeper, contrast, subspaces.get((layer, kind), {}))
    return measured


def _add(sums: Sums, seen: PairKeeper, contrast: Contrast, subspaces: dict[str, Subspace]) -> None:
    logits = seen.logits
    parts = {"logit": logits}
    for feature in FEATURES:
        if feature in subspaces:
            projection = subspaces[feature].map.to(seen.q.dtype)
            parts[feature] = seen.q @ projection @ seen.k.mT / seen.q.shape[-1] ** 0.5
    if seen.scores is not None:
        parts["bias"] = logits - seen.products
    for feature, weights in contrast.weights.items():
        counted = int(weights.any(-1).sum())
        sums.questions[feature] = sums.questions.get(feature, 0) + counted
        for part, scores in parts.items():
            margin = (weights[:, None] * scores).double().sum((0, 2, 3))
            sums.margins[part, feature] = sums.margins.get((part, feature), 0) + margin
    for part, scores in {**parts, "": torch.zeros_like(logits)}.items():
        left = _squares(logits - scores, contrast.candidates)
        sums.left[part] = sums.left.get(part, 0) + left


def _squares(scores: Tensor, candidates: Tensor) -> Tensor:
    """The squared distance from the mean of each question's candidates, (heads,)."""
    among = candidates[:, None].to(scores.dtype)
    mean = (scores * among).sum(-1, keepdim=True) / among.sum(-1, keepdim=True).clamp(min=1)
    return ((scores - mean) * among).double().square().sum((0, 2, 3))


def _rows(columns: Row, sums: Sums, subspaces: dict[str, Subspace]) -> list[Row]:
    whole = torch.as_tensor(sums.left[""]).tolist()
    left = {part: torch.as_tensor(total).tolist() for part, total in sums.left.items() if part}
    rows: list[Row] = []
    for head, varied in enumerate(whole):
        for part, without in left.items():
            row: Row = {**columns, "head": head, "feature": part}
            for feature, count in sums.questions.items():
                margin, total = (
                    float(torch.as_tensor(sums.margins[of, feature])[head]) / max(1, count)
                    for of in (part, "logit")
                )
                row[f"{feature}_questions"], row[f"{feature}_margin"] = count, margin
                row[f"{feature}_share"] = margin / total if total else None
            row["variance_share"] = 1 - without[head] / varied if varied else None
            row |= _described(subspaces.get(part), head)
            rows.append(without_nan(row))
    return rows


def _described(subspace: Subspace | None, head: int) -> Row:
    if subspace is None:
        singular = dict.fromkeys(f"singular_{n}" for n in range(1, SHOWN + 1))
        return {"rank": None, **singular, "singular_bar": None}
    values = subspace.values[head].tolist()[:SHOWN]
    padded: list[float | None] = [*values, *[None] * (SHOWN - len(values))]
    row: Row = {"rank": int(subspace.rank[head])}
    row |= {f"singular_{n}": value for n, value in enumerate(padded, 1)}
    return {**row, "singular_bar": float(subspace.bar[head])}
