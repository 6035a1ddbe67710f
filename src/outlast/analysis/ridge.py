"""A linear probe: a ridge regression onto one-hot labels; the largest score is the label it reads.

It is fitted in closed form. A block of tokens at a time adds to matrices in float64, and one system
of equations is solved at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from outlast.tasks.truth import ABSENT

#: the penalty on the weights, as a share of the mean variance of a feature
RIDGE = 1e-4
#: tokens that are read at once
READ_AT_ONCE = 2**12


class Probe(NamedTuple):
    """A linear reader: weights (features, labels) and bias (labels,), in float64."""

    weights: Tensor
    bias: Tensor

    @classmethod
    def fit(cls, features: Tensor, labels: Tensor, ridge: float = RIDGE) -> Probe:
        """A probe for features (..., width) and labels (...); a label below 0 does not count."""
        moments = Moments(features.shape[-1], int(labels.max()) + 1, features.device)
        moments.add(features[labels >= 0], labels[None, labels >= 0])
        return moments.fit(ridge)[0]

    def predict(self, features: Tensor) -> Tensor:
        """The label that is read from each of the features (..., width); -1 from NaN or inf.

        Scores have the precision of the features, at least float32.
        """
        return read_labels([self], features)[0]


def read_labels(probes: Sequence[Probe], features: Tensor) -> Tensor:
    """What each of some probes reads from the same features, (probes, ...); see `Probe.predict`."""
    wide = torch.promote_types(features.dtype, torch.float32)
    readers = [(probe.bias.to(wide), probe.weights.to(wide)) for probe in probes]
    labels = []
    for some in features.flatten(0, -2).split(READ_AT_ONCE):
        finite, some = some.isfinite().all(-1), some.to(wide)
        highest = [torch.addmm(bias, some, weights).max(-1) for bias, weights in readers]
        labels.append(
            torch.stack([h.indices.where(finite & h.values.isfinite(), ABSENT) for h in highest])
        )
    return torch.cat(labels, 1).view(len(probes), *features.shape[:-1])


class Moments:
    """The sums that ridge regressions need; their size does not depend on the tokens added.

    Several regressions share the features and differ in the labels of the tokens.
    """

    def __init__(self, width: int, labels: int, device: torch.device, regressions: int = 1) -> None:
        self.count = torch.zeros(labels, dtype=torch.float64, device=device)
        shape = (regressions, labels, width)
        self.sums = torch.zeros(shape, dtype=torch.float64, device=device)
        self.gram = torch.zeros(width, width, dtype=torch.float64, device=device)

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Take in features (tokens, width) and labels (regressions, tokens).

        Each regression has the same labels in another order. NaN and inf are left out.
        """
        sound = features.isfinite().all(-1)
        features, labels = features[sound].double(), labels[:, sound]
        self.count += torch.bincount(labels[0], minlength=len(self.count))
        for sums, of_tokens in zip(self.sums, labels, strict=True):
            sums.index_add_(0, of_tokens, features)
        self.gram += features.T @ features

    def fit(self, ridge: float = RIDGE) -> list[Probe]:
        """The probe of each regression. Biases are not penalised."""
        tokens = self.count.sum().clamp_min(1)
        mean, share = self.sums[0].sum(0) / tokens, self.count / tokens
        covariance = self.gram / tokens - mean.outer(mean)
        number = torch.finfo(torch.float64)
        rounding = number.eps * self.gram.diagonal().mean() / tokens
        penalty = (ridge * covariance.diagonal().mean() + rounding).clamp_min(number.tiny)
        penalised = covariance + torch.diag(penalty.expand(len(mean)))
        weights = torch.linalg.solve(penalised, self.sums.mT / tokens - mean.outer(share))
        return [Probe(each, share - mean @ each) for each in weights]
