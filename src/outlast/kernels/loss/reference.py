"""Mean cross-entropy and accuracy by part, explicit and in any precision.

Shapes (n seeds, c classes, p parts)::

    logits (n, batch, tokens, c)
    targets, part (n, batch, tokens)     a target of `ignore` asks nothing: loss 0, never right
    losses, accuracies, counts (n, p)    means over the tokens of a part; 0 where it has none
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def plain(
    logits: Tensor, targets: Tensor, part: Tensor, parts: int, ignore: int
) -> tuple[Tensor, Tensor]:
    """Losses and accuracies in torch's own operations, differentiable as often as one likes."""
    flat, wanted = logits.flatten(0, 2).float(), targets.flatten()
    loss = F.cross_entropy(flat, wanted, ignore_index=ignore, reduction="none").view(part.shape)
    right = (flat.argmax(-1) == wanted).view(part.shape)
    sums = []
    for index in range(parts):
        mask = part == index
        count = mask.sum((1, 2)).clamp_min(1)
        sums.append(((loss * mask).sum((1, 2)) / count, (right & mask).sum((1, 2)) / count))
    losses, accuracies = zip(*sums, strict=True)
    return torch.stack(losses, 1), torch.stack(accuracies, 1)


def forward(
    logits: Tensor, targets: Tensor, part: Tensor, parts: int, ignore: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses, accuracies and how many tokens each part has (1 at least)."""
    asked = targets != ignore
    wanted = targets.where(asked, 0).unsqueeze(-1)
    loss = (logits.logsumexp(-1) - logits.gather(-1, wanted).squeeze(-1)).where(asked, 0)
    right = (logits.argmax(-1) == targets).to(loss.dtype)
    mine = F.one_hot(part.where((part >= 0) & (part < parts), parts), parts + 1)[..., :parts]
    counts = mine.sum((1, 2)).clamp_min(1).to(loss.dtype)
    sums = [(value.unsqueeze(-1) * mine).sum((1, 2)) / counts for value in (loss, right)]
    return sums[0], sums[1], counts


def backward(
    d_losses: Tensor, counts: Tensor, logits: Tensor, targets: Tensor, part: Tensor, ignore: int
) -> Tensor:
    """The gradient of the logits."""
    parts = counts.shape[1]
    asked = (targets != ignore) & (part >= 0) & (part < parts)
    share = (d_losses / counts).gather(1, part.where(asked, 0).flatten(1)).view(part.shape)
    wanted = F.one_hot(targets.where(asked, 0), logits.shape[-1])
    return (logits.softmax(-1) - wanted) * share.where(asked, 0).unsqueeze(-1)
