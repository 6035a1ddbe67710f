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


def right_answers(logits: Tensor, batch: Batch, task: Task) -> tuple[Tensor, Tensor]:
    """Which answers are right, and which have logits that are NaN or all -inf: (batch, tokens)."""
    scores = logits[..., : task.classes]
    guess = scores.argmax(-1)
    # argmax takes a NaN for the largest number, so the chosen score is NaN if any is;
    # it is -inf only if all are
    chosen = scores.gather(-1, guess[..., None])[..., 0]
    nan = chosen.isnan() | chosen.isneginf()
    return (guess == batch.targets) & ~nan, nan


def correct_by_part(logits: Tensor, batch: Batch, task: Task) -> Correct:
    """Which answers are right. An answer whose logits have a NaN, or are all -inf, is wrong.

    logits (batch, tokens, classes or more): only the task's classes are considered.
    """
    check_shape(logits, batch, task.classes)
    right, nan = right_answers(logits, batch, task)
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
