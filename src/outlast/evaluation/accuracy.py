"""What counts as right: by answer, by part of the task, and jointly."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from outlast.evaluation.outputs import check_shape
from outlast.tasks import Batch, Task


@dataclass(frozen=True)
class Correct:
    """What is right in a batch.

    `exact` says which sequences (batch,) have every answer right, by part. It also has ``joint``:
    every answer of every asked part right. `answers` is how many answers are right, by part. `nan`
    is at how many answers the logits were NaN or all -inf, over all parts.
    """

    exact: dict[str, Tensor]
    answers: dict[str, Tensor]
    nan: Tensor


def right_answers(
    logits: Tensor, batch: Batch, task: Task, support: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Which answers are right, and which have logits that are NaN or all -inf: (batch, tokens).

    `support` is that of the task at these tokens. None: the batch has whole rows, or the task has
    no support.
    """
    if support is None:
        support = task.support(batch.inputs, 0, batch.inputs.shape[1])
    scores = logits[..., : task.classes]
    guess = scores.argmax(-1)
    # argmax takes a NaN for the largest number, so the chosen score is NaN if any is;
    # it is -inf only if all are
    chosen = scores.gather(-1, guess[..., None])[..., 0]
    nan = chosen.isnan() | chosen.isneginf()
    if support is None:
        return (guess == batch.targets) & ~nan, nan
    supported = support.gather(-1, guess[..., None])[..., 0]
    return supported & (batch.part >= 0) & ~nan, nan


def distances(logits: Tensor, support: Tensor) -> Tensor:
    """Total variation distance to the uniform distribution over the support, (batch, tokens).

    logits (batch, tokens, classes or more), support (batch, tokens, classes). It is 1 where the
    logits are NaN or all -inf, or the support is empty.
    """
    chances = logits[..., : support.shape[-1]].float().softmax(-1)
    uniform = support / support.sum(-1, keepdim=True)
    return (uniform - chances).clamp_min(0).sum(-1).nan_to_num(nan=1.0).clamp_max(1.0)


def correct_by_part(logits: Tensor, batch: Batch, task: Task) -> Correct:
    """Which answers are right. An answer whose logits have a NaN, or are all -inf, is wrong.

    logits (batch, tokens, classes or more): only the task's classes are considered.
    """
    check_shape(logits, batch, task.classes)
    return count_correct(*right_answers(logits, batch, task), batch, task)


def count_correct(right: Tensor, nan: Tensor, batch: Batch, task: Task) -> Correct:
    """`correct_by_part` of what `right_answers` has found, (batch, tokens) each."""
    exact: dict[str, Tensor] = {}
    answers: dict[str, Tensor] = {}
    for index, part in enumerate(task.parts):
        mask = batch.part == index
        exact[part] = (right | ~mask).all(1)
        answers[part] = (right & mask).sum()
    joint = exact[task.asked[0]].clone()
    for part in task.asked[1:]:
        joint &= exact[part]
    return Correct({"joint": joint, **exact}, answers, (nan & (batch.part >= 0)).sum())
